"""Every program of a run, compiled for devices that are not there, from shapes alone."""

import dataclasses
import re
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from hacpo_jax.agents import AgentGroup, group_agents, unread_agents
from hacpo_jax.config import Config
from hacpo_jax.errors import UserError
from hacpo_jax.parallel.chips import chip_of
from hacpo_jax.parallel.hlo import Collective, parse
from hacpo_jax.parallel.layout import Layout, local_bytes
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.plan_shapes import GroupShapes, Job
from hacpo_jax.training.places import lay_out, place
from hacpo_jax.training.run import Programs, compute_dtype, rescores


@dataclasses.dataclass(frozen=True)
class ProgramBytes:
    """Memory of one program on one device, as its compiler lays it out.

    Args:
      arguments: what the program is given.
      outputs: what it returns.
      reused: outputs that take the place of arguments.
      temporaries: what it needs in between, at the time when it needs most.
    """

    arguments: int
    outputs: int
    reused: int
    temporaries: int

    @property
    def peak(self) -> int:
        """All of it together."""
        return self.arguments + self.outputs - self.reused + self.temporaries


@dataclasses.dataclass(frozen=True)
class Planned:
    """One program of one group of agents; figures are those of one device.

    Args:
      agents: name of the group.
      program: see `Job`.
      runs: how often a step runs it.
      bytes: its memory; None where the compiler gave up because there is too little.
      beside: bytes that are on the device and are none of its arguments.
      needed: all bytes on the device while it runs.
      flops: of products of matrices, if answers are as long as they may be.
      collectives: what devices exchange.
      seconds: that compiling took.
    """

    agents: str
    program: str
    runs: int
    bytes: ProgramBytes | None
    beside: int
    needed: int
    flops: float
    collectives: tuple[Collective, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Residents:
    """Bytes of a group that stay on each of its devices between programs."""

    params: int
    optimizer: int
    reference: int
    base: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Plan:
    """All programs of a run on one topology; bytes are those of one device.

    Args:
      device: one of them.
      devices: how many there are.
      processes: that drive them.
      memory: what programs have of a device; None where nobody knows.
      meshes: of every group, by its name.
      residents: what stays of every group, by its name.
      resident: what stays of all groups, on the fullest device.
      programs: in the order of groups.
      notes: what the figures leave open.
    """

    device: Any
    devices: int
    processes: int
    memory: int | None
    meshes: Mapping[str, MeshSizes]
    residents: Mapping[str, Residents]
    resident: int
    programs: tuple[Planned, ...]
    notes: tuple[str, ...]

    def has_room(self, needed: int) -> bool:
        """Whether a device has so many bytes."""
        return self.memory is None or needed <= self.memory

    @property
    def fits(self) -> bool:
        """Whether every program finds room beside what stays."""
        return all(one.bytes is not None and self.has_room(one.needed) for one in self.programs)


def prepare_plan(config: Config, devices: Sequence[Any]) -> Programs:
    """What the programs of a run are compiled from, on other devices than those at hand.

    Args:
      config: as resolved.
      devices: those of a topology, those of a process side by side.

    Raises:
      UserError: a model is missing or not supported, or a mesh does not fit.
    """
    agents = unread_agents(config.agents, longest=config.longest_sequence)
    groups = tuple(group_agents(agents))
    dtype = compute_dtype(config.training.compute_dtype, devices[0].platform)
    try:
        _, layouts = place(config, groups, dtype, rescores(config, dtype), devices)
    except UserError as error:
        if error.field != "placement":
            raise
        layouts = lay_out(groups, devices)  # what it lacks is for the plan to show
    if devices[0].platform == "tpu":
        layouts = _on_neighbours(layouts, devices)
    return Programs(config, tuple(agents), groups, layouts, dtype)


@dataclasses.dataclass(frozen=True)
class _OnNeighbours(Layout):
    """A group's mesh of other devices than its own.

    Args:
      count: processes that drive the devices that it stands for.
    """

    count: int = 1

    @property
    def processes(self) -> int:
        return self.count


def _on_neighbours(layouts: Sequence[Layout], devices: Sequence[Any]) -> tuple[Layout, ...]:
    """Meshes of devices side by side in place of those that have some of each process's, for which
    the compiler refuses to compile without a TPU."""
    found, start = [], 0
    for layout in layouts:
        size = layout.mesh.size
        if size == len(devices):
            found.append(layout)
            continue
        chosen = np.array(devices[start : start + size], dtype=object)
        mesh = Mesh(
            chosen.reshape(layout.mesh.devices.shape),
            layout.mesh.axis_names,
            axis_types=layout.mesh.axis_types,
        )
        found.append(_OnNeighbours(mesh, layout.offload, count=layout.processes))
        start += size
    return tuple(found)


def plan(
    config: Config,
    devices: Sequence[Any],
    *,
    only: Container[tuple[str, str]] | None = None,
    tell: Callable[[str, str], None] = lambda *_: None,
) -> Plan:
    """Compile every program of a run.

    Args:
      config: as resolved.
      devices: those of a topology, those of a process side by side.
      only: names of groups and of their programs that are compiled; None is all.
      tell: called with the name of a group and of its program before that is compiled.

    Raises:
      UserError: see `prepare_plan`.
    """
    programs = prepare_plan(config, devices)
    planned = []
    for group in programs.groups:
        shapes = GroupShapes(programs, group)
        for job in shapes.jobs():
            if only is None or (group.name, job.name) in only:
                tell(group.name, job.name)
                planned.append(compile_job(shapes, job))
    return Plan(
        device=devices[0],
        devices=len(devices),
        processes=len({device.process_index for device in devices}),
        memory=device_memory(devices[0]),
        meshes={g.name: MeshSizes(**programs.layout(g).sizes) for g in programs.groups},
        residents={group.name: residents(programs, group) for group in programs.groups},
        resident=max(held_by_device(programs).values()),
        programs=tuple(planned),
        notes=tuple(_notes(programs)),
    )


def compile_job(shapes: GroupShapes, job: Job) -> Planned:
    """One program of a group, and what it needs."""
    started, beside = time.monotonic(), resident_beside(shapes, job)
    planned = Planned(shapes.group.name, job.name, job.runs, None, beside, beside, 0.0, (), 0.0)
    try:
        compiled, text = _compile(shapes, job)
    except jax.errors.JaxRuntimeError as error:
        needed = beside + _out_of_memory(error, f"{job.name} of {shapes.group.name}")
        seconds = time.monotonic() - started
        return dataclasses.replace(planned, needed=needed, seconds=seconds)
    seconds = time.monotonic() - started
    found, program = compiled.memory_analysis(), parse(text, job.turns)
    memory = ProgramBytes(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        reused=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
    )
    return dataclasses.replace(
        planned,
        bytes=memory,
        needed=beside + memory.peak,
        flops=program.flops(),
        collectives=tuple(program.collectives()),
        seconds=seconds,
    )


def _compile(shapes: GroupShapes, job: Job) -> tuple[Any, str]:
    """A compiled program and its text."""
    with shapes.layout.use(), tempfile.TemporaryDirectory() as directory:
        lowered = job.lower()
        if shapes.layout.mesh.devices.flat[0].platform != "tpu":
            compiled = lowered.compile()
            return compiled, compiled.as_text()
        # `as_text` fails where a compiler for TPUs is newer than JAX; the compiler's own files do
        # not (gathers on the sparse cores of a v5p: "async-update should have 1 operands").
        compiled = lowered.compile(
            compiler_options={"xla_dump_to": directory, "xla_dump_hlo_as_text": True}
        )
        (path,) = Path(directory).glob("*.after_optimizations.txt")
        return compiled, path.read_text(encoding="utf-8")


def _out_of_memory(error: Exception, what: str) -> int:
    """Bytes that a program would have needed which the compiler refused for its size; 0 where it
    does not tell how many.

    Raises:
      UserError: it refused for another reason.
    """
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        reason = text.strip().splitlines()[0]
        raise UserError("--topology", what, f"its compiler failed: {reason}") from error
    told = re.search(r"(?:Used |memory required[^(]*\()([\d.]+)([KMGT]?)", text)
    return int(float(told[1]) * 1024 ** " KMGT".index(told[2] or " ")) if told else 0


def residents(programs: Programs, group: AgentGroup) -> Residents:
    """What a group keeps on each of its devices."""
    shapes = GroupShapes(programs, group)
    state, kept = shapes.state, programs.keeps_reference(group)
    params = local_bytes(state.params)
    return Residents(
        params=params,
        optimizer=local_bytes(state) - params,
        reference=params if kept else 0,
        base=local_bytes(shapes.base),
    )


def resident_beside(shapes: GroupShapes, job: Job) -> int:
    """Bytes that are on a group's devices while it runs a program and that are not among the
    program's arguments."""
    programs, group = shapes.run, shapes.group
    own, devices = residents(programs, group), set(shapes.layout.mesh.devices.flat)
    others = sum(
        residents(programs, each).total
        for each, layout in zip(programs.groups, programs.layouts, strict=True)
        if each is not group and not layout.offload and devices & set(layout.mesh.devices.flat)
    )
    optimizer = 0 if job.name == "optimizer" else own.optimizer
    return others + own.reference + optimizer + job.beside


def held_by_device(programs: Programs) -> dict[Any, int]:
    """Bytes that stay of all groups, by device; none of those in host memory."""
    found: dict[Any, int] = {}
    for group, layout in zip(programs.groups, programs.layouts, strict=True):
        held = 0 if layout.offload else residents(programs, group).total
        for device in layout.mesh.devices.flat:
            found[device] = found.get(device, 0) + held
    return found


def _notes(programs: Programs) -> Iterator[str]:
    config = programs.config
    for group in programs.groups:
        shapes = GroupShapes(programs, group)
        if shapes.takes_others_tokens and group.algorithm.max_peer_tokens is None:
            yield (
                f"{group.name} takes answers of peers with other tokenizers, planned as up to "
                f"{shapes.widest()} of its own tokens; algorithm.max_peer_tokens bounds them"
            )
    if config.diagnostics.every is not None:
        yield "diagnostics keep one more gradient on the steps that they look at"
    if any(agent.warm_start for agent in programs.agents):
        yield "warm starts are not planned"


def device_memory(device: Any) -> int | None:
    """Bytes that programs have of a device; None where nobody knows.

    The compiler for TPUs keeps some for itself: it gives 15.75 GiB of the 16 of a v5e to programs.
    """
    memory = chip_of(device).memory
    return memory if memory is None or device.platform != "tpu" else memory - memory // 64
