"""Shapes of what the programs of a rollout are given, as they lie on the mesh of a group."""

from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.models import KeyValues
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.rollout.decode import (
    ROW_AXES,
    DecodeSpec,
    Prompts,
    Rows,
)
from hacpo_jax.rollout.engine import Chunk
from hacpo_jax.rollout.ring import CACHE_AXES, ring_shape


class SlotShapes:
    """Of N slots with G answers each.

    Args:
      layout: where.
      spec: what is static.
      agents: A, of the group.
      chunk: what is decoded at a time.
    """

    def __init__(self, layout: Layout, spec: DecodeSpec, agents: int, chunk: Chunk):
        self._array, self._spec = layout.abstract_array, spec
        self._rows = (agents, chunk.prompts * layout.processes, chunk.samples)

    def asked(self, width: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What `prefill` is given beside weights, for prompts `width` tokens wide."""
        slots, array = self._rows[1], self._array
        return (
            array((slots, width), jnp.int32, "rows"),
            array((slots,), jnp.int32, "rows"),
            self._keys(),
            array((slots,), jnp.bool_, "rows"),
        )

    def prompts(self, width: int) -> Prompts:
        """See `hacpo_jax.rollout.decode.Prompts`."""
        agents, slots, _ = self._rows
        c = self._spec.model
        shape = (c.num_layers, agents, slots, c.num_kv_heads, width, c.head_dim)
        half = self._array(shape, self._spec.dtype, *CACHE_AXES)
        lengths = self._array((slots,), jnp.int32, "rows")
        return Prompts(KeyValues(half, half), lengths, self._keys())

    def rows(self) -> Rows:
        """See `hacpo_jax.rollout.decode.Rows`."""
        array, shape = self._array, self._rows
        return Rows(
            newest=array(shape, jnp.int32, *ROW_AXES),
            stopped=array(shape, jnp.bool_, *ROW_AXES),
            drawn=array(shape[1:2], jnp.int32, "rows"),
        )

    def ring(self, width: int) -> KeyValues:
        """Keys and values of generated tokens in a ring of that width."""
        shape = ring_shape(self._spec.model, self._rows, width)
        half = self._array(shape, self._spec.dtype, *CACHE_AXES)
        return KeyValues(half, half)

    def _keys(self) -> Any:
        like = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        return self._array((*self._rows, *like.shape), like.dtype, *ROW_AXES)
