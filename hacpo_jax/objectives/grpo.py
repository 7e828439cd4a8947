"""Token-level clipped policy loss: GRPO (arXiv 2402.03300) and DAPO (arXiv 2503.14476)."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_choice, check_shape
from hacpo_jax.objectives._masked import masked_mean, masked_sum, safe_divide
from hacpo_jax.objectives.counts import count_sequences, count_tokens
from hacpo_jax.objectives.ratios import clipped_surrogate, importance_ratio


def grpo_loss(
    log_probs: jax.Array,
    mask: jax.Array,
    old_log_probs: jax.Array,
    advantages: jax.Array,
    *,
    eps_low: chex.Numeric = 0.2,
    eps_high: chex.Numeric = 0.28,
    reduction: str = "tokens",
    normalizer: chex.Numeric | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Token-level clipped policy loss.

    Args:
      log_probs: [N, T], nats, of the policy that is trained.
      mask: [N, T], nonzero on response tokens. A row without any weighs nothing.
      old_log_probs: [N, T], nats, of the policy in the ratio's denominator.
      advantages: [N].
      eps_low: the ratio is clipped below 1 - `eps_low` when the advantage is negative.
      eps_high: and above 1 + `eps_high` when it is positive.
      reduction: "tokens", the mean over all tokens (DAPO); or "sequences", the mean over
        sequences of the mean over each one's tokens (GRPO).
      normalizer: number of tokens (`count_tokens`) or sequences (`count_sequences`), as in
        `reduction`, of the whole mini-batch when the arguments are a part of it; None: that of
        the arguments.

    Returns:
      The loss, and means over the tokens given: `ratio`, `clip_fraction` (no gradient because of
      the clip), `capped_fraction` (log-ratio beyond the cap of 10 before exp, no gradient).

    Raises:
      ValueError: `reduction` or a shape is none of the above.
    """
    check_choice("reduction", reduction, ("tokens", "sequences"))
    check_shape("log_probs", log_probs, (None, None))
    check_shape("mask", mask, log_probs.shape)
    check_shape("old_log_probs", old_log_probs, log_probs.shape)
    check_shape("advantages", advantages, log_probs.shape[:1])
    tokens = mask != 0
    new = jnp.where(tokens, as_float(log_probs), 0)
    old = jnp.where(tokens, as_float(old_log_probs), 0)
    ratio, capped = importance_ratio(new, old)
    per_token = jnp.where(tokens, as_float(advantages)[:, None], 0)
    surrogate, clipped = clipped_surrogate(ratio, per_token, eps_low, eps_high)
    if reduction == "tokens":
        total, own_count = masked_sum(surrogate, tokens), count_tokens(mask)
    else:
        total, own_count = masked_mean(surrogate, tokens, axis=-1).sum(), count_sequences(mask)
    loss = -safe_divide(total, own_count if normalizer is None else normalizer)
    metrics = {
        "ratio": masked_mean(ratio, tokens),
        "clip_fraction": masked_mean(as_float(clipped), tokens),
        "capped_fraction": masked_mean(as_float(capped), tokens),
    }
    return loss, metrics
