"""Heterogeneous Agent Collaborative Policy Optimization (arXiv 2603.02604)."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_choice, check_shape
from hacpo_jax.objectives._masked import masked_mean, safe_divide
from hacpo_jax.objectives.counts import source_members
from hacpo_jax.objectives.ratios import clipped_surrogate, sequence_ratio

CLIP_TOLERANCE = 1e-5
"""How far outside its bounds a cross ratio keeps its gradient.

A peer with the learner's own policy has ratio 1, the upper bound, up to rounding.
"""


def hacpo_loss(
    log_probs: jax.Array,
    mask: jax.Array,
    behavior_mean_log_prob: jax.Array,
    advantages: jax.Array,
    source: jax.Array,
    *,
    learner: chex.Numeric,
    num_agents: int,
    update_index: chex.Numeric,
    alpha: chex.Numeric = 1.0,
    clip_low: chex.Numeric = 0.8,
    clip_step: chex.Numeric = 0.025,
    eps_low: chex.Numeric = 3e-4,
    eps_high: chex.Numeric = 4e-4,
    reduction: str = "sources",
    clip_cross: bool = True,
    normalizer: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Policy loss over a learner's own and its peers' samples (HACPO, eq. 4, 11-14, 47-53).

    Own samples have the clipped loss of `gspo_loss`. A cross sample with sequence ratio s has
    c · sg[c]^alpha · A, where c = clip(s, low, 1), low = min(clip_low + update_index · clip_step,
    1) and sg stops the gradient; outside that interval, widened by 1e-5, it has no gradient.

    Args:
      log_probs: [N, T], nats, of the learner on its own tokens of each response.
      mask: [N, T], nonzero on response tokens. A row without any weighs nothing.
      behavior_mean_log_prob: [N], nats per token, of the agent that sampled the response, over
        that agent's own tokens.
      advantages: [N], from `hacpo_advantages`; cross ones hold the discrepancy coefficient.
      source: [N], index of the agent that sampled the response. A row whose source is none of
        the A agents weighs nothing.
      learner: index of the agent that is trained.
      num_agents: A, static.
      update_index: number of updates already made in this step.
      alpha: exponent of importance sampling, at least 0; 0 switches it off. Without the clip,
        values above 7 can overflow float32.
      clip_low: lower bound of a cross ratio on the first update; 0 (with a `clip_step` of 0)
        switches it off. It is 1 - δ in the paper's text; its table of settings lists this bound
        itself under the name δ.
      clip_step: how much the lower bound rises per update; 0 switches stepwise clipping off.
      eps_low: an own ratio is clipped below 1 - `eps_low` when the advantage is negative.
      eps_high: and above 1 + `eps_high` when it is positive.
      reduction: "sources", the sum over sources of the mean over each one's sequences (eq. 4,
        53); or "sequences", the mean over all sequences (the authors' code).
      clip_cross: False uses s itself for cross samples (ablation). Static.
      normalizer: [A], number of sequences per source (`count_sequences_per_source`) of the whole
        mini-batch when the arguments are a part of it; None: that of the arguments.

    Returns:
      The loss, and for each source j, over its sequences given: `count/{j}`, and the means
      `ratio/{j}`, `clip_fraction/{j}` (no gradient because of the clip), `capped_fraction/{j}`
      (log-ratio beyond the cap of 10 before exp, no gradient). A mean over none is 0. Also
      `cross_gradient_fraction`, the share of cross sequences that carry a gradient: inside the
      interval, not capped, and with an advantage other than 0.

    Raises:
      ValueError: `reduction` or a shape is none of the above.
    """
    check_choice("reduction", reduction, ("sources", "sequences"))
    if normalizer is not None:
        check_shape("normalizer", normalizer, (num_agents,))
    ratio, capped = sequence_ratio(log_probs, mask, behavior_mean_log_prob)
    check_shape("advantages", advantages, ratio.shape)
    members = source_members(mask, source, num_agents)  # [N, A]
    rows, own = jnp.any(members, axis=1), source == learner
    advantages = jnp.where(rows, as_float(advantages), 0)

    own_term, own_clipped = clipped_surrogate(ratio, advantages, eps_low, eps_high)
    # Own ratios are replaced: what is not chosen below must be finite for its gradient to be 0.
    cross_ratio = jnp.where(own, 1, ratio)
    low = jnp.minimum(clip_low + update_index * clip_step, 1).astype(ratio.dtype)
    if clip_cross:
        bounded, outside = _clip_cross(cross_ratio, low)
    else:
        bounded, outside = cross_ratio, jnp.zeros_like(own)
    cross_term = bounded * jax.lax.stop_gradient(bounded) ** alpha * advantages
    terms = jnp.where(own, own_term, cross_term)
    clipped = jnp.where(own, own_clipped, outside)

    sums = jnp.sum(jnp.where(members, terms[:, None], 0), axis=0)  # [A]
    own_counts = jnp.sum(members, axis=0)
    counts = own_counts if normalizer is None else normalizer
    if reduction == "sources":
        loss = -jnp.sum(safe_divide(sums, counts))
    else:
        loss = -safe_divide(jnp.sum(sums), jnp.sum(counts))

    carries = ~clipped & ~capped & (advantages != 0)
    metrics = {"cross_gradient_fraction": masked_mean(as_float(carries), rows & ~own)}
    for name, values in (("ratio", ratio), ("clip_fraction", clipped), ("capped_fraction", capped)):
        means = masked_mean(as_float(values)[:, None], members, axis=0)
        metrics |= {f"{name}/{j}": means[j] for j in range(num_agents)}
    metrics |= {f"count/{j}": own_counts[j].astype(ratio.dtype) for j in range(num_agents)}
    return loss, metrics


def _clip_cross(ratio: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """clip(ratio, low, 1) except inside the tolerance, and where that stops the gradient."""
    too_low, too_high = ratio < low - CLIP_TOLERANCE, ratio > 1 + CLIP_TOLERANCE
    return jnp.where(too_low, low, jnp.where(too_high, 1, ratio)), too_low | too_high
