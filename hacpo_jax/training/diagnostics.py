"""A closer look at a step before its first update: gradients and ratios by source, KL, entropy."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hacpo_jax import objectives
from hacpo_jax.agents import AgentGroup
from hacpo_jax.models.lora import agent_axes
from hacpo_jax.training.batches import LearnerView, mini_batch
from hacpo_jax.training.run import Run
from hacpo_jax.training.update import MiniBatch, UpdateSpec, gradients_of

RATIO_EDGES = np.round(np.concatenate([[0], np.arange(0.025, 2.03, 0.05), [np.inf]]), 3)
"""Edges of the ratio histograms, with 1 in the middle of a bin: ratios that are 1 but for rounding
stay together."""


def is_due(run: Run, step: int) -> bool:
    """Whether step number `step`, from 1, is looked at: the first, and every so many."""
    every = run.config.diagnostics.every
    return every is not None and (step - 1) % every == 0


def diagnose(
    run: Run, group: AgentGroup, params, views: list[LearnerView], step: int
) -> list[dict[str, Any]]:
    """One row for each learner of a group, to be written to `diagnostics.jsonl`.

    Args:
      run: the run.
      group: the learners.
      params: their parameters before the step, `[A, ...]`.
      views: what they train on, with reference log-probs.
      step: number of the step, from 1.

    Returns:
      Rows of `cosine/<peer>`, between the gradients of the objective on the peer's and on own
      answers (HACPO, theorem 4.3; null where one is 0), `ratio/<source>`, a histogram of
      sequence ratios, and `kl` (k3, to the frozen start) and `entropy` in nats per token.
    """
    own = _look_at(run, group, params, views, [view.learner for view in views])
    rows: list[dict[str, Any]] = [
        {
            "step": step,
            "agent": agent.name,
            "kl": float(own.kl[i]),
            "entropy": float(own.entropy[i]),
            "ratio/own": _histogram(own, i),
        }
        for i, agent in enumerate(group.agents)
    ]
    # Every learner's first peer, then every learner's second: each answer is looked at once.
    for n in range(len(run.agents) - 1 if group.algorithm.shares_answers else 0):
        peers = [run.agents[n + (n >= view.learner)] for view in views]
        look = _look_at(run, group, params, views, [peer.index for peer in peers])
        cosines = jax.device_get(_cosines(own.gradient, look.gradient))
        for i, (row, peer) in enumerate(zip(rows, peers, strict=True)):
            row[f"cosine/{peer.name}"] = float(cosines[i]) if np.isfinite(cosines[i]) else None
            row[f"ratio/{peer.name}"] = _histogram(look, i)
    return rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Look:
    """Of one source's N answers for each learner."""

    gradient: dict  # [A, ...]
    counted: jax.Array  # [A, N], whether the answer has a token
    ratio: jax.Array  # [A, N]
    kl: jax.Array  # [A]
    entropy: jax.Array  # [A]


def _look_at(
    run: Run, group: AgentGroup, params, views: list[LearnerView], sources: list[int]
) -> _Look:
    """What each learner makes of the answers of the agent named for it."""
    prompts = range(len(views[0].prompts))
    pairs = [np.array([(j, p) for p in prompts]) for j in sources]
    # Rescues are another loss.
    no_weight = np.zeros_like(views[0].transfer_weight)
    alone = [dataclasses.replace(view, transfer_weight=no_weight) for view in views]
    batch = mini_batch(alone, pairs, run.config.training.micro_batch_rows)
    spec = dataclasses.replace(run.update_spec(group), kl_coef=0.0, entropy_coef=0.0)
    return _look(params, batch, np.array(group.indices), spec=spec)


@functools.partial(jax.jit, static_argnames="spec")
def _look(params, batch: MiniBatch, learners, *, spec: UpdateSpec) -> _Look:
    def one_agent(params, batch, learner):
        gradient, (log_probs, entropy), rows = gradients_of(params, batch, learner, 0, spec)
        samples = rows.samples()
        mean = objectives.mean_log_prob(log_probs, samples.mask)
        _, found = objectives.kl_penalty(log_probs, samples.reference_log_probs, samples.mask)
        count = jnp.maximum(objectives.count_sequences(samples.mask), 1)
        return _Look(
            gradient=gradient,
            counted=samples.mask.any(axis=-1),
            ratio=jnp.exp(mean - samples.behavior_mean_log_prob),
            kl=found["kl"],
            entropy=objectives.mean_log_prob(entropy, samples.mask).sum() / count,
        )

    over_agents = jax.vmap(one_agent, in_axes=(agent_axes(params), 0, 0))
    return over_agents(params, batch, learners)


@jax.jit
def _cosines(one, two) -> jax.Array:
    """Between two gradients of each agent, `[A]`; NaN where one of them is 0."""

    def cosine(one, two):
        product = jnp.asarray(optax.tree.vdot(one, two))
        return product / jnp.asarray(optax.tree.norm(one) * optax.tree.norm(two))

    return jax.vmap(cosine)(one, two)


def _histogram(look: _Look, member: int) -> dict[str, list]:
    ratios = np.asarray(look.ratio[member])[np.asarray(look.counted[member])]
    counts, _ = np.histogram(ratios, RATIO_EDGES)
    return {"edges": RATIO_EDGES[:-1].tolist(), "counts": counts.tolist()}
