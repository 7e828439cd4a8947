"""Against what users would pick instead: python benchmarks/peers.py --venvs DIR [--rows ROW ...].

Ours, Tunix 0.1.7, TRL 1.16.0 and XLA's own products run in turn (A B A B), each in a process and a
virtual environment of its own; `--setup` makes those of the peers in DIR. Prints one table of
ratios, `peer's seconds / ours`, each the median over the rounds with the range in brackets, and
`goal` behind it. A repetition in which other processes had more than 8% of the cores is done again;
where none was quiet the cell is marked with `!`. On a machine that is never quiet,
`--processor-time` compares processor time instead: a hint, since threads that wait may spin.

Equal on all sides: CPU, float32, all cores; a Qwen3-type model with a tied head (`small`: 5.8M
parameters, `smol`: SmolLM2's sizes, 134.5M), random weights, random prompts; temperature 1, no
truncation, every answer as long as it may be; GRPO with a reference model (KL 0.04), clipping at
0.2, AdamW, one update of 32 answers a step without recomputing layers. A step is the trainer's own,
from one batch to the next, two steps warm up; memory is the largest resident one of the process
with its descendants by then.

| row | what |
|---|---|
| `decode` | 32 prompts of 32 tokens, 64 new tokens, log-probs returned |
| `step` | 8 prompts of 32 tokens, 4 answers of 64 to each; seconds and memory |
| `scoring` | log-probs of 32 answers of 64 to prompts of 32, forward pass |
| `long` | as `decode` where 1,024 tokens are allowed and answers have 64 |
| `prompts` | 4 prompts of 512 tokens, 8 answers of 32 to each |
| `refill` | 256 prompts of 32 tokens, one answer each of 64 tokens in the mean and 512 at most |

Not equal: TRL's `generate` returns no log-probs, which its trainer computes later. Ours may draw
the end token, 1 of 4,096 or 49,152, in a step, and Tunix and TRL cannot; our verifier is a process
of its own, whose memory counts. In `long` ours ends its answers by stop ids and Tunix by its limit,
at its default cache of 1,024 positions. Where a peer has no such thing the cell is empty; `refill`
compares our engine with itself: 32 slots that waiting prompts take against 32 prompts at a time.

Limits: the products of one decoding step alone, as XLA does them (the loop's steps against them,
without prompts and first token); FLOPs of the plain step at the rate of 2048 x 2048 products.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer_scripts import work

SCRIPTS = Path(work.__file__).resolve().parent
SIDES = ("ours", "tunix", "trl", "dots")
# Of the sides that have no environment of their own, the one that runs this script.
PACKAGES = {
    "tunix": ("google-tunix==0.1.7",),
    "trl": ("torch==2.13.0", "trl==1.16.0", "transformers", "datasets", "accelerate"),
}
TAKES_PART = {
    "decode": SIDES,
    "step": SIDES,
    "scoring": ("ours", "tunix", "trl"),
    "long": ("ours", "tunix"),
    "prompts": ("ours", "tunix", "trl"),
    "refill": ("ours",),
}
# Resident memory, GiB, that is known to be needed; a process that would have less is left out.
NEEDS = {("tunix", "step", "smol"): 17, ("trl", "step", "smol"): 12}

Report = dict[str, Any]
Rounds = Sequence[Report]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venvs", type=Path, metavar="DIR", help="not asked for without peers")
    parser.add_argument("--setup", action="store_true", help="make the environments and end")
    parser.add_argument("--rows", nargs="+", choices=TAKES_PART, default=list(TAKES_PART))
    parser.add_argument("--shapes", nargs="+", choices=work.SHAPES, default=list(work.SHAPES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=2, help="turns of every side")
    parser.add_argument("--times", type=int, default=3, help="repetitions in a turn")
    parser.add_argument("--attempts", type=int, default=9, help="repetitions in a turn at most")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path, help="file to add every turn's figures to")
    given = parser.parse_args()
    if given.venvs is None and (given.setup or set(given.sides) & set(PACKAGES)):
        parser.error("--venvs DIR: where the peers' environments are; or leave peers out: --sides")
    if given.setup:
        make_environments(given.venvs)
        return
    check_environments(given.venvs, given.sides)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = cache  # a program is compiled in one round only
        print_table(given)


def print_table(given: argparse.Namespace) -> None:
    """Every line as soon as it is there."""
    measure = Measure("own" if given.processor_time else "seconds")
    print("| work | shape | ours | against Tunix | against TRL | against the limit |")
    print("|---|---|---|---|---|---|")
    for row in given.rows:
        for shape in given.shapes:
            reports = take_turns(given, row, shape)
            for line in LINES[row](measure, work.SHAPES[shape], reports):
                print(f"| {line.work} | {shape} | {' | '.join(line.cells)} |", flush=True)


def setup_commands(venvs: Path) -> list[list[str]]:
    """What makes the peers' environments."""
    commands = []
    for side, packages in PACKAGES.items():
        commands.append([sys.executable, "-m", "venv", str(venvs / side)])
        commands.append([str(venvs / side / "bin" / "pip"), "install", "-q", *packages])
    return commands


