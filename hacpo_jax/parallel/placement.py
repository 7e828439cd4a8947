"""MWRA: whether groups take turns on all devices, or each has devices of its own.

`colocated`: every group uses the whole mesh while the others wait. `partitioned`: the devices are
divided, and groups answer, and later learn, at the same time. All answers have to be there before
any is shared, so a partitioned step takes the slowest group's answering plus the slowest group's
learning; a colocated one takes the sum of all.

Many devices do not help where a phase does not get shorter: a decode step reads all weights on
every device however few answers it has, links and layers' starts take their time, and a device
without a row of its own waits. That is what partitioning saves. What it loses is balance.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from rich.table import Table

from hacpo_jax.errors import UserError
from hacpo_jax.parallel.chips import GIB, Chip
from hacpo_jax.parallel.estimate import StepFlops, step_flops
from hacpo_jax.parallel.memory import GroupBytes, group_bytes
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.rules import AXES
from hacpo_jax.parallel.sizes import GroupWork
from hacpo_jax.parallel.timing import GroupSeconds, group_seconds, move_seconds

Mode = Literal["colocated", "partitioned"]

MEMORY_SHARE = 0.9
"""Of a device's memory that arrays may fill; the rest is the runtime's, and the estimate's error.
An assumption."""

Layout = Callable[[int, int], MeshSizes | None]
"""From the number of a group and of its devices to its mesh; None, or a UserError, where the group
cannot be laid out on so many."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """One group on its devices.

    Args:
      work: the group.
      devices: which ones, of all.
      mesh: how they are arranged.
      flops: of one of its agents in one step, on all devices together.
      seconds: of one step.
      memory: bytes on each device.
    """

    work: GroupWork
    devices: range
    mesh: MeshSizes
    flops: StepFlops
    seconds: GroupSeconds
    memory: GroupBytes


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where every group runs.

    Args:
      mode: how devices are shared.
      groups: in the order given.
      seconds: of one step, answers' verification left out.
      device_bytes: on the fullest device.
      chip: each device.
      offload: state lies in host memory between turns.
      reason: why this mode, in words.
    """

    mode: Mode
    groups: tuple[Placed, ...]
    seconds: float
    device_bytes: int
    chip: Chip
    offload: bool
    reason: str

    def table(self) -> Table:
        """One row per agent: work in a step, seconds, bytes per device, devices."""
        table = Table(
            "agent",
            "devices",
            "mesh",
            "rollout",
            "scoring",
            "update",
            "state",
            "peak",
            title=f"placement: {self.mode}",
            caption=f"{self.reason}; {self.chip.name}, {_memory(self.chip)} each",
        )
        for placed in self.groups:
            for agent in placed.work.agents:
                table.add_row(agent, *_cells(placed))
        return table


def choose_placement(
    groups: Sequence[GroupWork],
    num_devices: int,
    chip: Chip,
    layout: Layout,
    setting: Literal["auto", "colocated", "partitioned"] = "auto",
    *,
    offload: bool = False,
) -> Placement:
    """The faster placement that fits, or the one that is asked for.

    Args:
      groups: their work, at least one.
      num_devices: all of one kind.
      chip: that kind.
      layout: the mesh of a group on some devices.
      setting: `placement` of the config.
      offload: colocated groups keep their state in host memory while others have their turn.

    Returns:
      The placement, with the reason.

    Raises:
      UserError: nothing fits, naming `placement` and the agent.
    """
    candidates = {
        "colocated": lambda: _colocated(groups, num_devices, chip, layout, offload),
        "partitioned": lambda: _partitioned(groups, num_devices, chip, layout),
    }
    if setting != "auto":
        return _explained(candidates[setting](), "as set")
    if len(groups) == 1:
        return _explained(candidates["colocated"](), "one group has all devices")
    found: list[Placement] = []
    errors: list[UserError] = []
    refused: list[str] = []
    for mode, make in candidates.items():
        try:
            found.append(make())
        except UserError as error:
            # A layout's own error names another field.
            why = error.remedy if error.field == "placement" else str(error)
            refused.append(f"{mode} cannot be: {why}")
            errors.append(error)
    if not found:
        if errors[0].field != "placement" and str(errors[0]) in str(errors[1]):
            raise errors[0]  # no placement would mend it
        raise UserError("placement", setting, "; ".join(refused))
    # Of two that take the same time, the first: it leaves no device to one group only.
    best = min(found, key=lambda placement: placement.seconds)
    if refused:
        return _explained(best, refused[0])
    other = max(found, key=lambda placement: placement.seconds)
    times = f"about {_seconds(best.seconds)} a step, {_seconds(other.seconds)} otherwise"
    return _explained(best, times)


