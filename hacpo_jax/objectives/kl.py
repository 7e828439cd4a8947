"""Penalty for the distance to a frozen reference policy."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_choice, check_shape
from hacpo_jax.objectives._masked import masked_mean, safe_divide
from hacpo_jax.objectives.counts import count_sequences, nonempty

LOG_RATIO_BOUND = 10.0
"""Largest q, in nats, that is exponentiated; no gradient beyond it."""


def kl_penalty(
    log_probs: jax.Array,
    reference_log_probs: jax.Array,
    mask: jax.Array,
    *,
    estimator: str = "k3",
    normalizer: chex.Numeric | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Estimate of KL(policy || reference), mean over sequences of the mean over their tokens.

    The k3 estimator exp(q) - q - 1 with q = log π_ref - log π, as in GRPO (arXiv 2402.03300,
    eq. 4), where q counts as 10 at most. Below it needs no bound: it grows as -q does, and pulls
    back a policy that gives a token far more than the reference.

    Args:
      log_probs: [N, T], nats, of the policy that is trained, on tokens that it sampled itself.
      reference_log_probs: [N, T], nats, of the reference on the same tokens; a constant.
      mask: [N, T], nonzero on response tokens. A row without any weighs nothing.
      estimator: "k3".
      normalizer: number of sequences of the whole mini-batch (`count_sequences`) when the
        arguments are a part of it; None: that of the arguments.

    Returns:
      The penalty, to be multiplied by its coefficient, and `kl`: the mean over the sequences
      given, nats per token.

    Raises:
      ValueError: `estimator` or a shape is none of the above.
    """
    check_choice("estimator", estimator, ("k3",))
    check_shape("log_probs", log_probs, (None, None))
    check_shape("reference_log_probs", reference_log_probs, log_probs.shape)
    check_shape("mask", mask, log_probs.shape)
    tokens = mask != 0
    new = jnp.where(tokens, as_float(log_probs), 0)
    reference = jnp.where(tokens, as_float(reference_log_probs), 0)
    q = jnp.minimum(jax.lax.stop_gradient(reference) - new, LOG_RATIO_BOUND)
    # expm1 keeps the digits that exp(q) - 1 loses for the small q of a policy near its reference.
    per_row = masked_mean(jnp.expm1(q) - q, tokens, axis=-1)  # [N]
    count = count_sequences(mask) if normalizer is None else normalizer
    loss = safe_divide(jnp.sum(per_row), count)
    return loss, {"kl": masked_mean(per_row, nonempty(mask))}
