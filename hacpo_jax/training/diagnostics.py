"""A closer look at a step before its first update: gradients and ratios by source, KL, entropy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hacpo_jax import objectives
from hacpo_jax.agents import AgentGroup
from hacpo_jax.parallel.layout import fetch
from hacpo_jax.parallel.rules import over_agents
from hacpo_jax.parallel.shares import gather_arrays
from hacpo_jax.training.batches import LearnerView
from hacpo_jax.training.cut import cut_updates
from hacpo_jax.training.drawn import Drawn
from hacpo_jax.training.run import Run
from hacpo_jax.training.update import Found, MiniBatch, flat_rows, gradients_of

RATIO_EDGES = np.round(np.concatenate([[0], np.arange(0.025, 2.03, 0.05), [np.inf]]), 3)
"""Edges of the ratio histograms, with 1 in the middle of a bin: ratios that are 1 but for rounding
stay together."""


def is_due(run: Run, step: int) -> bool:
    """Whether step number `step`, from 1, is looked at: the first, and every so many."""
    every = run.config.diagnostics.every
    return every is not None and (step - 1) % every == 0


def diagnose(
    run: Run, group: AgentGroup, params, drawn: Drawn, views: list[LearnerView], step: int
) -> list[dict[str, Any]]:
    """One row for each learner of a group, to be written to `diagnostics.jsonl`.

    Args:
      run: the run.
      group: the learners.
      params: their parameters before the step, `[A, ...]`.
      drawn: the step's answers.
      views: what they train on, with reference log-probs.
      step: number of the step, from 1.

    Returns:
      Rows of `cosine/<peer>`, between the gradients of the objective on the peer's and on own
      answers (HACPO, theorem 4.3; null where one is 0), `ratio/<source>`, a histogram of
      sequence ratios, and `kl` (k3, to the frozen start) and `entropy` in nats per token.
    """
    name = f"step {step} look of {group.name} at"
    own = _look_at(run, group, params, drawn, views, [view.learner for view in views], name)
    rows: list[dict[str, Any]] = [
        {
            "step": step,
            "agent": agent.name,
            "kl": float(own.kl[i]),
            "entropy": float(own.entropy[i]),
            "ratio/own": own.histograms[i],
        }
        for i, agent in enumerate(group.agents)
    ]
    # Every learner's first peer, then every learner's second: each answer is looked at once.
    for n in range(len(run.agents) - 1 if group.algorithm.shares_answers else 0):
        peers = [run.agents[n + (n >= view.learner)] for view in views]
        indices = [peer.index for peer in peers]
        look = _look_at(run, group, params, drawn, views, indices, f"{name} {n}")
        with run.layout(group).use():
            cosines = fetch(_cosines(own.gradient, look.gradient))
        for i, (row, peer) in enumerate(zip(rows, peers, strict=True)):
            row[f"cosine/{peer.name}"] = float(cosines[i]) if np.isfinite(cosines[i]) else None
            row[f"ratio/{peer.name}"] = look.histograms[i]
    return rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Look:
    """Of one source's N answers for each learner."""

    counted: jax.Array  # [A, N], whether the answer has a token
    ratio: jax.Array  # [A, N]
    kl: jax.Array  # [A]
    entropy: jax.Array  # [A]


@dataclasses.dataclass(frozen=True)
class _Seen:
    """One source's answers to each learner, on the host but for the gradient."""

    gradient: dict  # [A, ...]
    histograms: list[dict[str, list]]
    kl: np.ndarray  # [A]
    entropy: np.ndarray  # [A]


def _look_at(
    run: Run,
    group: AgentGroup,
    params,
    drawn: Drawn,
    views: list[LearnerView],
    sources: list[int],
    name: str,
) -> _Seen:
    """What each learner makes of the answers of the agent named for it."""
    prompts = range(len(drawn.indices))
    pairs = [np.array([(j, p) for p in prompts]) for j in sources]
    # Rescues are another loss.
    no_weight = np.zeros_like(views[0].transfer_weight)
    alone = [dataclasses.replace(view, transfer_weight=no_weight) for view in views]
    (rows,) = cut_updates(run, group, drawn, alone, [pairs], f"{name}: rows")
    spec = dataclasses.replace(run.update_spec(group), kl_coef=0.0, entropy_coef=0.0)
    layout = run.layout(group)
    with layout.use():
        batch, cuts = layout.put(rows, "agents", "rows")
        learners = np.array(group.indices)
        found = gradients_of(params, batch, cuts, learners, np.int32(0), spec=spec)
        look = _look(found, batch)
        ratios, counted = fetch((look.ratio, look.counted))
        kl, entropy = fetch((look.kl, look.entropy))
    counts = [np.histogram(r[on], RATIO_EDGES)[0] for r, on in zip(ratios, counted, strict=True)]
    parts = gather_arrays(run.hosts, f"{name}: ratios", {"counts": np.array(counts)})
    total = np.sum([part["counts"] for part in parts], axis=0)
    edges = RATIO_EDGES[:-1].tolist()
    histograms = [{"edges": edges, "counts": row.tolist()} for row in total]
    return _Seen(found.gradient, histograms, kl, entropy)


@jax.jit
def _look(found: Found, batch: MiniBatch) -> _Look:
    def one_agent(log_probs, entropy, batch):
        whole = flat_rows(batch)
        log_probs, entropy, samples = flat_rows(log_probs), flat_rows(entropy), whole.samples()
        mean = objectives.mean_log_prob(log_probs, samples.mask)
        _, terms = objectives.kl_penalty(log_probs, samples.reference_log_probs, samples.mask)
        count = jnp.maximum(objectives.count_sequences(samples.mask), 1)
        return _Look(
            counted=samples.mask.any(axis=-1),
            ratio=jnp.exp(mean - samples.behavior_mean_log_prob),
            kl=terms["kl"],
            entropy=objectives.mean_log_prob(entropy, samples.mask).sum() / count,
        )

    return over_agents(one_agent)(found.log_probs, found.entropy, batch)


@jax.jit
def _cosines(one, two) -> jax.Array:
    """Between two gradients of each agent, `[A]`; NaN where one of them is 0."""

    def cosine(one, two):
        product = jnp.asarray(optax.tree.vdot(one, two))
        return product / jnp.asarray(optax.tree.norm(one) * optax.tree.norm(two))

    return over_agents(cosine)(one, two)
