"""Answers scored by the trainer's full forward pass."""

import dataclasses
from typing import Any

import jax
import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.rollout import Rollouts
from hacpo_jax.training.batches import pad_prompts
from hacpo_jax.training.run import Run
from hacpo_jax.training.scoring import Answers, score


def policy_log_probs(
    run: Run,
    group: AgentGroup,
    params,
    tokens: np.ndarray,
    lengths: np.ndarray,
    indices: np.ndarray,
) -> np.ndarray:
    """Log-probs `[A, P, N, T]` of answers under a group's policies; 0 after the end.

    Args:
      run: the run.
      group: the agents.
      params: `[A, ...]`, theirs or those of their frozen start.
      tokens: `[A, P, N, T]`, N answers to each problem in the group's tokens.
      lengths: `[A, P, N]`.
      indices: `[P]` problems of the step.
    """
    prompts, prompt_lengths = pad_prompts(run.train.prompts(group.indices[0], indices.tolist()))
    num_agents, num_prompts, num_samples, width = tokens.shape
    rows = num_prompts * num_samples
    size = min(run.config.training.micro_batch_rows, rows)
    filler = -rows % size

    # Host arrays stand in for device arrays until the jitted scoring takes them.
    def cut(values: np.ndarray) -> Any:
        flat = values.reshape(num_agents, rows, *values.shape[3:])
        flat = np.pad(flat, [(0, 0), (0, filler)] + [(0, 0)] * (flat.ndim - 2), mode="edge")
        return flat.reshape(num_agents, -1, size, *flat.shape[2:])

    def per_answer(values: np.ndarray) -> Any:
        whole = (num_agents, num_prompts, num_samples, *values.shape[1:])
        return cut(np.broadcast_to(values[None, :, None], whole))

    answers = Answers(
        prompts=per_answer(prompts),
        prompt_lengths=per_answer(prompt_lengths),
        responses=cut(tokens),
        response_lengths=cut(lengths),
    )
    scored = jax.device_get(score(params, answers, spec=run.policy_spec(group)))
    scored = scored.reshape(num_agents, -1, width)[:, :rows].reshape(tokens.shape)
    return np.where(np.arange(width) < lengths[..., None], scored, 0.0)


def rescore(
    run: Run, group: AgentGroup, params, rollouts: Rollouts, indices: np.ndarray
) -> tuple[Rollouts, np.ndarray]:
    """The same answers with the trainer's log-probs instead of the sampler's.

    In bfloat16 the two differ by more than the own clip of GSPO and HACPO is wide (3e-4): half of
    the own answers would lose their gradient before the first update.

    Returns:
      The answers, and the largest difference of one token's log-prob for each agent, `[A]`.
    """
    scored = policy_log_probs(run, group, params, rollouts.tokens, rollouts.lengths, indices)
    gaps = np.abs(scored - rollouts.log_probs).max(axis=(1, 2, 3))
    return dataclasses.replace(rollouts, log_probs=scored), gaps