def make_environments(venvs: Path) -> None:
    for command in setup_commands(venvs):
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)


def check_environments(venvs: Path | None, sides: Sequence[str]) -> None:
    """Ends with the command that makes them, unless all are there."""
    missing = [side for side in sides if side in PACKAGES and not python_of(venvs, side).exists()]
    if missing:
        command = f"python benchmarks/peers.py --setup --venvs {venvs}"
        sys.exit(f"--venvs = {venvs}: has no {' and no '.join(missing)}; run: {command}")


def python_of(venvs: Path | None, side: str) -> Path:
    if side not in PACKAGES:
        return Path(sys.executable)
    assert venvs is not None
    return venvs / side / "bin" / "python"


def take_turns(given: argparse.Namespace, row: str, shape: str) -> dict[str, list[Report]]:
    """Every side's reports, one for each round; a side is left out after it could not run once."""
    reports: dict[str, list[Report]] = {side: [] for side in SIDES}
    sides = [side for side in TAKES_PART[row] if side in given.sides]
    for turn in range(given.rounds):
        for side in list(sides):
            report = one_turn(given, side, row, shape)
            if report is None:
                sides.remove(side)
                continue
            reports[side].append(report)
            if given.json:
                head = {"row": row, "shape": shape, "side": side, "round": turn}
                with given.json.open("a") as file:
                    file.write(json.dumps({**head, **report}) + "\n")
    return reports


def one_turn(given: argparse.Namespace, side: str, row: str, shape: str) -> Report | None:
    """What a side's process tells; None where there is no room for it, or it failed."""
    needed, free = NEEDS.get((side, row, shape), 0), free_gib()
    if free < needed:
        tell(f"{side} {row} {shape} is left out: needs {needed} GiB, {free:.0f} are free")
        return None
    command = [str(python_of(given.venvs, side)), str(SCRIPTS / f"run_{side}.py"), row, shape]
    command += [f"--times={given.times}", f"--attempts={given.attempts}"]
    tell(" ".join(command))
    # Ours is the one beside this file, installed or not.
    paths = {"PYTHONPATH": str(SCRIPTS.parents[1])} if side == "ours" else {}
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})
    lines = found.stdout.splitlines()
    if found.returncode or not lines:
        tell(found.stderr[-3000:])
        return None
    return json.loads(lines[-1])


def free_gib() -> float:
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) / 2**20
    return float("inf")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the table: what was done, ours, and against Tunix, TRL and the limit."""

    work: str
    cells: tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True)
class Measure:
    """Reads reports.

    Args:
      of: `seconds`, or `own` for processor time.
    """

    of: str

    def seconds(self, report: Report, name: str = "whole") -> float:
        """The median of a report's repetitions."""
        return statistics.median(one[self.of] for one in report[name])

    def ratio(
        self, ours: Rounds, theirs: Rounds, value: Callable[[Report], float], goal: float | None
    ) -> str:
        """How much more they need than we, round by round; empty without them."""
        pairs = list(zip(ours, theirs, strict=False))
        ratios = [value(other) / value(own) for own, other in pairs]
        return cell(ratios, "x", "≥", goal, busy([*ours, *theirs]))

    def share(
        self, ours: Rounds, limit: Rounds, value: Callable[[Report, Report], float], goal: float
    ) -> str:
        """Percentage of a limit, round by round."""
        found = [100 * value(own, other) for own, other in zip(ours, limit, strict=False)]
        return cell(found, "%", "≥", goal, busy([*ours, *limit]))


def busy(reports: Rounds) -> bool:
    """Whether others disturbed any repetition that counts."""
    lists = [value for report in reports for value in report.values() if isinstance(value, list)]
    return any(one.get("others", 0) > work.QUIET for values in lists for one in values)


def cell(values: Sequence[float], unit: str, sign: str, goal: float | None, marked: bool) -> str:
    """The median of some values with their range, and the goal."""
    if not values:
        return ""
    text = f"{shown(statistics.median(values))}{unit}"
    if len(values) > 1:
        text += f" ({shown(min(values))} to {shown(max(values))})"
    if goal is not None:
        text += f", goal {sign} {goal:g}{unit}"
    return text + (" !" if marked else "")