def _explained(placement: Placement, reason: str) -> Placement:
    return dataclasses.replace(placement, reason=f"{reason}{placement.reason}")


def _colocated(
    groups: Sequence[GroupWork], num_devices: int, chip: Chip, layout: Layout, offload: bool
) -> Placement:
    """Every group on all devices in turn."""
    placed = []
    for g, work in enumerate(groups):
        mesh = layout(g, num_devices)
        if mesh is None:
            remedy = f"agent {work.name} cannot be laid out on {num_devices} devices"
            raise UserError("placement", "colocated", f"{remedy}; change the mesh")
        placed.append(_place(work, range(num_devices), mesh, chip))
    if offload and len(groups) > 1:
        placed = [
            dataclasses.replace(
                one,
                seconds=dataclasses.replace(one.seconds, moves=move_seconds(one.memory.state)),
            )
            for one in placed
        ]
        needed = max(one.memory.peak for one in placed)
    else:
        states = sum(one.memory.state.total for one in placed)
        needed = states + max(one.memory.transient for one in placed)
    if not _fits(needed, chip):
        largest = max(placed, key=lambda one: one.memory.peak)
        who = f"agent {largest.work.name} needs"
        if len(placed) > 1 and not offload:
            states = ", ".join(f"{one.work.name} {_size(one.memory.state.total)}" for one in placed)
            who = f"agents together (state of {states}) need"
        raise _too_large("colocated", who, needed, largest, chip, offload=not offload)
    seconds = sum(one.seconds.total for one in placed)
    return Placement("colocated", tuple(placed), seconds, needed, chip, offload, "")


def _partitioned(
    groups: Sequence[GroupWork], num_devices: int, chip: Chip, layout: Layout
) -> Placement:
    """Disjoint devices for every group, so that the slowest is as fast as can be."""
    most = num_devices - len(groups) + 1
    if most < 1:
        remedy = f"{len(groups)} groups of agents need a device each and there are {num_devices}"
        raise UserError("placement", "partitioned", f"{remedy}; use more devices or colocated")
    options = [_options(g, work, most, chip, layout) for g, work in enumerate(groups)]
    least = [min(len(one.devices) for one in choices) for choices in options]
    if sum(least) > num_devices:
        needs = ", ".join(
            f"agent {w.name} at least {n}" for w, n in zip(groups, least, strict=True)
        )
        raise UserError(
            "placement",
            "partitioned",
            f"{needs} and there are {num_devices} devices; use more of them, or colocated",
        )
    chosen = _balanced(options, num_devices)
    used = sum(len(one.devices) for one in chosen)
    idle = f"; {num_devices - used} of {num_devices} devices left over" * (used < num_devices)
    return Placement(
        mode="partitioned",
        groups=tuple(_side_by_side(chosen)),
        seconds=_together(chosen),
        device_bytes=max(one.memory.peak for one in chosen),
        chip=chip,
        offload=False,
        reason=idle,
    )


def _options(g: int, work: GroupWork, most: int, chip: Chip, layout: Layout) -> list[Placed]:
    """One group on every number of devices on which it can be laid out and fits, fewest first."""
    found, refused, nearest = [], None, None
    for count in range(1, most + 1):
        try:
            mesh = layout(g, count)
        except UserError as error:
            refused = error
            continue
        if mesh is None:
            continue
        placed = _place(work, range(count), mesh, chip)
        if _fits(placed.memory.peak, chip):
            found.append(placed)
        elif nearest is None or placed.memory.peak < nearest.memory.peak:
            nearest = placed
    if found:
        return found
    if nearest is not None:
        who = f"agent {work.name} needs"
        raise _too_large("partitioned", who, nearest.memory.peak, nearest, chip)
    if refused is not None:
        raise UserError("placement", "partitioned", f"agent {work.name}: {refused}")
    remedy = f"agent {work.name} cannot be laid out on up to {most} devices; change the mesh"
    raise UserError("placement", "partitioned", remedy)


