"""Group Sequence Policy Optimization (arXiv 2507.18071)."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_shape
from hacpo_jax.objectives._masked import masked_mean, masked_sum, safe_divide
from hacpo_jax.objectives.counts import count_sequences, nonempty
from hacpo_jax.objectives.ratios import clipped_surrogate, sequence_ratio


def gspo_loss(
    log_probs: jax.Array,
    mask: jax.Array,
    behavior_mean_log_prob: jax.Array,
    advantages: jax.Array,
    *,
    eps_low: chex.Numeric = 3e-4,
    eps_high: chex.Numeric = 4e-4,
    normalizer: chex.Numeric | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Sequence-level clipped policy loss, mean over sequences.

    Args:
      log_probs: [N, T], nats, of the policy that is trained.
      mask: [N, T], nonzero on response tokens. A row without any weighs nothing.
      behavior_mean_log_prob: [N], nats per token, of the policy that sampled the response, over
        that policy's own tokens.
      advantages: [N].
      eps_low: the ratio is clipped below 1 - `eps_low` when the advantage is negative.
      eps_high: and above 1 + `eps_high` when it is positive.
      normalizer: number of sequences of the whole mini-batch (`count_sequences`) when the
        arguments are a part of it; None: that of the arguments.

    Returns:
      The loss, and means over the sequences given: `ratio`, `clip_fraction` (no gradient because
      of the clip), `capped_fraction` (log-ratio beyond the cap of 10 before exp, no gradient).

    Raises:
      ValueError: a shape is none of the above.
    """
    ratio, capped = sequence_ratio(log_probs, mask, behavior_mean_log_prob)
    check_shape("advantages", advantages, ratio.shape)
    rows = nonempty(mask)
    advantages = jnp.where(rows, as_float(advantages), 0)
    surrogate, clipped = clipped_surrogate(ratio, advantages, eps_low, eps_high)
    count = count_sequences(mask) if normalizer is None else normalizer
    loss = -safe_divide(masked_sum(surrogate, rows), count)
    metrics = {
        "ratio": masked_mean(ratio, rows),
        "clip_fraction": masked_mean(as_float(clipped), rows),
        "capped_fraction": masked_mean(as_float(capped), rows),
    }
    return loss, metrics
