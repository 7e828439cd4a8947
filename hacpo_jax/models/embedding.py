"""Rows of the embedding, and their gradient."""

import functools

import jax
import jax.numpy as jnp

from hacpo_jax.parallel.rules import constrain


def embed(table: jax.Array, tokens: jax.Array, gathered: bool = False) -> jax.Array:
    """Rows of the table `[V, H]`, `[..., H]`.

    Both the rows of the batch and H lie over `fsdp`. Each device looks up its part of H for all of
    the tokens along `fsdp`, and the parts change places: so the table is never gathered. Where it
    is gathered already, each device looks up its own tokens: else a compiler would lay the table
    over `fsdp` after all, and gather it for the head in every step of a decode.
    """
    if gathered:
        return constrain(table[constrain(tokens, "rows")], "rows")
    tokens = constrain(tokens, "data_rows")
    found = constrain(table[tokens], "data_rows", None, "embed")
    return constrain(found, "rows")


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def embed_into(
    table: jax.Array, tokens: jax.Array, total: jax.Array, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """`embed` in `dtype`, with a gradient that is added to a sum that is there already.

    The table itself gets none. `total` `[V, H]` float32 passes through as it is, and so does its
    cotangent, with the table's gradient added in place: started with a sum of gradients, what
    comes out as gradient by `total` is that sum with this one. A gradient of its own would be one
    more array as large as the table.
    """
    return embed(table.astype(dtype), tokens), total


def _forward(table: jax.Array, tokens: jax.Array, total: jax.Array, dtype: jnp.dtype):
    return (embed(table.astype(dtype), tokens), total), tokens


def _backward(dtype: jnp.dtype, tokens: jax.Array, cotangents: tuple[jax.Array, jax.Array]):
    d_rows, total = cotangents
    d_rows = constrain(constrain(d_rows, "rows"), "data_rows", None, "embed")
    tokens = constrain(tokens, "data_rows")
    total = total.at[tokens].add(d_rows.astype(total.dtype))
    return None, None, constrain(total, "vocab", "embed")


embed_into.defvjp(_forward, _backward)
