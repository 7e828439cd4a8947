"""Rotary position embedding (Su et al., arXiv 2104.09864) with the scalings that models ship."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.models.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig) -> np.ndarray:
    """Angle per position of each pair of head dimensions, `[head_dim / 2]`, float32."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = _scale(frequencies, config.rope_scaling)
    return frequencies.astype(np.float32)


def _scale(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.original_max_position * frequencies / (2 * math.pi)
        span = scaling.high_freq_factor - scaling.low_freq_factor
        keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / scaling.factor)
    raise ValueError(f"rope_scaling.kind = {scaling.kind!r}: must be 'linear' or 'llama3'")


def rotation(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for `positions` `[B, T]`, each `[B, T, 1, head_dim / 2]`, float32."""
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the two halves of each head of `x` `[B, T, heads, head_dim]` against each other."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
