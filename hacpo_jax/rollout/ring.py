"""Keys and values while answers are drawn: those of prompts, and the ring of generated tokens.

Stacked layers are looped over, so that compiling takes as long for many as for few. A CPU however
copies what such a loop takes of stacked keys and weights, for every token again; so there layers
stand apart from the first token on (`DecodeSpec.for_cpu`), keys turned as products of few rows are
fastest (`benchmarks/peers.py --rows decode refill` measures what that comes to).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from hacpo_jax.models import KeyValues, ModelConfig
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.rules import Axes, constrain

Cache = KeyValues | list[KeyValues]
"""Stacked, `[L, A, rows, kv_heads, S, D]`, or of each layer without L, keys `[..., D, S]`."""

CACHE_AXES: Axes = (None, "agents", "rows", "kv_heads")
"""Of what is stacked; rows are the N prompts, or their N · G answers.

Agents come second: a scan over layers would else move them there, and copy the whole cache in every
step."""


def ring_shape(model: ModelConfig, rows: tuple[int, int, int], width: int) -> tuple[int, ...]:
    """Of keys or values of answers `[A, N, G]`, stacked."""
    agents, slots, answers = rows
    return (model.num_layers, agents, slots * answers, model.num_kv_heads, width, model.head_dim)


def empty_ring(shape: tuple[int, ...], dtype: jnp.dtype, layout: Layout, for_cpu: bool) -> Cache:
    """Keys and values `ring_shape` on a mesh."""
    return _zeros(shape, dtype, layout.sharding(CACHE_AXES, shape), for_cpu)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _zeros(shape: tuple[int, ...], dtype: jnp.dtype, sharding: NamedSharding, for_cpu: bool):
    """Made where they belong: a program without arguments would run on the first device."""
    zeros = (jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), sharding) for _ in range(2))
    cache = KeyValues(*zeros)
    return apart(cache) if for_cpu else cache


def apart(cache: KeyValues) -> list[KeyValues]:
    """A stacked cache with layers apart."""
    return [
        KeyValues(cache.keys[i].swapaxes(-1, -2), cache.values[i]) for i in range(len(cache.keys))
    ]


def as_read(cache: Cache) -> Cache:
    """A cache as a model reads it, `[..., S, D]`."""
    if isinstance(cache, KeyValues):
        return cache
    return [KeyValues(layer.keys.swapaxes(-1, -2), layer.values) for layer in cache]


def width_of(cache: Cache) -> int:
    """S, tokens that a cache has room for."""
    return (cache if isinstance(cache, KeyValues) else cache[0]).values.shape[-2]


def axes_of(array: jax.Array) -> Axes:
    """Logical axes of an array of a cache."""
    return CACHE_AXES[6 - array.ndim :]


def token_axes(cache: Cache) -> list[int]:
    """The axis S of every array of a cache, in the order of its leaves."""
    return [-2, -2] if isinstance(cache, KeyValues) else [-1, -2] * len(cache)


@functools.partial(jax.jit, static_argnames=("width", "axis"))
def resize_ring(ring: jax.Array, at: jax.Array, *, width: int, axis: int) -> jax.Array:
    """One array of a ring in one of another width, the newest tokens in its first places.

    Args:
      ring: keys or values.
      at: the place of the oldest token, where the next one would be written.
      width: of the new ring; where it is less than W, the oldest tokens are lost.
      axis: of the W tokens.

    Returns:
      The same with `width` tokens; the next token's place is `min(W, width)`.
    """
    before = ring.shape[axis]
    first = at + before - min(before, width)
    places = (first + jnp.arange(width)) % before
    return constrain(jnp.take(ring, places, axis=axis, mode="clip"), *axes_of(ring))


def write(ring: Cache, new: Any, at: jax.Array, tokens: jax.Array) -> Cache:
    """The ring with one token's keys and values of each answer.

    Args:
      ring: of generated tokens.
      new: `[L, A, N · G, kv_heads, D]`, or a list of layers.
      at: the place in the ring.
      tokens: what has been drawn, none below 0.
    """
    if isinstance(ring, KeyValues):
        return jax.tree.map(functools.partial(_put, at=at, axis=-2), ring, new)
    # The place depends on the tokens, which do not change it: so XLA sees that the ring is written
    # after all layers have read it, and does not copy each.
    at += (tokens < 0).any()
    return [
        KeyValues(_put(each.keys, one.keys, at, -1), _put(each.values, one.values, at, -2))
        for each, one in zip(ring, new, strict=True)
    ]


def _put(ring: jax.Array, new: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    update = constrain(jnp.expand_dims(new.astype(ring.dtype), axis), *axes_of(ring))
    return jax.lax.dynamic_update_slice_in_dim(ring, update, at, axis=ring.ndim + axis)
