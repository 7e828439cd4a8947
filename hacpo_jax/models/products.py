"""Products with weights, and their gradients."""

import dataclasses
import functools
import math
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

    As `jnp.tensordot`, but for the order in the weight's gradient. On CPU, XLA turns over what
    stands on the left, element by element, and what computes it along with that: where that is the
    wider of the two, as JAX has it for half of an MLP, that is much of the gradient's time.
    """
    return jnp.tensordot(x, weight, axes)


def _product_forward(x: jax.Array, weight: jax.Array, axes: int):
    return jnp.tensordot(x, weight, axes), (x, weight)


def _product_backward(axes: int, saved: tuple[jax.Array, jax.Array], cotangent: jax.Array):
    x, weight = saved
    lead, outs = tuple(range(x.ndim - axes)), tuple(range(axes, weight.ndim))
    last = tuple(range(cotangent.ndim - len(outs), cotangent.ndim))
    d_x = jnp.tensordot(cotangent, weight, (last, outs))
    if math.prod(weight.shape[:axes]) <= math.prod(weight.shape[axes:]):
        return d_x, jnp.tensordot(x, cotangent, (lead, lead))
    d_weight = jnp.tensordot(cotangent, x, (lead, lead))  # [outs, ins]
    return d_x, jnp.moveaxis(d_weight, tuple(range(len(outs))), tuple(range(-len(outs), 0)))


_product.defvjp(_product_forward, _product_backward)