def shown(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def middle(ours: Rounds, value: Callable[[Report], float], unit: str) -> str:
    """Ours, in figures that hold for this machine on this day only."""
    return f"{shown(statistics.median(map(value, ours)))} {unit}" if ours else ""


Reports = Mapping[str, Rounds]


def decode_lines(measure: Measure, shape: work.Shape, found: Reports) -> list[Line]:
    batch = work.DECODE
    ours, tunix, trl, dots = (found[side] for side in SIDES)

    def steps(report: Report) -> float:
        return measure.seconds(report) - measure.seconds(report, "first")

    def rate(report: Report) -> float:
        return batch.rows * (batch.new - 1) / steps(report)

    def of_limit(own: Report, limit: Report) -> float:
        return (batch.new - 1) * measure.seconds(limit, "products") / steps(own)

    loop = (
        middle(ours, rate, "tokens/s"),
        measure.ratio(ours, tunix, steps, 1.4),
        measure.ratio(ours, trl, steps, 2.5),
        measure.share(ours, dots, of_limit, 65),
    )
    whole = (
        middle(ours, measure.seconds, "s"),
        measure.ratio(ours, tunix, measure.seconds, None),
        measure.ratio(ours, trl, measure.seconds, None),
        "",
    )
    return [
        Line("decode, batch 32, prompt 32, 64 new, log-probs returned", loop),
        Line("the same call with its prompts", whole),
    ]


def step_lines(measure: Measure, shape: work.Shape, found: Reports) -> list[Line]:
    ours, tunix, trl, dots = (found[side] for side in SIDES)

    def seconds(report: Report) -> float:
        return measure.seconds(report, "step")

    def memory(report: Report) -> float:
        return report["peak_mib"]

    def of_bound(own: Report, limit: Report) -> float:
        rate = limit["product_flops"] / measure.seconds(limit, "product")
        return work.step_flops(shape) / rate / seconds(own)

    def less(theirs: Rounds, goal: float) -> str:
        pairs = zip(ours, theirs, strict=False)
        values = [memory(own) / memory(other) for own, other in pairs]
        return cell(values, "x", "≤", goal if shape is work.SHAPES["smol"] else None, False)

    time = (
        middle(ours, seconds, "s"),
        measure.ratio(ours, tunix, seconds, 1.6),
        measure.ratio(ours, trl, seconds, 2.4),
        measure.share(ours, dots, of_bound, 50),
    )
    peak = (middle(ours, memory, "MiB"), less(tunix, 0.4), less(trl, 0.6), "")
    return [
        Line("whole GRPO step, 8 x 4, reference model", time),
        Line("peak memory of the step, ours / theirs", peak),
    ]


def scoring_lines(measure: Measure, shape: work.Shape, found: Reports) -> list[Line]:
    def seconds(report: Report) -> float:
        return measure.seconds(report, "scoring")

    ours = found["ours"]
    cells = (
        middle(ours, seconds, "s"),
        measure.ratio(ours, found["tunix"], seconds, 1.3),
        measure.ratio(ours, found["trl"], seconds, 2),
        "",
    )
    return [Line("scoring (log-probs forward)", cells)]


def long_lines(measure: Measure, shape: work.Shape, found: Reports) -> list[Line]:
    ours = found["ours"]

    def more(report: Report) -> float:
        return measure.seconds(report) / measure.seconds(report, "at_answers")

    own_cost = cell([more(own) for own in ours], "x", "≤", 1.15, busy(ours))
    cells = (
        middle(ours, measure.seconds, "s"),
        measure.ratio(ours, found["tunix"], measure.seconds, 4),
        "",
        own_cost and f"{own_cost} ours at limit 64",
    )
    return [Line("decode, limit 1,024, answers of 64", cells)]


def prompts_lines(measure: Measure, shape: work.Shape, found: Reports) -> list[Line]:
    ours = found["ours"]
    shares = [f"prefill FLOPs 1/{1 / own['prefill_share']:.3g} of unshared" for own in ours[:1]]
    cells = (
        middle(ours, measure.seconds, "s"),
        measure.ratio(ours, found["tunix"], measure.seconds, 2),
        measure.ratio(ours, found["trl"], measure.seconds, None),
        "".join(shares),
    )
    return [Line("prompt 512, 8 samples each, 32 new", cells)]


def refill_lines(measure: Measure, shape: work.Shape, found: Reports) -> list[Line]:
    ours = found["ours"]

    def refilled(report: Report) -> float:
        return measure.seconds(report, "refilled")

    def gain(report: Report) -> float:
        return measure.seconds(report, "static") / refilled(report)

    faster = cell([gain(own) for own in ours], "x", "≥", 2, busy(ours))
    lengths = "".join(f", mean {own['mean_length']:.0f}" for own in ours[:1])
    name = f"256 prompts in 32 slots, exponential lengths{lengths}, cut at 512"
    limit = faster and f"{faster} as fast as our static batch"
    return [Line(name, (middle(ours, refilled, "s"), "", "", limit))]


LINES: dict[str, Callable[[Measure, work.Shape, Reports], list[Line]]] = {
    "decode": decode_lines,
    "step": step_lines,
    "scoring": scoring_lines,
    "long": long_lines,
    "prompts": prompts_lines,
    "refill": refill_lines,
}

if __name__ == "__main__":
    main()
