"""Products with weights, and their gradients."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turned:
    """A product's weight with the axes of its results first, as a CPU multiplies few rows fastest.

    Args:
      weight: `[..., outs, ins]`.
    """

    weight: jax.Array

    @classmethod
    def of(cls, weight: jax.Array, lead: int, inputs: int) -> "Turned":
        """`[..., ins, outs]` turned; `lead` axes stand before both, `inputs` are ins."""
        ins = tuple(range(lead, lead + inputs))
        return cls(jnp.moveaxis(weight, ins, tuple(range(-inputs, 0))))

    def astype(self, dtype: DTypeLike) -> "Turned":
        return Turned(self.weight.astype(dtype))

    def __getitem__(self, key: Any) -> "Turned":
        """As all weights are read: `[...]`."""
        assert key is ...
        return self


def product(x: jax.Array, weight: "jax.Array | Turned", axes: int) -> jax.Array:
    """The last `axes` axes of `x` times the first of `weight`, or the last of a turned one."""
    if isinstance(weight, Turned):
        ins = tuple(range(-axes, 0))
        out = jnp.tensordot(weight.weight, x, (ins, ins))  # [outs, ...]
        outs = weight.weight.ndim - axes
        return jnp.moveaxis(out, tuple(range(outs)), tuple(range(-outs, 0)))
    return _product(x, weight, axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: jax.Array, weight: jax.Array, axes: int) -> jax.Array:
    """The last `axes` axes of `x` times the first of `weight`.

    As `jnp.tensordot`, but the weight's gradient is x times the cotangent. Taken the other way
    around, as JAX derives it, XLA turns the wider of the two over element by element on CPU, and
    what computes it along with that: an MLP's gradient takes half as long again.
    """
    return jnp.tensordot(x, weight, axes)


def _product_forward(x: jax.Array, weight: jax.Array, axes: int):
    return jnp.tensordot(x, weight, axes), (x, weight)


def _product_backward(axes: int, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array):
    x, weight = saved
    lead, outs = tuple(range(x.ndim - axes)), tuple(range(axes, weight.ndim))
    last = tuple(range(cotangent.ndim - len(outs), cotangent.ndim))
    d_x = jnp.tensordot(cotangent, weight, (last, outs))
    return d_x, jnp.tensordot(x, cotangent, (lead, lead))


_product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def scaled(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`x` `[B, T, ...]` times `weight`, which has the last axis alone.

    The weight's gradient is summed over rows and tokens as one axis, which XLA does several times
    as fast on CPU where there is one row.
    """
    return x * weight


def _scaled_forward(x: jax.Array, weight: jax.Array):
    return x * weight, (x, weight)


def _scaled_backward(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array):
    x, weight = saved
    slopes = cotangent * x
    if slopes.ndim > 2:
        slopes = slopes.reshape(-1, *slopes.shape[2:])
    return cotangent * weight, slopes.sum(axis=tuple(range(slopes.ndim - 1)))


scaled.defvjp(_scaled_forward, _scaled_backward)
