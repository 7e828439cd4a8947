"""One group's place: arrays go onto its mesh and come back."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from hacpo_jax.parallel.mesh import MeshSizes, make_mesh
from hacpo_jax.parallel.rules import GATHERED, Axes, partition_spec


@dataclasses.dataclass(frozen=True)
class Layout:
    """The mesh of one group of agents.

    Args:
      mesh: with the axes `hacpo_jax.parallel.rules.AXES`.
      offload: what the group keeps lies in host memory while it is not used.
    """

    mesh: Mesh
    offload: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.mesh.shape)

    @property
    def rows(self) -> int:
        """Parts that the rows of a batch are cut into."""
        return self.sizes["data"] * self.sizes["fsdp"]

    @property
    def processes(self) -> int:
        """Processes that drive the mesh; each holds as many rows as any other."""
        return len({device.process_index for device in self.mesh.devices.flat})

    @property
    def local_rows(self) -> int:
        """Parts of the rows that this process holds."""
        return self.rows // self.processes

    @property
    def row_owners(self) -> np.ndarray:
        """`[rows]`, the process that holds each part of the rows."""
        if self.processes == 1:
            return np.zeros(self.rows, int)
        return np.array([device.process_index for device in self.mesh.devices[0, :, :, 0].flat])

    def mine(self, count: int) -> np.ndarray:
        """Which of `count` things this process takes: every H-th, so that any run of them is
        spread over all H processes."""
        return np.arange(jax.process_index() if self.processes > 1 else 0, count, self.processes)

    @property
    def is_one_cpu(self) -> bool:
        """Whether all of it is one CPU; several stand for accelerators, in tests and plans."""
        return self.mesh.size == 1 and self.mesh.devices.flat[0].platform == "cpu"

    def padded(self, count: int) -> int:
        """Rows of this process to hold `count` of them: as many for each of its devices."""
        return -(-count // self.local_rows) * self.local_rows

    def use(self) -> AbstractContextManager:
        """Within it, `hacpo_jax.parallel.rules` lay arrays over this mesh."""
        return jax.set_mesh(self.mesh)

    def sharding(self, axes: Axes, shape, memory_kind: str | None = None) -> NamedSharding:
        """How an array of that shape lies on the mesh; see `partition_spec`."""
        spec = partition_spec(axes, shape, self.sizes)
        return NamedSharding(self.mesh, spec, memory_kind=memory_kind)

    def shardings(self, shapes: Any, axes: Any, lead: Axes = (), memory_kind: str | None = None):
        """How the arrays of a tree lie on the mesh.

        Args:
          shapes: a tree of arrays or of their shapes.
          axes: the same tree of logical names of axes.
          lead: logical names that every array has before its own.
          memory_kind: which memory of the devices; None is their own.
        """
        return jax.tree.map(
            lambda x, names: self.sharding((*lead, *names), x.shape, memory_kind), shapes, axes
        )

    def abstract(self, shapes: Any, axes: Any, lead: Axes = ()) -> Any:
        """Shapes of a tree of arrays that are kept as their axes say."""
        kind = "pinned_host" if self.offload else None
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            self.shardings(shapes, axes, lead, kind),
        )

    def abstract_gathered(self, shapes: Any, axes: Any, dtype: Any, lead: Axes = ()) -> Any:
        """Shapes of a tree of weights in `dtype` as decoding uses them, whole but for `tensor`."""

        def one(x: jax.ShapeDtypeStruct, names: Axes) -> jax.ShapeDtypeStruct:
            spec = partition_spec((*lead, *names), x.shape, self.sizes, GATHERED)
            sharding = NamedSharding(self.mesh, spec)
            return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

        return jax.tree.map(one, shapes, axes)

    def keep(self, tree: Any) -> Any:
        """Arrays where they wait for the group's next turn."""
        return _moved(tree, "pinned_host") if self.offload else tree

    def take(self, tree: Any) -> Any:
        """Arrays that `keep` has put away, where programs use them."""
        return _moved(tree, "device") if self.offload else tree

    def abstract_array(self, shape: Sequence[int], dtype: Any, *axes: str | None) -> Any:
        """Shape of one array that lies on the mesh as `put` would lay it."""
        sharding = self.sharding(axes, shape)
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)

    def make(self, function: Callable, axes: Any, lead: Axes = ()) -> Callable:
        """`function`, compiled so that the tree it returns lies on the mesh as its axes say."""

        def made(*args):
            shapes = jax.eval_shape(function, *args)
            return jax.jit(function, out_shardings=self.shardings(shapes, axes, lead))(*args)

        return made

    def stacked(self, members: Sequence[Any], axes: Any) -> Any:
        """One tree of arrays `[A, ...]` of the trees of all agents of a group."""

        def stack(*members):
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)

        return self.make(stack, axes, lead=("agents",))(*members)

    def put(self, tree: Any, *axes: str | None) -> Any:
        """Host arrays as arrays of all processes.

        Args:
          tree: of numpy arrays. Their axis `rows` holds this process's part, a multiple of
            `local_rows`; the rest is the same in every process.
          axes: see `partition_spec`; the same for all.
        """

        def one(x) -> jax.Array:
            x = np.asarray(x)
            shape = list(x.shape)
            if "rows" in axes:
                shape[axes.index("rows")] *= self.processes
            sharding = self.sharding(axes, shape)
            if self.processes == 1:
                return jax.device_put(x, sharding)
            return jax.make_array_from_process_local_data(sharding, x, tuple(shape))

        return jax.tree.map(one, tree)

    def place(self, array: np.ndarray, axes: Axes) -> jax.Array:
        """A whole host array, the same in every process, laid over the mesh as its axes say."""
        sharding = self.sharding(axes, array.shape)
        if self.processes == 1:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def local_bytes(tree: Any) -> int:
    """Bytes of a tree of shapes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def _moved(tree: Any, memory_kind: str) -> Any:
    def one(x: jax.Array) -> jax.Array:
        return jax.device_put(x, x.sharding.with_memory_kind(memory_kind))

    return jax.tree.map(one, tree)


@functools.cache
def one_device() -> Layout:
    """The first device of this process alone."""
    return Layout(make_mesh(MeshSizes(), jax.local_devices()[:1]))


def fetch(tree: Any) -> Any:
    """Arrays as numpy: of those that lie on several processes, what this process holds.

    That part must be one block, as this process's rows of a batch are.
    """
    jax.block_until_ready(tree)
    return jax.tree.map(_fetch_one, tree)


def _fetch_one(x: Any) -> np.ndarray:
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return np.asarray(x)
    if x.is_fully_replicated:
        return np.asarray(x.addressable_data(0))
    # Blocks by where each starts; copies of a block count once.
    blocks = {
        tuple(part.start or 0 for part in shard.index): shard.data for shard in x.addressable_shards
    }
    first = np.min(list(blocks), axis=0)
    end = np.max([np.add(start, block.shape) for start, block in blocks.items()], axis=0)
    out = np.empty(end - first, x.dtype)
    for start, block in blocks.items():
        place = zip(np.subtract(start, first), block.shape, strict=True)
        out[tuple(slice(a, a + n) for a, n in place)] = np.asarray(block)
    return out
