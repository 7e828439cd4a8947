"""Answers scored by the trainer's full forward pass."""

import dataclasses

import jax
import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.parallel.layout import fetch
from hacpo_jax.rollout import Rollouts
from hacpo_jax.training.batches import pad_prompts
from hacpo_jax.training.cut import cut_answers
from hacpo_jax.training.cuts import count_prompts, lay_answers, lay_rows
from hacpo_jax.training.run import Run
from hacpo_jax.training.scoring import score


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
    count, slots = num_prompts * num_samples, share * num_samples

    def filled(values: np.ndarray, axis: int, filler: int = 0) -> np.ndarray:
        """Filled up to what the process with most prompts has, so that all lay rows alike."""
        more = [(0, share - num_prompts if i == axis else 0) for i in range(values.ndim)]
        return np.pad(values, more, constant_values=filler)

    rows = lay_rows(
        np.repeat(np.arange(share), num_samples),
        layout.local_rows,
        -(-slots // layout.local_rows),
    )
    prompt_of = rows.prompt_of
    shared = count_prompts(prompt_of), filled(prompts[mine], 0)
    ends = filled(prompt_lengths[mine], 0, filler=1)
    flat = (filled(x, 1).reshape(num_agents, slots, *x.shape[3:]) for x in (tokens, lengths))
    laid = [lay_answers(rows, *shared, ends, *each) for each in zip(*flat, strict=True)]
    answers = jax.tree.map(lambda *leaves: np.stack(leaves), *laid)
    found = answers.response_lengths
    if layout.processes > 1:  # none knows the others' lengths, and all must cut alike
        found = np.full_like(found, width)
    all_rows = (np.tile(x, (1, layout.processes, 1)) for x in (found, answers.prompt_of))
    cuts = cut_answers(run, group, answers, *all_rows)
    with layout.use():
        there = layout.put((answers, cuts), "agents", "rows")
        scored = fetch(score(params, *there, spec=run.policy_spec(group)))
    given, out = rows.answers >= 0, np.zeros((num_agents, slots, width), np.float32)
    out[:, rows.answers[given]] = scored[:, given]
    out = out[:, :count].reshape(tokens.shape)
    return np.where(np.arange(width) < lengths[..., None], out, 0.0)


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
