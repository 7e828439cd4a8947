"""Rotary position embedding (Su et al., arXiv 2104.09864) with the scalings that models ship."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.models.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig) -> np.ndarray:
    """Angle per position of each pair of rotated dimensions, `[rotary_dim / 2]`, float32."""
    exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float64) / config.rotary_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        longest = config.max_position_embeddings
        frequencies = _scale(frequencies, config.rope_scaling, longest)
    return frequencies.astype(np.float32)


def _scale(frequencies: np.ndarray, scaling: RopeScaling, longest: int) -> np.ndarray:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.original_max_position * frequencies / (2 * math.pi)
        span = scaling.high_freq_factor - scaling.low_freq_factor
        keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / scaling.factor)
    if scaling.kind == "longrope":
        extended = longest > scaling.original_max_position
        return frequencies / np.array(scaling.long_factors if extended else scaling.short_factors)
    raise ValueError(
        f"rope_scaling.kind = {scaling.kind!r}: must be 'linear', 'llama3' or 'longrope'"
    )


def attention_factor(scaling: RopeScaling | None) -> float:
    """What cosines and sines are multiplied with, so that attention stays as sharp when longer."""
    if scaling is None or scaling.kind != "longrope":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(scaling.factor) / math.log(scaling.original_max_position))


def rotation(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for `positions` `[B, T]`, each `[B, T, 1, rotary_dim / 2]`, float32."""
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequencies(config)
    factor = attention_factor(config.rope_scaling)
    return factor * jnp.cos(angles), factor * jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the two halves of the rotated dimensions of each head against each other.

    Args:
      x: `[B, T, heads, head_dim]`.
      cos: `[B, T, 1, rotary_dim / 2]`; the dimensions of `x` after the rotated ones stay.
      sin: the same shape.
    """
    half = cos.shape[-1]
    wide = x.astype(jnp.float32)
    first, second = wide[..., :half], wide[..., half : 2 * half]
    turned = [first * cos - second * sin, second * cos + first * sin, wide[..., 2 * half :]]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