def _balanced(options: Sequence[Sequence[Placed]], num_devices: int) -> list[Placed]:
    """One option for each group, at most so many devices together, in the least time.

    For every time that answering may take, groups start with the fewest devices that keep to it;
    then the slowest learner is given more for as long as there are devices. No other choice with
    this bound learns sooner, since nothing but more devices makes the slowest learner faster.
    """
    best: list[Placed] | None = None
    for limit in sorted({one.seconds.answering for choices in options for one in choices}):
        ladders = [_ladder(choices, limit) for choices in options]
        if not all(ladders):
            continue
        rungs = [0] * len(ladders)
        while True:
            chosen = [ladder[rung] for ladder, rung in zip(ladders, rungs, strict=True)]
            if sum(len(one.devices) for one in chosen) > num_devices:
                break
            if best is None or _together(chosen) < _together(best):
                best = chosen
            slowest = max(range(len(chosen)), key=lambda g, c=chosen: c[g].seconds.learning)
            rungs[slowest] += 1
            if rungs[slowest] == len(ladders[slowest]):
                break
    assert best is not None  # the fewest devices of all groups are there
    return best


def _ladder(choices: Sequence[Placed], limit: float) -> list[Placed]:
    """Options whose answering keeps to a limit, each learning faster than the one before."""
    found: list[Placed] = []
    for one in choices:
        better = not found or one.seconds.learning < found[-1].seconds.learning
        if one.seconds.answering <= limit and better:
            found.append(one)
    return found


def _together(chosen: Sequence[Placed]) -> float:
    """Seconds of a step of groups that answer, and then learn, at the same time."""
    answering = max(one.seconds.answering for one in chosen)
    return answering + max(one.seconds.learning for one in chosen)


def _side_by_side(chosen: Sequence[Placed]) -> list[Placed]:
    """Neighbouring devices for each; the largest first, so that powers of two stay aligned."""
    start, ranges = 0, {}
    for g in sorted(range(len(chosen)), key=lambda g: -len(chosen[g].devices)):
        ranges[g] = range(start, start + len(chosen[g].devices))
        start = ranges[g].stop
    return [dataclasses.replace(one, devices=ranges[g]) for g, one in enumerate(chosen)]


def _place(work: GroupWork, devices: range, mesh: MeshSizes, chip: Chip) -> Placed:
    return Placed(
        work=work,
        devices=devices,
        mesh=mesh,
        flops=step_flops(work),
        seconds=group_seconds(work, mesh, chip),
        memory=group_bytes(work, mesh),
    )


def _fits(needed: int, chip: Chip) -> bool:
    return chip.memory is None or needed <= MEMORY_SHARE * chip.memory


def _too_large(
    mode: Mode, who: str, needed: int, placed: Placed, chip: Chip, *, offload: bool = False
) -> UserError:
    """What is needed and what is there; remedies are those that the neediest group has left."""
    room, sizes = MEMORY_SHARE * (chip.memory or 0), placed.work.sizes
    program = placed.memory.largest
    remedies = ["more devices", "a larger tensor or fsdp axis"]
    remedies += ["offload"] * offload
    less = "sampling.max_rows" if program == "rollout" else "training.micro_batch_tokens"
    remedies += [f"smaller {less}"]
    remedies += ["training.remat=true"] * (program == "update" and not sizes.remat)
    remedies += ["training.param_dtype=bfloat16"] * (sizes.param_bytes > 2)
    return UserError(
        "placement",
        mode,
        f"{who} {_size(needed)} on each of {len(placed.devices)} devices, "
        f"{_size(placed.memory.transient)} of it for {program}, and {chip.name} has room for "
        f"{_size(room)} ({MEMORY_SHARE:.0%} of {_memory(chip)}); use {', '.join(remedies)}",
    )


def _cells(placed: Placed) -> list[str]:
    """FLOPs and seconds of each phase, bytes, and where."""
    flops, seconds, devices = placed.flops, placed.seconds, placed.devices
    scoring = seconds.rescore + seconds.score
    sizes = dict(zip(AXES, placed.mesh.shape, strict=True))
    mesh = ", ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "-"
    return [
        f"{devices.start}-{devices.stop - 1}" if len(devices) > 1 else f"{devices.start}",
        mesh,
        f"{_flops(flops.rollout.total)}, {_seconds(seconds.rollout)}",
        f"{_flops(flops.scoring)}, {_seconds(scoring)}" if flops.scoring else "-",
        f"{_flops(flops.updates.total)}, {_seconds(seconds.update)}",
        _size(placed.memory.state.total),
        _size(placed.memory.peak),
    ]


def _flops(count: float) -> str:
    for power, letter in ((15, "P"), (12, "T"), (9, "G")):
        if count >= 10**power:
            return f"{count / 10**power:,.3g} {letter}FLOP"
    return f"{count / 1e6:.3g} MFLOP"


def _size(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:.2f} MiB"


def _memory(chip: Chip) -> str:
    return "memory unknown" if chip.memory is None else _size(chip.memory)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
