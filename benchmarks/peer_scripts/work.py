"""The work that every side of the comparison does, and timing that notices other processes.

Standard library only, since each side runs in a virtual environment of its own.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROWS = ("decode", "step", "scoring", "long", "prompts", "refill")


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Qwen3-type model with its output head tied to the embedding."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int

    @property
    def layer_products(self) -> int:
        """Weights of all layers that a token is multiplied with."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def products(self) -> int:
        """The same with the output head."""
        return self.layer_products + self.vocab * self.hidden

    def forward_flops(self, rows: int, tokens: int) -> int:
        """Of whole sequences with logits at every token; attention in full squares."""
        attended = 2 * self.heads * self.head_dim * self.layers * tokens
        return 2 * rows * tokens * (self.products + attended)

    def decode_flops(self, rows: int, prompt: int, new: int) -> int:
        """Of the layers over prompts and all new tokens but the last, and of a draw of each."""
        seen = sum(range(1, prompt + new))  # of every token but the last: itself and those before
        attention = 4 * self.heads * self.head_dim * self.layers * seen
        layers = self.layer_products * (prompt + new - 1)
        products = 2 * (layers + self.vocab * self.hidden * new)
        return rows * (products + attention)


SHAPES = {
    "small": Shape(6, 256, 4, 2, 64, 768, 4096),
    # Those of SmolLM2-135M.
    "smol": Shape(30, 576, 9, 3, 64, 1536, 49152),
}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Prompts, answers to each, tokens of each prompt and of each answer."""

    prompts: int
    samples: int
    prompt: int
    new: int

    @property
    def rows(self) -> int:
        return self.prompts * self.samples


DECODE = Batch(32, 1, 32, 64)
STEP = Batch(8, 4, 32, 64)
PROMPTS = Batch(4, 8, 512, 32)
LIMIT = 1024
REFILL, REFILL_MEAN, REFILL_SLOTS = Batch(256, 1, 32, 512), 64, 32
KL_COEF = 0.04
CLIP = 0.2
LEARNING_RATE = 1e-6

QUIET = 0.08
"""Share of all cores that other processes may use in a repetition that counts."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def step_flops(shape: Shape, batch: Batch = STEP) -> int:
    """Of the plain algorithm: every answer is drawn, scored by the reference, and scored once more
    with a backward pass of twice the work."""
    tokens = batch.prompt + batch.new
    drawn = shape.decode_flops(batch.rows, batch.prompt, batch.new)
    return drawn + 4 * shape.forward_flops(batch.rows, tokens)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What a side is asked to do."""

    row: str
    shape: Shape
    times: int
    attempts: int

    def timed(self, call: Callable[[], object]) -> list[dict[str, float]]:
        """Of those calls that count: seconds, processor time of this process with all its threads,
        and the share of all cores that other processes had.

        Args:
          call: blocks until all is done.
        """
        found: list[dict[str, float]] = []
        while not self.enough(found):
            with Watch() as watch:
                call()
            found.append(watch.found())
        return self.best(found)

    def enough(self, found: list[dict[str, float]]) -> bool:
        """Whether `times` repetitions were left alone, or `attempts` were made."""
        quiet = sum(one["others"] <= QUIET for one in found)
        return quiet >= self.times or len(found) >= max(self.attempts, self.times)

    def best(self, found: list[dict[str, float]]) -> list[dict[str, float]]:
        """The `times` repetitions that others disturbed least."""
        return sorted(found, key=lambda one: one["others"])[: self.times]


def arguments(doc: str | None) -> Arguments:
    """Those of the command line of a side."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--times", type=int, default=3, help="repetitions that count")
    parser.add_argument("--attempts", type=int, default=9, help="repetitions at most")
    found = parser.parse_args()
    return Arguments(found.row, SHAPES[found.shape], found.times, found.attempts)


class Watch:
    """Time between its beginning and end, and what other processes had of the cores meanwhile."""

    def __enter__(self) -> "Watch":
        self._busy, self._own = busy_seconds(), own_seconds()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_) -> None:
        self.seconds = time.perf_counter() - self._started
        self.own = own_seconds() - self._own
        others = busy_seconds() - self._busy - self.own
        cores = os.cpu_count() or 1
        # The kernel counts in ticks: what three of them may hide is no sign of anyone.
        beyond = max(others - 3 * _TICK, 0.0)
        self.others = beyond / (self.seconds * cores)

    def found(self) -> dict[str, float]:
        return {"seconds": self.seconds, "own": self.own, "others": self.others}


def busy_seconds() -> float:
    """That the machine's cores have worked, all processes together."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) * _TICK


def own_seconds() -> float:
    """Processor time of this process and its living descendants."""
    return sum(_cpu_ticks(pid) for pid in family()) * _TICK


def family() -> list[int]:
    """This process and its living descendants."""
    parents = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            fields = _stat(int(directory.name))
            if fields:
                parents[int(directory.name)] = int(fields[1])
    found = [os.getpid()]
    for pid in found:  # grows as it goes
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _stat(pid: int) -> list[str]:
    """Fields of a process from its state on; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) if fields else 0


def peak_mib() -> float:
    """Largest resident memory so far of this process and of each of its living descendants."""
    total = 0
    for pid in family():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        total += sum(map(int, peaks))
    return total / 1024


def tell(report: Mapping[str, object]) -> None:
    """The one line that `peers.py` reads."""
    sys.stdout.flush()
    print(json.dumps(report), flush=True)
