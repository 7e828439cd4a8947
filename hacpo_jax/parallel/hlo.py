"""What the text of a compiled program says it does: products, and traffic between devices.

XLA's own count of FLOPs takes the body of a loop once. Here every computation counts as often as
it is run: loops by the trip count that the compiler found, those without one (a decode that stops
when all rows have ended) by what the caller says. Figures are those of one device.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_SPLASH = {"splash_mha_fwd": 2, "splash_mha_dkv": 4, "splash_mha_dq": 3}
"""Products of matrices in each kernel of splash attention, by how its name begins."""

_BYTES = {"pred": 1, "bf16": 2, "f8e4m3fn": 1, "f8e5m2": 1, "token": 0, "opaque": 0}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array: `dtype` as XLA names it, and its dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        bits = re.fullmatch(r"[a-z]+(\d+)", self.dtype)
        size = _BYTES.get(self.dtype)
        return math.ceil(self.elements * (int(bits[1]) / 8 if size is None and bits else size or 0))


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices.

    Args:
      kind: one of `COLLECTIVES`.
      times: how often it is run in a run of the program.
      devices: that exchange with each other.
      whole: the larger of what goes in and what comes out, on one device.
    """

    kind: str
    times: int
    devices: int
    whole: tuple[Shape, ...]

    @property
    def moved(self) -> float:
        """Bytes that a device sends in all, if the devices stand in a ring."""
        size = self.times * sum(shape.bytes for shape in self.whole)
        others = (self.devices - 1) / self.devices
        if self.kind in ("collective-permute", "collective-broadcast"):
            return float(size)
        return size * others * (2 if self.kind == "all-reduce" else 1)


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shapes: tuple[Shape, ...]
    opcode: str
    inside: str  # of the parentheses behind the opcode
    attributes: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.inside)


