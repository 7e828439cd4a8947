"""`eval`: avg@k, best@k and maj@k of agents of runs, of their checkpoints, and of models."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hacpo_jax.cli.configs import find_config
from hacpo_jax.cli.subjects import Measured, model_agent, parse_subject
from hacpo_jax.cli.words import Command, parse_options
from hacpo_jax.config import Config, load_config
from hacpo_jax.config.base import Section
from hacpo_jax.errors import MISSING, UserError
from hacpo_jax.terminal import rich_console

# What may differ from the run that is measured; the rest makes the agents what they are.
_FREE = ("evaluation", "task.eval", "task.verifier", "sampling.max_rows")


class _Options(Section):
    model: tuple[str, ...] = ()
    step: int | None = Field(default=None, ge=0)
    out: str | None = None


def run(command: Command) -> None:
    """Measure, print a table, and keep figures and answers."""
    own = tuple(f"{name}=" for name in _Options.model_fields)
    options = parse_options(_Options, [w for w in command.settings if w.startswith(own)])
    overrides = [word for word in command.settings if not word.startswith(own)]
    chosen = _of_config(command, overrides, options) or _of_runs(command, overrides, options)
    measured = _with_directories(chosen, options)

    from hacpo_jax.cli.cache import use_compilation_cache
    from hacpo_jax.cli.measured import measure_all
    from hacpo_jax.parallel.platforms import start_platform

    start_platform()
    use_compilation_cache()
    out = None if options.out is None or len(measured) == 1 else Path(options.out)
    console = rich_console(highlight=False)
    figures = []
    for one, found in measure_all(measured, quiet=command.quiet):
        figures.append(found)
        _show(console, found, one.directory)
    if len(measured) > 1:
        _show_all(console, figures, out)


def _of_config(
    command: Command, overrides: Sequence[str], options: _Options
) -> list[Measured] | None:
    """The models of a config, or those named instead of them; None where no config is named."""
    if command.config is None:
        return None
    if command.paths:
        raise UserError("run directory", MISSING, "name run directories, or --config FILE alone")
    if options.step is not None:
        raise UserError("step", options.step, "is for run directories; a config has no checkpoint")
    config = load_config(find_config(command.config), overrides)
    if options.model:
        return _models(config, options.model)

    return [Measured(config.run_dir, config, Path(f"{config.run_dir}.evaluation"))]


def _of_runs(command: Command, overrides: Sequence[str], options: _Options) -> list[Measured]:
    """Runs at their checkpoints, and models on the problems of the first of them."""
    if not command.paths:
        raise UserError("run directory", MISSING, "name run directories, or --config FILE alone")
    subjects = [parse_subject(word) for word in command.paths]
    for word, subject in zip(command.paths, subjects, strict=True):
        if subject.agent is not None:
            raise UserError("run directory", word, "all agents of a run are measured; write RUN")
    _check_overrides(overrides)

    from hacpo_jax.training.run_dir import saved_config

    configs = [saved_config(subject.run, overrides) for subject in subjects]
    found = []
    for subject, config in zip(subjects, configs, strict=True):
        step = options.step if subject.step is None else subject.step
        name = str(subject.run) if subject.step is None else f"{subject.run}@{step}"
        found.append(Measured(name, config, subject.run, subject.run, step))
    return found + _models(configs[0], options.model)


def _models(config: Config, names: Sequence[str]) -> list[Measured]:
    """Each model alone, on the config's problems."""
    agents = [model_agent(name) for name in names]
    return [
        Measured(name, config.model_copy(update={"agents": [agent]}), None)
        for name, agent in zip(names, agents, strict=True)
    ]


def _check_overrides(overrides: Sequence[str]) -> None:
    for word in overrides:
        key, _, value = word.partition("=")
        if not any(key == free or key.startswith(f"{free}.") for free in _FREE):
            remedy = f"belongs to the run that is measured; only {', '.join(_FREE)} may differ"
            raise UserError(key, value, remedy)


def _with_directories(measured: Sequence[Measured], options: _Options) -> list[Measured]:
    """Where results go: `out`, below it where there are several, or where the subjects lie."""
    placed = []
    for one in measured:
        directory = one.directory
        if options.out is not None:
            label = Path(one.name).name
            directory = Path(options.out) / label if len(measured) > 1 else Path(options.out)
        if directory is None:
            raise UserError("out", MISSING, "is required with model: name a folder for the results")
        if directory in [other.directory for other in placed]:
            remedy = f"{one.name} would write there too; evaluate it alone with another out=DIR"
            raise UserError("out", str(directory), remedy)
        placed.append(dataclasses.replace(one, directory=directory))
    return placed


def _show(console: Console, figures: dict[str, Any], directory: Path | None) -> None:
    settings = figures["evaluation"]
    when = "before training" if figures["step"] is None else f"after step {figures['step']}"
    heat = settings["temperature"]
    how = f"temperature {heat}, top_p {settings['top_p']}, top_k {settings['top_k']}"
    console.print(Text(f"{figures['run']} {when}; {how if heat else 'greedy'}"))
    scores = [row for rows in figures["agents"].values() for row in rows.values()]
    names = {name: None for row in scores for name in row if f"{name}/se" in row}
    del names["accuracy"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("agent", "benchmark"):
        table.add_column(heading, no_wrap=True)
    counts = sorted({row["samples"] for row in scores})
    for heading in (f"avg@{'/'.join(map(str, counts))}", *names, "tokens", "cut off", "invalid"):
        table.add_column(heading, justify="right")
    for agent, benchmarks in figures["agents"].items():
        for benchmark, row in benchmarks.items():
            table.add_row(
                agent,
                Text(f"{benchmark} ({row['problems']})"),
                *(_share(row, name) for name in ("accuracy", *names)),
                f"{row['response_length/mean']:.1f}",
                f"{row['truncated']:.1%}",
                str(row["invalid"]),
            )
    console.print(table)
    files = "evaluation.json, evaluation.md and evaluation_answers.jsonl"
    console.print(Text(f"written: {files} in {directory}"), soft_wrap=True)


def _share(row: dict[str, Any], name: str) -> str:
    """A figure with its standard error."""
    if name not in row:
        return "-"
    error = row[f"{name}/se"]
    return f"{row[name]:.1%}" + ("" if error is None else f" ± {100 * error:.1f}")


def _show_all(console: Console, figures: Sequence[dict[str, Any]], out: Path | None) -> None:
    """One table of everything, which is written too where `out` says so."""
    from hacpo_jax.evaluation import figures_rows, results_table
    from hacpo_jax.training.run_dir import replace_text

    text = results_table([row for found in figures for row in figures_rows(found)])
    console.print(Text(text), soft_wrap=True)
    if out is not None:
        replace_text(out / "evaluation.md", text)
        together = {"subjects": list(figures)}
        replace_text(out / "evaluation.json", json.dumps(together, indent=2) + "\n")
        console.print(Text(f"written: evaluation.md and evaluation.json in {out}"))
