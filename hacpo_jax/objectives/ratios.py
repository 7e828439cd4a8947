"""Importance ratios and the clipped surrogate that the losses share."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_shape
from hacpo_jax.objectives._masked import masked_mean
from hacpo_jax.objectives.counts import nonempty

LOG_RATIO_CAP = 10.0
"""Largest log-ratio, in nats, that is exponentiated; beyond it there is no gradient."""


def mean_log_prob(log_probs: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean log-prob of each response over its own tokens, as in eq. 11 of HACPO.

    Args:
      log_probs: [N, T], nats; values outside the mask are ignored, whatever they are.
      mask: [N, T], nonzero on response tokens.

    Returns:
      [N], nats per token; 0 for a row without tokens.
    """
    check_shape("log_probs", log_probs, (None, None))
    check_shape("mask", mask, log_probs.shape)
    return masked_mean(as_float(log_probs), mask != 0, axis=-1)


def importance_ratio(new: jax.Array, old: jax.Array) -> tuple[jax.Array, jax.Array]:
    """exp(new - old) with the difference capped at `LOG_RATIO_CAP`, and where it was capped.

    The behavior policy `old` is a constant: no gradient reaches it, so that on the first update
    the current log-probs may themselves be passed as old ones.
    """
    log_ratio = new - jax.lax.stop_gradient(old)
    capped = log_ratio > LOG_RATIO_CAP
    return jnp.exp(jnp.where(capped, LOG_RATIO_CAP, log_ratio)), capped


def sequence_ratio(
    log_probs: jax.Array, mask: jax.Array, behavior_mean_log_prob: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Length-normalised ratio s of each response (GSPO; HACPO eq. 11), and where it was capped.

    Returns:
      Two [N]; a row without tokens has ratio 1, and its behavior log-prob is ignored.
    """
    new = mean_log_prob(log_probs, mask)
    check_shape("behavior_mean_log_prob", behavior_mean_log_prob, new.shape)
    old = jnp.where(nonempty(mask), as_float(behavior_mean_log_prob), 0)
    return importance_ratio(new, old)


def clipped_surrogate(
    ratio: jax.Array, advantages: jax.Array, eps_low: chex.Numeric, eps_high: chex.Numeric
) -> tuple[jax.Array, jax.Array]:
    """min(r·A, clip(r, 1 - eps_low, 1 + eps_high)·A), and where the clip stops the gradient.

    Written as a choice instead of a minimum: a ratio exactly on a bound keeps its whole gradient.
    """
    too_high = (advantages > 0) & (ratio > 1 + eps_high)
    too_low = (advantages < 0) & (ratio < 1 - eps_low)
    bounded = jnp.where(too_high, 1 + eps_high, jnp.where(too_low, 1 - eps_low, ratio))
    return bounded * advantages, too_high | too_low
