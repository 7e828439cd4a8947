"""Checks of static argument properties, and the dtype in which objectives are computed."""

import jax
import jax.numpy as jnp


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError, naming the argument and its valid values, unless `value` is one."""
    if value not in choices:
        valid = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} = {value!r}: expected {valid}")


def check_shape(name: str, array: jax.Array, expected: tuple[int | None, ...]) -> None:
    """Raises ValueError unless `array` has the `expected` shape; None matches any size.

    Broadcasting would otherwise turn a [N, 1] beside a [N] into a wrong [N, N] in silence.
    """
    shape = jnp.shape(array)
    matches = len(shape) == len(expected) and all(
        want is None or size == want for size, want in zip(shape, expected, strict=True)
    )
    if not matches:
        wanted = ", ".join("any" if want is None else str(want) for want in expected)
        raise ValueError(f"{name} has shape {shape}: expected ({wanted})")


def as_float(array: jax.Array) -> jax.Array:
    """Casts to at least float32: float64 stays, bfloat16, float16, integers and bools go up."""
    array = jnp.asarray(array)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
