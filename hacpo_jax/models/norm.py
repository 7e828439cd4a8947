"""Root mean square normalisation, and its gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Divide by the root mean square over the last axis, in float32 (arXiv 1910.07467).

    The gradient is written by hand for the sake of CPUs, where XLA is slow at sums of products over
    one of several axes: they are dot products here, and the weight's gradient is summed over rows
    and tokens as one axis.

    Args:
      x: `[..., D]`.
      weight: `[D]`, which the normalised `x` is multiplied with.
      eps: added to the mean square.

    Returns:
      `[..., D]` in the dtype of `x`.
    """
    found: Any = _rms_norm(x, weight, eps)
    return found


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return _forward(x, weight, eps)[0]


def _forward(x: jax.Array, weight: jax.Array, eps: float):
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight.astype(x.dtype), (x, weight, scale)


def _backward(eps: float, saved: tuple[jax.Array, ...], cotangent: jax.Array):
    x, weight, scale = saved
    normed = x.astype(jnp.float32) * scale
    slopes = cotangent * normed.astype(x.dtype)
    if slopes.ndim > 2:
        slopes = slopes.reshape(-1, *slopes.shape[2:])
    d_normed = (cotangent * weight.astype(x.dtype)).astype(jnp.float32)
    exact = jax.lax.Precision.HIGHEST
    along = jnp.einsum("...d,...d->...", d_normed, normed, precision=exact)[..., None]
    d_x = scale * (d_normed - normed * (along / x.shape[-1]))
    d_weight = slopes.sum(axis=tuple(range(slopes.ndim - 1)))
    return d_x.astype(x.dtype), d_weight.astype(weight.dtype)


_rms_norm.defvjp(_forward, _backward)
