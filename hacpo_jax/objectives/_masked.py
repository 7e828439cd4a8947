"""Statistics over the selected entries of an array, finite (gradients too) when there are none.

Entries outside the mask may hold anything, NaN and infinity included: each function replaces
them before it computes, so that neither the value nor the gradient can see them.
"""

import chex
import jax
import jax.numpy as jnp

Axis = int | tuple[int, ...] | None


def safe_divide(total: jax.Array, count: chex.Numeric) -> jax.Array:
    """`total / count`, and `total` (which is then an empty sum) where `count` is 0."""
    count = jnp.asarray(count, total.dtype)
    return total / jnp.where(count == 0, 1, count)


def masked_sum(values: jax.Array, mask: jax.Array, axis: Axis = None) -> jax.Array:
    """Sum of `values` where `mask` holds."""
    return jnp.sum(jnp.where(mask, values, 0), axis=axis)


def masked_mean(values: jax.Array, mask: jax.Array, axis: Axis = None) -> jax.Array:
    """Mean of `values` where `mask` holds, 0 where it holds nowhere."""
    return safe_divide(masked_sum(values, mask, axis), jnp.sum(mask, axis=axis))


def masked_std(values: jax.Array, mask: jax.Array, axis: int) -> jax.Array:
    """Sample standard deviation (ddof = 1) where `mask` holds; of fewer than two values, 0."""
    mean = jnp.expand_dims(masked_mean(values, mask, axis), axis)
    squares = masked_sum(jnp.square(jnp.where(mask, values - mean, 0)), mask, axis)
    variance = squares / jnp.maximum(jnp.sum(mask, axis=axis) - 1, 1)
    # The square root has an infinite slope at 0, so its argument is replaced there.
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)


def all_equal(values: jax.Array, mask: jax.Array, axis: int) -> jax.Array:
    """Whether the values where `mask` holds are the same number (fewer than two always are).

    Exact, unlike a comparison of the deviation with 0: the mean of equal numbers may be off by
    rounding, which a division by a deviation of nearly 0 would turn into a visible advantage.
    """
    largest = jnp.max(jnp.where(mask, values, -jnp.inf), axis=axis)
    smallest = jnp.min(jnp.where(mask, values, jnp.inf), axis=axis)
    return largest <= smallest
