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
    count, algorithm = len(run.agents), group.algorithm
    sources = range(count) if algorithm.shares_answers else None
    pairs = [
        np.array([(j, p) for j in sources or [view.learner] for p in range(len(view.prompts))])
        for view in views
    ]
    alone = [
        dataclasses.replace(v, transfer_weight=np.zeros_like(v.transfer_weight)) for v in views
    ]
    batch = mini_batch(alone, pairs, run.config.training.micro_batch_rows)
    spec = dataclasses.replace(run.update_spec(group), kl_coef=0.0, entropy_coef=0.0)
    found = jax.device_get(
        _look(params, batch, np.array(group.indices), spec=spec, num_agents=count)
    )
    rows = []
    for member, agent in enumerate(group.agents):
        look = _Look(*(values[member] for values in dataclasses.astuple(found)))
        row: dict[str, Any] = {"step": step, "agent": agent.name}
        for peer in run.agents:
            name = "own" if peer.index == agent.index else peer.name
            if name != "own" and sources is None:
                continue
            if name != "own":
                row[f"cosine/{name}"] = _cosine(look, agent.index, peer.index)
            ratios = look.ratio[look.counted & (look.source == peer.index)]
            counts, _ = np.histogram(ratios, RATIO_EDGES)
            row[f"ratio/{name}"] = {"edges": RATIO_EDGES[:-1].tolist(), "counts": counts.tolist()}
        rows.append(row | {"kl": float(look.kl), "entropy": float(look.entropy)})
    return rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Look:
    """Of one learner, over the N rows of a step."""

    product: jax.Array  # [A] of own and each source's gradient
    norm: jax.Array  # [A] of each source's gradient
    source: jax.Array  # [N]
    counted: jax.Array  # [N]
    ratio: jax.Array  # [N]
    kl: jax.Array
    entropy: jax.Array


@functools.partial(jax.jit, static_argnames=("spec", "num_agents"))
def _look(params, batch: MiniBatch, learners, *, spec: UpdateSpec, num_agents: int) -> _Look:
    def one_agent(params, batch, learner):
        def of_source(j):
            lengths = jnp.where(batch.source == j, batch.answers.response_lengths, 0)
            answers = dataclasses.replace(batch.answers, response_lengths=lengths)
            only = dataclasses.replace(batch, answers=answers)
            gradient, (log_probs, entropy), rows = gradients_of(params, only, learner, 0, spec)
            return gradient, log_probs, entropy, rows.samples()

        own_gradient, log_probs, entropy, own = of_source(learner)
        _, kl = objectives.kl_penalty(log_probs, own.reference_log_probs, own.mask)
        count = jnp.maximum(objectives.count_sequences(own.mask), 1)

        def visit(ratio, j):
            gradient, log_probs, _, samples = of_source(j)
            mean = objectives.mean_log_prob(log_probs, samples.mask)
            there = samples.mask.any(axis=-1)
            ratio = jnp.where(there, jnp.exp(mean - samples.behavior_mean_log_prob), ratio)
            product = jnp.asarray(optax.tree.vdot(own_gradient, gradient))
            return ratio, (product, optax.tree.norm(gradient))

        source = batch.source.reshape(-1)
        ratio, (product, norm) = jax.lax.scan(visit, jnp.ones(source.shape), jnp.arange(num_agents))
        return _Look(
            product=product,
            norm=norm,
            source=source,
            counted=batch.answers.mask.any(axis=-1).reshape(-1),
            ratio=ratio,
            kl=kl["kl"],
            entropy=objectives.mean_log_prob(entropy, own.mask).sum() / count,
        )

    over_agents = jax.vmap(one_agent, in_axes=(agent_axes(params), 0, 0))
    return over_agents(params, batch, learners)


def _cosine(look: _Look, learner: int, source: int) -> float | None:
    scale = float(look.norm[learner]) * float(look.norm[source])
    return float(look.product[source]) / scale if np.isfinite(scale) and scale > 0 else None
