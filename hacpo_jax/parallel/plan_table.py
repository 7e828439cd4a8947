"""A plan in words: a table, a few lines, and JSON."""

import dataclasses
from typing import Any

from rich.table import Table

from hacpo_jax.parallel.chips import chip_of
from hacpo_jax.parallel.hlo import Collective
from hacpo_jax.parallel.plan import Plan, Planned

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(plan: Plan, topology: str) -> Table:
    """One row per program of every group."""
    title = f"{topology}: {plan.devices} devices in {plan.processes} processes"
    made = Table(title=title, caption="bytes and FLOPs of one device; FLOPs of matrix products")
    for name in ("agent", "program"):
        made.add_column(name)
    for name in (
        "a step",
        "arguments",
        "outputs",
        "temporaries",
        "peak",
        "beside it",
        "of the device",
    ):
        made.add_column(name, justify="right")
    made.add_column("TFLOP", justify="right")
    made.add_column("exchanged")
    made.add_column("compiled", justify="right")
    made.add_column("fits")
    for one in plan.programs:
        made.add_row(one.agents, one.program, str(one.runs or "-"), *_cells(one, plan))
    return made


def _cells(one: Planned, plan: Plan) -> list[str]:
    seconds = f"{one.seconds:.0f} s"
    if one.bytes is None:
        share = f"{size(one.needed)} of {size(plan.memory)}"
        return ["-", "-", "-", "-", size(one.beside), share, "-", "-", seconds, "no"]
    needed = size(one.needed) if plan.memory is None else _share(one.needed, plan.memory)
    by_kind = "\n".join(
        f"{entry['count']} {kind}, {size(entry['bytes'])}"
        for kind, entry in exchanged(one.collectives).items()
    )
    memory = one.bytes
    return [
        *map(size, (memory.arguments, memory.outputs, memory.temporaries, memory.peak)),
        size(one.beside),
        needed,
        f"{one.flops / 1e12:.3g}",
        by_kind or "-",
        seconds,
        "yes" if plan.has_room(one.needed) else "no",
    ]


def _share(needed: int, memory: int) -> str:
    return f"{needed / memory:.0%} of {size(memory)}"


def lines(plan: Plan) -> list[str]:
    """What stays on a device, notes, and the verdict."""
    found = []
    for name, kept in plan.residents.items():
        parts = {k: v for k, v in dataclasses.asdict(kept).items() if v}
        each = ", ".join(f"{what} {size(value)}" for what, value in parts.items())
        found.append(f"{name}, mesh {plan.meshes[name]}: {size(kept.total)} stay ({each})")
    told = f"between programs a device holds {size(plan.resident)}"
    if plan.memory is not None:
        told += f", {_share(plan.resident, plan.memory)}"
    found += [told, *(f"note: {note}" for note in plan.notes)]
    return [*found, "fits" if plan.fits else "does not fit"]


def as_json(plan: Plan, topology: str) -> dict[str, Any]:
    """All figures, bytes as bytes."""
    return {
        "topology": topology,
        "device": chip_of(plan.device).name,
        "devices": plan.devices,
        "processes": plan.processes,
        "memory": plan.memory,
        "resident": plan.resident,
        "fits": plan.fits,
        "notes": list(plan.notes),
        "agents": {
            name: {"mesh": dataclasses.asdict(plan.meshes[name]), **dataclasses.asdict(kept)}
            for name, kept in plan.residents.items()
        },
        "programs": [_program_json(one, plan) for one in plan.programs],
    }


def _program_json(one: Planned, plan: Plan) -> dict[str, Any]:
    memory = None if one.bytes is None else dataclasses.asdict(one.bytes) | {"peak": one.bytes.peak}
    return {
        "agent": one.agents,
        "program": one.program,
        "runs": one.runs,
        "bytes": memory,
        "beside": one.beside,
        "needed": one.needed,
        "flops": one.flops,
        "collectives": exchanged(one.collectives),
        "seconds": round(one.seconds, 1),
        "fits": one.bytes is not None and plan.has_room(one.needed),
    }


def exchanged(collectives: tuple[Collective, ...]) -> dict[str, dict[str, float]]:
    """Exchanges by kind: how many in a run of the program, and bytes that one device sends."""
    found: dict[str, dict[str, float]] = {}
    for one in collectives:
        entry = found.setdefault(one.kind, {"count": 0, "bytes": 0.0})
        entry["count"] += one.times
        entry["bytes"] += one.moved
    return dict(sorted(found.items()))


def size(count: float | None) -> str:
    """Bytes in the unit that leaves three figures."""
    if count is None:
        return "?"
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.3g} {_UNITS[power]}"
