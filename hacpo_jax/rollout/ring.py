"""The ring that keys and values of generated tokens lie in."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from hacpo_jax.models import KeyValues, ModelConfig
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.rules import Axes, constrain

CACHE_AXES: Axes = (None, "agents", "rows", "kv_heads")
"""Of the ring, `[L, A, N · G, kv_heads, W, D]`.

Agents come second: a scan over layers would else move them there, and copy the whole cache in every
step."""


def ring_shape(model: ModelConfig, rows: tuple[int, int, int], width: int) -> tuple[int, ...]:
    """Of keys or values of answers `[A, N, G]`."""
    agents, slots, answers = rows
    return (model.num_layers, agents, slots * answers, model.num_kv_heads, width, model.head_dim)


def empty_ring(
    model: ModelConfig, dtype: jnp.dtype, rows: tuple[int, int, int], width: int, layout: Layout
) -> KeyValues:
    """Keys and values `ring_shape` on a mesh."""
    shape = ring_shape(model, rows, width)
    sharding = layout.sharding(CACHE_AXES, shape)
    return KeyValues(*(_zeros(shape, dtype, sharding) for _ in range(2)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(shape: tuple[int, ...], dtype: jnp.dtype, sharding: NamedSharding) -> jax.Array:
    """Made where they belong: a program without arguments would run on the first device."""
    return jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), sharding)


@functools.partial(jax.jit, static_argnames="width")
def resize_ring(ring: jax.Array, at: jax.Array, *, width: int) -> jax.Array:
    """Keys or values in a ring of another width, the newest of them in its first places.

    Args:
      ring: `[L, A, N · G, kv_heads, W, D]`.
      at: the place of the oldest token, where the next one would be written.
      width: of the new ring; where it is less than W, the oldest tokens are lost.

    Returns:
      `[L, A, N · G, kv_heads, width, D]`; the next token's place is `min(W, width)`.
    """
    before = ring.shape[-2]
    first = at + before - min(before, width)
    places = (first + jnp.arange(width)) % before
    return constrain(ring.at[..., places, :].get(mode="promise_in_bounds"), *CACHE_AXES)
