"""What a person sees of a run: live tables in a terminal, plain lines in a log."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from hacpo_jax.agents import Agent
from hacpo_jax.models import abstract_params, abstract_trained
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


class Console:
    """Shows a run on standard output."""

    def __init__(self):
        terminal = RichConsole(highlight=False)
        # A log has no width of its own; 80 columns would cut the tables.
        self._out = terminal if terminal.is_terminal else RichConsole(highlight=False, width=120)
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._steps = 0

    def prepared(self, run: Run) -> None:
        """Who learns what."""
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
        self._out.print(run.placement.table())
        for name, problems in {"training": run.train, **run.benchmarks}.items():
            dropped = f", {problems.dropped} too long ones left out" if problems.dropped else ""
            self._out.print(f"{name}: {len(problems)} problems{dropped}")
        self._steps = run.config.training.steps

    def resumed(self, step: int) -> None:
        self._out.print(f"continuing after step {step}")

    def warm_start(self, agent: Agent) -> Callable[[WarmStartProgress], None]:
        """A reporter for one agent's warm start."""
        started = time.monotonic()

        def report(progress: WarmStartProgress) -> None:
            accuracy = progress.accuracy
            solved = "" if accuracy is None else f", {accuracy:.0%} of training problems solved"
            self._out.print(
                f"warm start of {agent.name}: update {progress.step}, loss {progress.loss:.3f}"
                f"{solved} ({time.monotonic() - started:.0f} s)"
            )

        return report

    def evaluation(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Accuracy of every agent."""
        self._stop_live()
        for row in rows:
            self._out.print(
                f"step {step}: {row['agent']} on {row['benchmark']}: {row['accuracy']:.1%} "
                f"of {row['problems']} problems"
                + (f", {row['invalid']} answers not graded" if row["invalid"] else "")
            )

    def step(self, step: int, metrics: list[dict[str, Any]]) -> None:
        """The figures that matter of every agent after a step."""
        if not self._out.is_terminal:
            for row in metrics:
                cells = [f"{name} {_cell(row, key)}" for name, key in _COLUMNS.items()]
                self._out.print(
                    f"step {step}/{self._steps} {row['agent']}: {', '.join(cells)}", soft_wrap=True
                )
            return
        table = Table("agent", *_COLUMNS)
        for row in metrics:
            table.add_row(row["agent"], *(_cell(row, key) for key in _COLUMNS.values()))
        live, progress = self._start_live(step - 1)
        progress.update(progress.task_ids[0], completed=step)
        live.update(Group(table, progress), refresh=True)
        if step == self._steps:
            self._stop_live()

    def summary(self, summary: dict[str, Any], run_dir: str) -> None:
        """The table of before and after."""
        self._stop_live()
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
        self._out.print(text, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was, also after an error or an interrupt."""
        self._stop_live()

    def _start_live(self, done: int) -> tuple[Live, Progress]:
        if self._live is None or self._progress is None:
            self._progress = Progress(
                TextColumn("step"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._progress.add_task("step", total=self._steps, completed=done)
            self._live = Live(self._progress, console=self._out, auto_refresh=False)
            self._live.start()
        return self._live, self._progress

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


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
