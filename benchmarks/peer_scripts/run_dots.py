"""What XLA's own products reach: python benchmarks/peer_scripts/run_dots.py ROW SHAPE.

`decode`: the products of one step of a decode, with weights as separate arguments and nothing
between them that costs. `step`: products of large square matrices.
"""

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import work

_SIDE = 2048
_CALLS = 8  # in a repetition


def main() -> None:
    given = work.arguments(__doc__)
    report = _ROWS[given.row](given)
    work.tell({"versions": f"jax {jax.__version__}", **report})


def decode(given: work.Arguments) -> dict[str, Any]:
    shape = given.shape
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = [
        (shape.hidden, queries),
        (shape.hidden, keys),
        (shape.hidden, keys),
        (queries, shape.hidden),
        (shape.hidden, shape.inner),
        (shape.hidden, shape.inner),
        (shape.inner, shape.hidden),
    ]
    layers = [[jnp.full(size, 0.01) for size in sizes] for _ in range(shape.layers)]
    table = jnp.full((shape.vocab, shape.hidden), 0.01)

    @jax.jit
    def products(x, layers, table):
        for q, k, v, o, gate, up, down in layers:
            # Keys and values have to count for something, or they would not be computed.
            seen = (x @ k).sum() + (x @ v).sum()
            x = x + 1e-3 * ((x @ q) @ o) + 1e-9 * seen
            x = x + 1e-3 * ((x @ gate + x @ up) @ down)
        return x @ table.T

    x = jnp.ones((work.DECODE.rows, shape.hidden))
    return {"products": _many(given, lambda: products(x, layers, table))}


def step(given: work.Arguments) -> dict[str, Any]:
    """Seconds of one product of two square matrices."""
    x = jnp.full((_SIDE, _SIDE), 0.01)
    square = jax.jit(jnp.matmul)
    found = _many(given, lambda: square(x, x))
    return {"product": found, "product_flops": 2 * _SIDE**3}


def _many(given: work.Arguments, call) -> list[dict[str, float]]:
    """Of one call, from several in a row: a single one may be shorter than the kernel's ticks."""
    call().block_until_ready()

    def calls() -> None:
        for _ in range(_CALLS):
            call().block_until_ready()

    found = given.timed(calls)
    return [{**one, **{name: one[name] / _CALLS for name in ("seconds", "own")}} for one in found]


_ROWS = {"decode": decode, "step": step}

if __name__ == "__main__":
    main()
