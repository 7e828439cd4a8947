"""How the loop over tokens holds what it reads and writes in every turn.

Stacked layers are looped over, so that compiling takes as long for many as for few. A CPU however
copies what such a loop takes of stacked weights and keys, for every token again; so there layers
stand apart (`DecodeSpec.for_cpu`), weights and keys turned as products of few rows are fastest
(`benchmarks/peers.py --rows decode` measures what that comes to).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.models import KeyValues
from hacpo_jax.models.by_layer import layers_first
from hacpo_jax.models.lora import agent_axes
from hacpo_jax.parallel.rules import constrain
from hacpo_jax.rollout.ring import CACHE_AXES

Cache = KeyValues | list[KeyValues]
"""Stacked, or of each layer with keys `[..., D, W]`."""


def lay(weights, layers: list | None, prompts: KeyValues, ring: KeyValues):
    """What all tokens of a segment are computed with.

    Args:
      weights: of the agents, `[A, ...]`.
      layers: weights of each layer; None to loop over them.
      prompts: keys and values of the prompts.
      ring: of generated tokens.

    Returns:
      The same, and the axis of agents in each as `jax.vmap` takes them.
    """
    if layers is None:
        weights, axes = layers_first(weights)
        return (weights, None, prompts, ring), (axes, None, 1, 1)
    axis = agent_axes(weights)
    return (weights, layers, _apart(prompts), _apart(ring)), (axis, [axis] * len(layers), 0, 0)


def as_read(cache: Cache) -> Cache:
    """A cache as a model reads it."""
    if isinstance(cache, KeyValues):
        return cache
    return [KeyValues(layer.keys.swapaxes(-1, -2), layer.values) for layer in cache]


def write(ring: Cache, new: Any, at: jax.Array, tokens: jax.Array) -> Cache:
    """The ring with one token's keys and values of each answer.

    Args:
      ring: `[L, A, N · G, kv_heads, W, D]`, or a list of layers.
      new: `[L, A, N · G, kv_heads, D]`, or a list.
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


def stacked(ring: Cache) -> KeyValues:
    """The ring as programs hand it on."""
    read = as_read(ring)
    if isinstance(read, KeyValues):
        return read
    return jax.tree.map(lambda *layers: jnp.stack(layers), *read)


def _apart(cache: KeyValues) -> list[KeyValues]:
    """Layers apart, keys `[..., D, W]`."""
    return [
        KeyValues(cache.keys[i].swapaxes(-1, -2), cache.values[i]) for i in range(len(cache.keys))
    ]


def _put(ring: jax.Array, new: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    update = jnp.expand_dims(new.astype(ring.dtype), axis)
    update = constrain(update, *CACHE_AXES[6 - ring.ndim :])
    return jax.lax.dynamic_update_slice_in_dim(ring, update, at, axis=ring.ndim + axis)
