"""Arrays of which every process holds a part."""

import io
from collections.abc import Mapping, Sequence

import numpy as np

from hacpo_jax.parallel.hosts import Hosts

Arrays = dict[str, np.ndarray]


def gather_arrays(hosts: Hosts, name: str, arrays: Mapping[str, np.ndarray]) -> list[Arrays]:
    """Every process's arrays, in their order.

    Args:
      hosts: all processes, each of which calls this with the same `name`.
      name: of this exchange; unique in the run.
      arrays: of numbers, by names that are the same in every process.
    """
    if hosts.count == 1:
        return [dict(arrays)]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    found = []
    for content in hosts.gather(name, buffer.getvalue()):
        with np.load(io.BytesIO(content), allow_pickle=False) as parts:
            found.append({key: parts[key] for key in arrays})
    return found


def whole(hosts: Hosts, name: str, arrays: Mapping[str, np.ndarray], owners: np.ndarray) -> Arrays:
    """Arrays `[A, P, ...]` of all problems.

    Args:
      hosts: all processes.
      name: of this exchange.
      arrays: `[A, p, ...]` of this process's problems, in order.
      owners: `[P]` the process that has each problem.
    """
    parts = gather_arrays(hosts, name, arrays)
    return {key: interleave([part[key] for part in parts], owners) for key in arrays}


def interleave(parts: Sequence[np.ndarray], owners: np.ndarray) -> np.ndarray:
    """`[A, P, ...]` from each process's `[A, p, ...]`."""
    first = parts[0]
    out = np.zeros((first.shape[0], len(owners), *first.shape[2:]), first.dtype)
    for process, part in enumerate(parts):
        out[:, owners == process] = part
    return out
