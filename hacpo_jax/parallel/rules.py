"""Which mesh axes hold which logical axes; every array names its logical axes once.

Parameters name theirs in `hacpo_jax.models.decoder`, activations where they are made. Rows of a
batch are spread over `data` and `fsdp` together, as in ZeRO (arXiv 1910.02054); heads, the inner
axis of the MLP and the vocabulary over `tensor`, as in Megatron (arXiv 1909.08053).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

AXES = ("agent", "data", "fsdp", "tensor")
"""Of every mesh, outermost first."""

RULES: dict[str, tuple[str, ...]] = {
    "agents": ("agent",),
    "rows": ("data", "fsdp"),
    "data_rows": ("data",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "layers": (),
    "head_dim": (),
    "rank": (),
}

GATHERED = RULES | {"embed": ()}
"""For weights that are used once a token: held whole but for `tensor`, since gathering them every
time would cost more than the token."""

Axes = Sequence[str | None]


def partition_spec(
    axes: Axes,
    shape: Sequence[int],
    sizes: Mapping[str, int],
    rules: Mapping[str, tuple[str, ...]] = RULES,
) -> PartitionSpec:
    """How an array is laid over a mesh.

    Args:
      axes: a logical name of each leading axis, or None; axes beyond them are whole everywhere.
      shape: of the array. An axis that its mesh axes do not divide is whole everywhere: key and
        value heads fewer than `tensor`, or a handful of rows. For the other axes of parameters
        `hacpo_jax.parallel.mesh.fit` has refused such a mesh.
      sizes: of the mesh, by axis.
      rules: which mesh axes hold a logical axis.
    """
    entries = []
    for name, length in zip(axes, shape, strict=False):
        chosen = () if name is None else rules[name]
        divides = length % math.prod(sizes[axis] for axis in chosen) == 0
        entries.append(chosen if chosen and divides else None)
    return PartitionSpec(*entries)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """`x`, laid over the mesh that is set, if one of several devices is.

    Args:
      x: any array.
      axes: see `partition_spec`. Under `vmap` the mapped axis is not among them.
    """
    sizes = current_mesh()
    if sizes is None:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, sizes))


def constrain_tree(
    tree: Any, axes: Any, rules: Mapping[str, tuple[str, ...]] = RULES, lead: Axes = ()
) -> Any:
    """A tree of arrays, each laid over the mesh that is set as its axes say.

    Args:
      tree: of arrays.
      axes: the same tree of tuples of logical names.
      rules: which mesh axes hold a logical axis.
      lead: logical names that every array has before its own.
    """
    sizes = current_mesh()
    if sizes is None:
        return tree

    def one(x: jax.Array, names: Axes) -> jax.Array:
        spec = partition_spec((*lead, *names), x.shape, sizes, rules)
        return jax.lax.with_sharding_constraint(x, spec)

    return jax.tree.map(one, tree, axes)


def current_mesh() -> Mapping[str, int] | None:
    """Sizes by axis of the mesh that `jax.set_mesh` has set; None where that is one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 else dict(mesh.shape)


def num_shards(name: str, length: int) -> int:
    """In how many parts an axis of that name and length lies on the mesh that is set."""
    sizes = current_mesh()
    if sizes is None:
        return 1
    parts = math.prod(sizes[axis] for axis in RULES[name])
    return parts if length % parts == 0 else 1


def over_agents(function: Callable, in_axes: Any = 0, out_axes: Any = 0) -> Callable:
    """`function` of one agent, for all agents of a group, each on its part of the mesh.

    An agent alone on one device is not mapped: XLA copies an array to move an axis of one element.
    """
    mapped = jax.vmap(function, in_axes=in_axes, out_axes=out_axes, spmd_axis_name="agent")

    def run(*arguments):
        if current_mesh() is not None or _agents(arguments, in_axes) != 1:
            return mapped(*arguments)
        found = function(*_along(in_axes, jnp.squeeze, arguments))
        return _along(out_axes, jnp.expand_dims, found)

    return run


def _agents(arguments: Any, in_axes: Any) -> int:
    """How many agents some arguments of a mapped function belong to."""
    lengths = jax.tree.leaves(_along(in_axes, lambda x, axis: x.shape[axis], arguments))
    return max(length for length in lengths if isinstance(length, int))


def _along(axes: Any, change: Callable[[Any, int], Any], tree: Any) -> Any:
    """Change every array of a tree that `axes`, as `jax.vmap` takes them, name an axis of."""

    def nothing(x: Any) -> bool:
        return x is None

    return jax.tree.map(
        lambda axis, x: x if axis is None else change(x, axis),
        jax.tree.broadcast(axes, tree, is_leaf=nothing),
        tree,
        is_leaf=nothing,
    )
