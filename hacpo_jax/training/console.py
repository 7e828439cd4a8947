"""What a person sees of a run: live tables in a terminal, plain lines in a log."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hacpo_jax.agents import Agent
from hacpo_jax.models import abstract_params, abstract_trained
from hacpo_jax.terminal import rich_console
from hacpo_jax.text import printable, time_left
from hacpo_jax.training.run import Run
from hacpo_jax.training.warm_start import Progress as WarmStartProgress

# Heading and metric of each column of the table of steps; "peers" stands for every peer.
_COLUMNS = {
    "reward": "reward/mean",
    "capability": "capability",
    "omega": "omega/",
    "own ratio": "ratio/own",
    "peer ratio": "ratio/",
    "length": "response_length/mean",
    "entropy": "entropy",
    "grad norm": "grad_norm",
}


_ROWS = 12  # of the live table

Row = dict[str, Any]


class Console:
    """Shows a run on standard output: a table that stays where it is in a terminal, whole lines
    without escape codes elsewhere.

    Args:
      quiet: show warnings and the table at the end alone.
      out: where to; None is standard output.
      clock: seconds that never go back.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        out: RichConsole | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        terminal = out or rich_console(highlight=False)
        # A log has no width of its own; 80 columns would cut the tables.
        self._out = (
            terminal
            if terminal.is_terminal
            else rich_console(highlight=False, width=120, file=terminal.file)
        )
        self._quiet = quiet
        self._live: Live | None = None
        self._recent: deque[list[Row]] = deque()
        self._accuracy: dict[str, float] = {}
        self._steps = 0
        self._pace = Pace(clock)

    def prepared(self, run: Run) -> None:
        """Who learns what."""
        self._steps = run.config.training.steps
        if self._quiet:
            return
        table = Table("agent", "architecture", "parameters", "vocabulary", "stops at", "group")
        for group in run.groups:
            for agent in group.agents:
                table.add_row(
                    agent.name,
                    agent.model.model_type,
                    _parameters(agent),
                    f"{agent.tokenizer.size:,}",
                    _stops(agent),
                    group.name,
                )
        self._out.print(table)
        if run.placement is not None:
            self._out.print(run.placement.table())
        for name, problems in {"training": run.train, **run.benchmarks}.items():
            dropped = f", {problems.dropped} too long ones left out" if problems.dropped else ""
            self._out.print(f"{name}: {len(problems)} problems{dropped}")

    def resumed(self, step: int) -> None:
        self.note(f"continuing after step {step}")

    def warm_start(self, agent: Agent) -> Callable[[WarmStartProgress], None]:
        """A reporter for one agent's warm start."""
        started = time.monotonic()

        def report(progress: WarmStartProgress) -> None:
            accuracy = progress.accuracy
            solved = "" if accuracy is None else f", {accuracy:.0%} of training problems solved"
            self.note(
                f"warm start of {agent.name}: update {progress.step}, loss {progress.loss:.3f}"
                f"{solved} ({time.monotonic() - started:.0f} s)"
            )

        return report

    def evaluation(self, step: int, rows: list[Row]) -> None:
        """Accuracy of every agent."""
        found: dict[str, list[float]] = {}
        for row in rows:
            found.setdefault(row["agent"], []).append(row["accuracy"])
            self.note(
                f"step {step}: {row['agent']} on {row['benchmark']}: {row['accuracy']:.1%} "
                f"of {row['problems']} problems"
                + (f", {row['invalid']} answers not graded" if row["invalid"] else "")
            )
        self._accuracy = {agent: sum(values) / len(values) for agent, values in found.items()}

    def step(self, step: int, metrics: list[Row]) -> None:
        """The figures that matter of every agent after a step."""
        left = self._pace.left(self._steps - step)
        if self._quiet:
            return
        if not self._out.is_terminal:
            for i, row in enumerate(metrics):
                cells = [f"{name} {_cell(row, key)}" for name, key in _COLUMNS.items()]
                rest = f"; {left}" if left and i == len(metrics) - 1 else ""
                self.note(f"step {step}/{self._steps} {row['agent']}: {', '.join(cells)}{rest}")
            return
        held_out = [{**row, "held out": self._accuracy.get(row["agent"])} for row in metrics]
        self._recent.append(held_out)
        while sum(map(len, self._recent)) > max(_ROWS, len(metrics)):
            self._recent.popleft()
        self._show(f"step {step} of {self._steps}{f', {left}' if left else ''}", step)
        if step == self._steps:
            self.close()

    def _show(self, caption: str, step: int) -> None:
        """One table of the latest steps, in the place of the one before it."""
        table = Table("step", "agent", *_COLUMNS, "held out", caption=caption)
        for rows in self._recent:
            for i, row in enumerate(rows):
                last = row["held out"]
                table.add_row(
                    "" if i else str(row["step"]),
                    row["agent"],
                    *(_cell(row, key) for key in _COLUMNS.values()),
                    "-" if last is None else f"{last:.1%}",
                    end_section=i == len(rows) - 1,
                )
        bar = ProgressBar(total=self._steps, completed=step)
        if self._live is None:
            self._live = Live(console=self._out, auto_refresh=False)
            self._live.start()
        self._live.update(Group(table, bar), refresh=True)

    def summary(self, summary: dict[str, Any], run_dir: str) -> None:
        """The table of before and after."""
        self.close()
        table = Table("agent", "benchmark", "before", "after", "change")
        for name, agent in summary["agents"].items():
            for benchmark, after in agent["eval"]["after"].items():
                before = agent["eval"]["before"].get(benchmark)
                change = "" if before is None else f"{100 * (after - before):+.1f} points"
                was = "" if before is None else f"{before:.1%}"
                table.add_row(name, benchmark, was, f"{after:.1%}", change)
        self._out.print(table)
        self._out.print(
            f"{summary['algorithm']}: {summary['steps']} steps, {summary['rollouts']:,} answers, "
            f"{summary['seconds']:.0f} s; written to {run_dir}"
        )

    def note(self, text: str) -> None:
        """One line, above the table."""
        if not self._quiet:
            self._out.print(Text(text), soft_wrap=True)

    def warning(self, text: str) -> None:
        """One line that is shown in any case; a verifier's words in it may be a model's."""
        self._out.print(Text(f"warning: {printable(text)}"), soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was, also after an error or an interrupt."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Pace:
    """How long a run may still take, by its latest steps.

    Args:
      clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._times: deque[float] = deque(maxlen=11)

    def left(self, steps: int) -> str:
        """A step has ended: how long `steps` more take; empty after the first one, which compiles
        and says little about the others."""
        self._times.append(self._clock())
        if steps == 0 or len(self._times) < 2:
            return ""
        each = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return time_left(each * steps)


def _cell(row: dict[str, Any], key: str) -> str:
    """One number, or those of all peers where the key ends with a slash."""
    if key.endswith("/"):
        names = [k for k in row if k.startswith(key) and k != key + "own"]
        if len(names) == 1:
            return _number(row[names[0]])
        return ", ".join(f"{k.removeprefix(key)} {_number(row[k])}" for k in names) or "-"
    return _number(row[key])


def _stops(agent: Agent) -> Text:
    """The tokens that end an answer, with their ids; line ends and the like as escapes."""
    tokenizer = agent.tokenizer
    tokens = {id_: repr(tokenizer.decode([id_]))[1:-1] for id_ in tokenizer.stop_ids}
    return Text("\n".join(f"{id_} {token}" for id_, token in tokens.items()))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.3f}"


def _parameters(agent: Agent) -> str:
    """How many parameters an agent has, and how many of them are trained if not all are."""
    everything, free = (
        sum(math.prod(x.shape) for x in jax.tree.leaves(shapes(agent.model)))
        for shapes in (abstract_params, abstract_trained)
    )
    return f"{everything:,}" + (f" ({free:,} trained)" if free < everything else "")
