"""Answers scored by the trainer's full forward pass."""

import dataclasses

import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.parallel.layout import fetch
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
    owners: np.ndarray | None = None,
) -> np.ndarray:
    """Log-probs `[A, p, N, T]` of this process's answers under a group's policies; 0 after the end.

    Args:
      run: the run.
      group: the agents.
      params: `[A, ...]`, theirs or those of their frozen start.
      tokens: `[A, p, N, T]`, N answers to each problem of this process in the group's tokens.
      lengths: `[A, p, N]`.
      indices: `[P]` problems of all processes.
      owners: `[P]` the process that has each; None where they are dealt out as for an answer.
    """
    layout = run.layout(group)
    prompts, prompt_lengths = pad_prompts(run.train.prompts(group.indices[0], indices.tolist()))
    if owners is None:
        owners = np.arange(len(indices)) % layout.processes
    mine, share = owners == run.hosts.index, int(np.bincount(owners).max())
    num_agents, num_prompts, num_samples, width = tokens.shape
    rows, slots = num_prompts * num_samples, share * num_samples
    count, size = layout.micro_batches(run.config.training.micro_batch_rows, slots)
    filler = count * size - rows

    def cut(values: np.ndarray) -> np.ndarray:
        flat = values.reshape(num_agents, rows, *values.shape[3:])
        flat = np.pad(flat, [(0, 0), (0, filler)] + [(0, 0)] * (flat.ndim - 2))
        return flat.reshape(num_agents, count, size, *flat.shape[2:])

    def per_answer(values: np.ndarray) -> np.ndarray:
        shape = (num_agents, num_prompts, num_samples, *values.shape[1:])
        return cut(np.broadcast_to(values[mine][None, :, None], shape))

    starts = np.maximum(per_answer(prompt_lengths), 1)  # filler rows hold one token
    parts = (per_answer(prompts), starts, cut(tokens), cut(lengths))
    with layout.use():
        answers = Answers(*layout.put(parts, "agents", None, "rows"))
        scored = fetch(score(params, answers, spec=run.policy_spec(group)))
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
    gaps = np.abs(scored - rollouts.log_probs).max(axis=(1, 2, 3), initial=0)
    return dataclasses.replace(rollouts, log_probs=scored), gaps
