"""Divisors of the losses, counted over a whole mini-batch.

A mini-batch that is processed in micro-batches or shards needs one common divisor: counts of the
parts are summed (over micro-batches, or with `jax.lax.psum` over shards) and passed to the loss
as `normalizer`. The losses of the parts then sum to the loss of the whole.
"""

import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_shape
from hacpo_jax.objectives._masked import masked_sum


def nonempty(mask: jax.Array) -> jax.Array:
    """Which rows of `mask` [N, T] have a token, bool [N]."""
    return jnp.any(mask != 0, axis=-1)


def count_tokens(mask: jax.Array) -> jax.Array:
    """Number of tokens in `mask` [N, T], int32: the divisor of `grpo_loss` over "tokens"."""
    return jnp.sum(mask != 0, dtype=jnp.int32)


def count_sequences(mask: jax.Array) -> jax.Array:
    """Number of rows of `mask` [N, T] with a token, int32.

    The divisor of `gspo_loss`, of `grpo_loss` over "sequences", and of `kl_penalty`.
    """
    return jnp.sum(nonempty(mask), dtype=jnp.int32)


def count_sequences_per_source(mask: jax.Array, source: jax.Array, *, num_agents: int) -> jax.Array:
    """Number of rows with a token from each source, int32 [A]: the divisors of `hacpo_loss`.

    Args:
      mask: [N, T], nonzero on response tokens.
      source: [N], index of the agent that sampled the row.
      num_agents: A, static.
    """
    return jnp.sum(source_members(mask, source, num_agents), axis=0, dtype=jnp.int32)


def sum_weights(mask: jax.Array, weight: jax.Array) -> jax.Array:
    """Sum of `weight` [N] over the rows of `mask` [N, T] with a token: for `transfer_loss`."""
    check_shape("weight", weight, mask.shape[:1])
    return masked_sum(as_float(weight), nonempty(mask))


def source_members(mask: jax.Array, source: jax.Array, num_agents: int) -> jax.Array:
    """bool [N, A]: row n has a token and comes from agent a."""
    check_shape("mask", mask, (None, None))
    check_shape("source", source, mask.shape[:1])
    return (source[:, None] == jnp.arange(num_agents)) & nonempty(mask)[:, None]
