"""What a gradient computes again instead of keeping it."""

from collections.abc import Callable
from typing import Any

import jax


def computed_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of which a gradient keeps the arguments alone.

    For what lies inside of a loop over layers: its forward and its backward pass are loops of
    their own, so no compiler can merge the two computations and keep the values after all.
    """
    return jax.checkpoint(function, prevent_cse=False)
