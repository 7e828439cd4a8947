"""Gradients added to the sum of those before.

A gradient is as large as what is trained, and so is the sum. Of the embedding and of the head,
which in a small model are most of it, the gradient is never an array of its own: the backward pass
adds to the sum, row by row and block by block. Layers have theirs stacked by a loop, and it is
added once they are whole.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.models.lora import Params

TABLES = ("embedding", "head")
"""Parameters `[V, H]`."""

Loss = Callable[[Params, Params], tuple[tuple[jax.Array, Params], Any]]


def no_gradient(free: Params) -> Params:
    """Zeros: sums of many small gradients need float32 even where parameters are kept in less."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), free)


def add_gradient(loss_of: Loss, free: Params, sums: Params) -> tuple[Params, jax.Array, Any]:
    """The gradient of a loss, added up.

    Args:
      loss_of: gives of all parameters, and of the sums of tables that `log_probs_into` takes, the
        loss, those sums as that returns them, and anything else.
      free: parameters of one agent that are trained.
      sums: float32, of their shapes.

    Returns:
      The new sums, the loss, and anything else.
    """
    tables = {name: value for name, value in free.items() if name in TABLES}
    rest = {name: value for name, value in free.items() if name not in TABLES}
    of_tables = {name: sums[name] for name in tables}

    def loss_of_rest(rest: Params, totals: Params):
        return loss_of(rest | tables, totals)

    (loss, _), pull, more = jax.vjp(loss_of_rest, rest, of_tables, has_aux=True)
    gradient, of_tables = pull((jnp.ones_like(loss), of_tables))
    of_rest = jax.tree.map(jnp.add, {name: sums[name] for name in rest}, gradient)
    return of_rest | of_tables, loss, more
