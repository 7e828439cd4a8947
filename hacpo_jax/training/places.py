"""Which devices each group of agents works on."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.typing import DTypeLike

from hacpo_jax.agents import AgentGroup
from hacpo_jax.models import abstract_trained
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.mesh import MeshSizes, all_devices, fit, make_mesh
from hacpo_jax.training.update import LearnerState, init_state, state_axes


def lay_out(
    groups: Sequence[AgentGroup], devices: Sequence[Any] | None = None
) -> tuple[Layout, ...]:
    """The mesh of every group, over the given devices, or all devices of all processes.

    Raises:
      UserError: a mesh does not fit its agents or the devices.
    """
    devices = all_devices() if devices is None else devices
    return tuple(Layout(make_mesh(sizes_of(group, devices), devices)) for group in groups)


def sizes_of(group: AgentGroup, devices: Sequence[Any]) -> MeshSizes:
    """The mesh of a group on some devices, as its config has it."""
    return fit(
        group.mesh,
        group.model,
        len(group.agents),
        len(devices),
        num_processes=len({device.process_index for device in devices}),
        field=f"mesh of {group.name}",
    )


def alone(layout: Layout) -> Layout:
    """The same devices for one agent: those of `agent` hold more rows."""
    _, data, fsdp, tensor = layout.mesh.devices.shape
    sizes = MeshSizes(1, layout.mesh.size // (fsdp * tensor), fsdp, tensor)
    devices = sorted(layout.mesh.devices.flat, key=lambda d: (d.process_index, d.id))
    return layout if sizes.data == data else Layout(make_mesh(sizes, devices))


def abstract_learner(
    layout: Layout, group: AgentGroup, dtype: DTypeLike, total_updates: int
) -> LearnerState:
    """Shapes `[A, ...]` of a group's state and where they lie."""

    def stacked(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(group.agents), *x.shape), dtype)

    params = jax.tree.map(stacked, abstract_trained(group.model))
    fresh = functools.partial(init_state, optimizer=group.optimizer, total_updates=total_updates)
    shapes = jax.eval_shape(fresh, params)
    return layout.abstract(shapes, state_axes(group.model, group.optimizer), lead=("agents",))
