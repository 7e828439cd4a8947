"""Success-gated transfer (SGT) of Mutual RL (arXiv 2605.07244)."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_shape
from hacpo_jax.objectives._masked import masked_sum, safe_divide
from hacpo_jax.objectives.capabilities import validity
from hacpo_jax.objectives.counts import nonempty, sum_weights
from hacpo_jax.objectives.ratios import mean_log_prob


def success_gate(success: jax.Array, *, valid: jax.Array | None = None) -> jax.Array:
    """Which prompts each agent failed altogether while a peer solved them.

    Args:
      success: [A, P, G], nonzero where the response was verified.
      valid: [A, P, G], nonzero where the sample counts; None: everywhere.

    Returns:
      bool [A, P].
    """
    check_shape("success", success, (None, None, None))
    solved = jnp.any((success != 0) & validity(success, valid), axis=-1)  # [A, P]
    # An agent that solved nothing is not among those that did, so any solver is a peer.
    return ~solved & jnp.any(solved, axis=0)


def transfer_loss(
    log_probs: jax.Array,
    mask: jax.Array,
    weight: jax.Array,
    *,
    normalizer: chex.Numeric | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Weighted mean over sequences of each one's negative log-likelihood per token.

    Args:
      log_probs: [N, T], nats, of the learner on its own tokens of each response.
      mask: [N, T], nonzero on response tokens. A row without any weighs nothing.
      weight: [N], at least 0: 1 on the peers' responses to learn from, 0 elsewhere.
      normalizer: sum of weights of the whole mini-batch (`sum_weights`) when the arguments are a
        part of it; None: that of the arguments.

    Returns:
      The loss, and `nll`: the weighted mean over the sequences given, nats per token.

    Raises:
      ValueError: a shape is none of the above.
    """
    nll = -mean_log_prob(log_probs, mask)
    own_sum = sum_weights(mask, weight)
    # Rows of weight 0 are left out, not multiplied: 0 · inf would be NaN.
    chosen = nonempty(mask) & (weight != 0)
    total = masked_sum(nll * as_float(weight), chosen)
    loss = safe_divide(total, own_sum if normalizer is None else normalizer)
    return loss, {"nll": safe_divide(total, own_sum)}
