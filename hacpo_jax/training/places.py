"""Which devices each group of agents works on."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from hacpo_jax.agents import AgentGroup
from hacpo_jax.config import Config
from hacpo_jax.models import abstract_trained, choose_attention
from hacpo_jax.parallel.chips import chip_of
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.mesh import MeshSizes, all_devices, fit, make_mesh
from hacpo_jax.parallel.placement import Placement, choose_placement
from hacpo_jax.parallel.sizes import group_work
from hacpo_jax.training.update import LearnerState, init_state, state_axes


def lay_out(groups: Sequence[AgentGroup], devices: Sequence[Any]) -> tuple[Layout, ...]:
    """The mesh of every group, over all the devices.

    Raises:
      UserError: a mesh does not fit its agents or the devices.
    """
    return tuple(Layout(make_mesh(sizes_of(group, devices), devices)) for group in groups)


def place(
    config: Config,
    groups: Sequence[AgentGroup],
    dtype: jnp.dtype,
    rescores: bool,
    devices: Sequence[Any] | None = None,
) -> tuple[Placement, tuple[Layout, ...]]:
    """Which devices of all processes each group has, chosen by what a step would take (MWRA).

    Of every process a group has as many devices as of any other, so that answers to a problem stay
    in one process whichever agent they are from.

    Args:
      config: of the run.
      groups: the agents.
      dtype: of activations.
      rescores: whether the trainer scores own answers again.
      devices: those of a process side by side; None takes all there are.

    Raises:
      UserError: no placement, or not the one that is set, can hold the agents.
    """
    devices = all_devices() if devices is None else devices
    processes = len({device.process_index for device in devices})
    work = []
    for group in groups:
        kind = choose_attention(config.training.attention, group.model, dtype, device=devices[0])
        work.append(group_work(config, group, dtype=dtype, rescores=rescores, attention=kind))

    def sizes(g: int, count: int) -> MeshSizes | None:
        return None if count % processes else sizes_of(groups[g], _part(devices, range(count)))

    placement = choose_placement(
        work,
        len(devices),
        chip_of(devices[0]),
        sizes,
        config.placement,
        offload=any(group.mesh.offload for group in groups),
    )
    layouts = tuple(
        Layout(
            make_mesh(placed.mesh, _part(devices, placed.devices)),
            offload=group.mesh.offload and len(groups) > 1 and placement.mode == "colocated",
        )
        for group, placed in zip(groups, placement.groups, strict=True)
    )
    return placement, layouts


def _part(devices: Sequence[Any], chosen: range) -> list[Any]:
    """Those devices, counted through the processes in turn: the first of each, the second, ..."""
    processes = list(dict.fromkeys(device.process_index for device in devices))
    by_process = [[d for d in devices if d.process_index == p] for p in processes]
    start, stop = chosen.start // len(processes), chosen.stop // len(processes)
    return [device for own in by_process for device in own[start:stop]]


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