@dataclasses.dataclass(frozen=True)
class Program:
    """The parsed text of a compiled program.

    Args:
      computations: instructions by the name of their computation, in order.
      entry: which computation is the program.
      unknown_trips: how often a loop without a known trip count turns.
    """

    computations: Mapping[str, tuple[_Instruction, ...]]
    entry: str
    unknown_trips: int = 1

    @functools.cached_property
    def times(self) -> dict[str, int]:
        """How often each computation is run in one run of the program."""
        found: dict[str, int] = dict.fromkeys(self.computations, 0)
        found[self.entry] = 1
        for name in reversed(self._callees_first()):
            for instruction in self.computations[name]:
                for callee in _called(instruction):
                    if callee in found:
                        found[callee] += found[name] * self._turns(instruction, name)
        return found

    def _turns(self, loop: _Instruction, caller: str) -> int:
        """How often an instruction runs what it calls: once, or as a loop turns."""
        if loop.opcode != "while":
            return 1
        known = re.search(r'"?known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
        return int(known[1]) if known else self._counted(loop, caller) or self.unknown_trips

    def _counted(self, loop: _Instruction, caller: str) -> int | None:
        """Turns of a loop whose counter is compared with a constant and nothing else.

        Compilers for TPUs do not note them. Counters start at 0 and grow by 1, but where the
        compiler has unrolled a loop they grow by more.
        """
        names = re.findall(r"(?:condition|body)=%?([\w.\-]+)", loop.attributes)
        if len(names) != 2 or not all(name in self.computations for name in names):
            return None
        until, body = (self._inside(name) for name in names)
        last = list(until.values())[-1]
        if last.opcode != "compare" or "direction=LT" not in last.attributes:
            return None
        counter, bound = (_origin(until, name) for name in last.operands)
        place, start, step = _place(counter), self._start(loop, caller), 1
        if bound.opcode != "constant" or place is None:
            return None
        grown = _origin(body, list(body.values())[-1].operands[place])
        if grown.opcode == "add":
            added = [_origin(body, name) for name in grown.operands]
            others = [one for one in added if _place(one) != place]
            step = _value(others[0], start) if others else 1
        return -(-(int(bound.inside) - _value(counter, start, 0)) // (step or 1))

    def _start(self, loop: _Instruction, caller: str) -> list[_Instruction]:
        """What a loop's variables are before it."""
        outside = self._inside(caller)
        first = outside[loop.operands[0]]
        return [_origin(outside, name) for name in first.operands if name in outside]

    def _inside(self, computation: str) -> dict[str, _Instruction]:
        return {one.name: one for one in self.computations[computation]}

    def _callees_first(self) -> list[str]:
        order: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in order or name not in self.computations:
                return
            for instruction in self.computations[name]:
                for callee in _called(instruction):
                    visit(callee)
            order[name] = None

        visit(self.entry)
        return list(order)

    def _run(self) -> Iterator[tuple[_Instruction, int, dict[str, _Instruction]]]:
        """Every instruction that is run, how often, and those of its computation by name."""
        for name, times in self.times.items():
            if times:
                known = {one.name: one for one in self.computations[name]}
                for instruction in self.computations[name]:
                    yield instruction, times, known

    def collectives(self) -> list[Collective]:
        """All exchanges between devices, in no order.

        Compilers for TPUs write one that runs beside other work several times, where it starts,
        where it goes on and where it ends, with the same channel.
        """
        found: dict[Any, Collective] = {}
        for number, (one, times, known) in enumerate(self._run()):
            kind = one.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            inputs = _shapes_of(one.operands, known)
            # An asynchronous one also returns what goes in, and a few counters.
            outputs = [s for s in one.shapes if s.dims]
            if one.opcode.endswith("-start"):
                outputs = [s for s in outputs if s not in inputs] or inputs
            whole = max((inputs, outputs), key=lambda shapes: sum(s.bytes for s in shapes))
            new = Collective(kind, times, _group_size(one.attributes), tuple(whole))
            channel = re.search(r"channel_id=(\d+)", one.attributes)
            key = (kind, channel[1], new.whole) if channel else number
            if key not in found or found[key].times < times:
                found[key] = new
        return list(found.values())

    def flops(self) -> float:
        """Of products of matrices; a multiply-add counts as 2.

        Kernels do not tell. Of splash attention half of all pairs of tokens are counted, those that
        a causal mask leaves; a window leaves fewer. Other kernels count as nothing.
        """
        total = 0.0
        for one, times, known in self._run():
            if one.opcode == "dot":
                total += times * _dot_flops(one, known)
            elif one.opcode == "convolution":
                total += times * _convolution_flops(one, known)
            elif one.opcode == "custom-call":
                total += times * _kernel_flops(one, known)
        return total


def parse(text: str, unknown_trips: int = 1) -> Program:
    """The program that `jax.stages.Compiled.as_text` prints.

    Args:
      text: of one module.
      unknown_trips: how often loops turn of which the compiler does not know.
    """
    computations: dict[str, tuple[_Instruction, ...]] = {}
    name, entry, rows = "", "", []
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$", line)
        if head:
            name, rows = head[2], []
            entry = name if head[1] else entry
        elif line.startswith("}"):
            computations[name] = tuple(rows)
        else:
            found = _instruction(line)
            if found is not None:
                rows.append(found)
    return Program(computations, entry, unknown_trips)


def _instruction(line: str) -> _Instruction | None:
    head = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode = re.match(r"\s*([\w\-]+)\(", rest[end:])
    if opcode is None:
        return None
    start = end + opcode.end() - 1
    stop = _closing(rest, start)
    shapes = tuple(_shape(*found) for found in re.findall(r"([a-z]\w*)\[([\d,]*)\]", rest[:end]))
    return _Instruction(head[1], shapes, opcode[1], rest[start + 1 : stop], rest[stop + 1 :])


def _origin(known: Mapping[str, _Instruction], name: str) -> _Instruction:
    """An instruction, or what it is a copy of."""
    one = known[name]
    while one.opcode in ("copy", "bitcast") and one.operands[0] in known:
        one = known[one.operands[0]]
    return one


def _place(one: _Instruction) -> int | None:
    """Which variable of a loop an instruction is, if it is one."""
    found = re.search(r"index=(\d+)", one.attributes)
    return int(found[1]) if one.opcode == "get-tuple-element" and found else None


def _value(one: _Instruction, start: list[_Instruction], default: int = 1) -> int:
    """Of a constant, or of a loop's variable that is one before the loop."""
    place = _place(one)
    if place is not None and place < len(start):
        one = start[place]
    return int(one.inside) if one.opcode == "constant" and one.inside.isdigit() else default


def _shape(dtype: str, dims: str) -> Shape:
    return Shape(dtype, tuple(int(n) for n in dims.split(",") if n))


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    return len(text)


def _called(instruction: _Instruction) -> list[str]:
    """Computations that an instruction runs: bodies, fusions, branches; not those of a reduction,
    which hold a scalar operation."""
    single = r"(?:body|condition|calls|called_computation|true_computation|false_computation)"
    found = re.findall(single + r"=%?([\w.\-]+)", instruction.attributes)
    for inside in re.findall(r"(?:branch_computations|calls)=\{([^}]*)\}", instruction.attributes):
        found += re.findall(r"%?([\w.\-]+)", inside)
    if instruction.opcode == "call":
        found += re.findall(r"to_apply=%?([\w.\-]+)", instruction.attributes)
    return found


def _shapes_of(names: Sequence[str], known: Mapping[str, _Instruction]) -> list[Shape]:
    return [shape for name in names if name in known for shape in known[name].shapes]


def _group_size(attributes: str) -> int:
    """Devices in one group of `replica_groups`, which is written in one of three ways."""
    rows = re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes)
    if rows:
        return int(rows[2])
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if mesh:
        sizes = {name: int(size) for name, size in re.findall(r"(\w+)['\"]?=(\d+)", mesh[1])}
        used = re.findall(r"(\w+)['\"]?(?::\(\d+\)(\d+))?", mesh[2])  # a part of an axis: its size
        return math.prod(int(part) if part else sizes[name] for name, part in used)
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    return len(listed[1].split(",")) if listed else 1


def _numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    return [int(n) for n in found[1].split(",") if n] if found else []


def _dot_flops(one: _Instruction, known: Mapping[str, _Instruction]) -> float:
    left = known[one.operands[0]].shapes[0].dims
    summed = _numbers(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
    return 2.0 * one.shapes[0].elements * math.prod(left[axis] for axis in summed)


def _kernel_flops(one: _Instruction, known: Mapping[str, _Instruction]) -> float:
    products = next((n for name, n in _SPLASH.items() if one.name.startswith(name)), 0)
    if not products:
        return 0.0
    # Behind the tables of its mask come queries, [rows, heads, tokens, head_dim].
    shapes = _shapes_of(one.operands, known)
    queries = next(shape for shape in shapes if shape.dtype in ("bf16", "f32"))
    return products * 2.0 * queries.elements * (queries.dims[-2] + 1) / 2


def _convolution_flops(one: _Instruction, known: Mapping[str, _Instruction]) -> float:
    """Of a convolution, as TPUs have their products. A spatial axis may stand for a batch, most of
    its taps falling into padding, so the taps that fall onto the input are counted."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    assert labels is not None
    image, kernel = (known[name].shapes[0].dims for name in one.operands[:2])
    out = one.shapes[0].dims
    taps = math.prod(out[labels[3].index(axis)] for axis in "bf") * kernel[labels[2].index("i")]
    spatial = sorted(set(labels[1]) - set("bf"))
    window = re.search(r"window=\{([^}]*)\}", one.attributes)
    parts = dict(part.split("=") for part in window[1].split()) if window else {}

    def per_axis(name: str, default: str) -> list[str]:
        return parts[name].split("x") if name in parts else [default] * len(spatial)

    settings = zip(
        *(per_axis(name, "1") for name in ("size", "stride", "lhs_dilate", "rhs_dilate")),
        per_axis("pad", "0_0"),
        strict=True,
    )
    for axis, (size, stride, spread, skip, pad) in zip(spatial, settings, strict=True):
        length = image[labels[1].index(axis)]
        places = np.arange(out[labels[3].index(axis)])[:, None] * int(stride)
        places = places + np.arange(int(size)) * int(skip) - int(pad.split("_")[0])
        inside = (places >= 0) & (places <= (length - 1) * int(spread))
        taps *= int((inside & (places % int(spread) == 0)).sum())
    return 2.0 * taps
