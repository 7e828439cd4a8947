"""Declarations of a decoder's arrays, and products with them.

Weights of products say how many of their axes are inputs, so that what lays them out anew
(`hacpo_jax.models.by_layer`) need not know them by name.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from hacpo_jax.models.again import computed_again
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.lora import DOWN, UP
from hacpo_jax.models.norm import rms_norm
from hacpo_jax.models.products import product

Axes = dict[str, int]
"""Sizes by logical axis name."""


def weight(
    rngs: nnx.Rngs,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    fan_in: int,
    inputs: int | None = None,
) -> nnx.Param:
    """Normal values of variance 1 / `fan_in`.

    Args:
      rngs: source of the values.
      shape: of the array.
      axes: logical names of its axes.
      fan_in: numbers that each result of the product adds up.
      inputs: of a layer's product, how many axes belong to what it is multiplied with.
    """
    value = jax.random.normal(rngs.params(), shape, jnp.float32) * fan_in**-0.5
    return nnx.Param(value, axes=axes, inputs=inputs)


def constant(
    value: float, shape: tuple[int, ...], axes: tuple[str, ...], inputs: int | None = None
) -> nnx.Param:
    """As `weight`, all of one value."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes, inputs=inputs)


def declare(
    module: nnx.Module, c: ModelConfig, rngs: nnx.Rngs, name: str, ins: Axes, outs: Axes
) -> None:
    """Weight `name` of all layers, from the axes `ins` to the axes `outs`, and its adapter."""
    in_shape, out_shape, inputs = tuple(ins.values()), tuple(outs.values()), len(ins)
    fan_in, layers = math.prod(in_shape), c.num_layers
    axes = ("layers", *ins, *outs)
    setattr(module, name, weight(rngs, (layers, *in_shape, *out_shape), axes, fan_in, inputs))
    if c.lora is not None and name in c.lora.targets:
        rank = c.lora.rank
        down = weight(rngs, (layers, *in_shape, rank), ("layers", *ins, "rank"), fan_in, inputs)
        up = constant(0.0, (layers, rank, *out_shape), ("layers", "rank", *outs), inputs=1)
        setattr(module, name + DOWN, down)
        setattr(module, name + UP, up)


def times(module: nnx.Module, c: ModelConfig, name: str, x: jax.Array, axes: int = 1) -> jax.Array:
    """The last `axes` axes of `x` times one layer's weight `name`, with its adapter."""

    def part(x: jax.Array, name: str, axes: int) -> jax.Array:
        return product(x, getattr(module, name)[...].astype(x.dtype), axes)

    out = part(x, name, axes)
    if c.lora is not None and name in c.lora.targets:
        out += c.lora.scale * part(part(x, name + DOWN, axes), name + UP, 1)
    return out


def times_normed(
    module: nnx.Module, c: ModelConfig, names: tuple[str, ...], x: jax.Array, norm: jax.Array
) -> list[jax.Array]:
    """`x`, normalised, times several of a layer's weights.

    A gradient keeps `x` alone, which the layer has anyway, and normalises it once more.

    Args:
      module, c, names: as in `times`.
      x: `[..., H]`.
      norm: `[H]`, see `rms_norm`.
    """

    def products(x: jax.Array, norm: jax.Array) -> list[jax.Array]:
        normed = rms_norm(x, norm, c.rms_norm_eps)
        return [times(module, c, name, normed) for name in names]

    return computed_again(products)(x, norm)
