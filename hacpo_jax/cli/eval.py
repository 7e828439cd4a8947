"""`eval`: avg@k and best@k of a run's agents, or of a config's models before any training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hacpo_jax.cli.configs import find_config
from hacpo_jax.cli.words import Command, parse_options
from hacpo_jax.config import Config, load_config
from hacpo_jax.config.base import Section
from hacpo_jax.errors import UserError

if TYPE_CHECKING:
    from hacpo_jax.evaluation import Graded
    from hacpo_jax.tasks.problems import Problems
    from hacpo_jax.training.run import Run

# What may differ from the run that is measured; the rest makes the agents what they are.
_FREE = ("evaluation", "task.eval", "task.verifier", "sampling.max_rows")


class _Options(Section):
    step: int | None = Field(default=None, ge=0)
    out: str | None = None


def run(command: Command) -> None:
    """Measure, print a table, and keep figures and answers."""
    own = tuple(f"{name}=" for name in _Options.model_fields)
    options = parse_options(_Options, [w for w in command.settings if w.startswith(own)])
    overrides = [word for word in command.settings if not word.startswith(own)]
    if bool(command.paths) == (command.config is not None):
        raise UserError("run directory", None, "name run directories, or --config FILE alone")
    if options.out is not None and len(command.paths) > 1:
        raise UserError("out", options.out, "takes the results of one run; leave it out")
    if command.config is not None:
        _eval_config(load_config(find_config(command.config), overrides), options)
    else:
        _check_overrides(overrides)
        _eval_runs([Path(path) for path in command.paths], overrides, options)


def _check_overrides(overrides: Sequence[str]) -> None:
    for word in overrides:
        key, _, value = word.partition("=")
        if not any(key == free or key.startswith(f"{free}.") for free in _FREE):
            remedy = f"belongs to the run that is measured; only {', '.join(_FREE)} may differ"
            raise UserError(key, value, remedy)


def _eval_config(config: Config, options: _Options) -> None:
    if options.step is not None:
        raise UserError("step", options.step, "is for run directories; a config has no checkpoint")

    from hacpo_jax.agents import initial_params
    from hacpo_jax.cli.cache import use_compilation_cache
    from hacpo_jax.training.run import prepare

    use_compilation_cache()
    run = prepare(config)
    with run.verifier:
        params = [initial_params(group, config.seed) for group in run.groups]
        directory = Path(options.out or f"{config.run_dir}.evaluation")
        _measure(run, params, config.run_dir, None, directory)


def _eval_runs(paths: Sequence[Path], overrides: Sequence[str], options: _Options) -> None:
    from hacpo_jax.training.run_dir import saved_config

    configs = [saved_config(path, overrides) for path in paths]

    from hacpo_jax.cli.cache import use_compilation_cache
    from hacpo_jax.training.run import prepare
    from hacpo_jax.training.saved_run import AGENTS, choose_step, saved_params

    use_compilation_cache()
    steps = [choose_step(path, options.step) for path in paths]
    for path, config, step in zip(paths, configs, steps, strict=True):
        run = prepare(config, path / AGENTS)
        with run.verifier:
            params = saved_params(path, run.groups, step, config.seed)
            _measure(run, params, str(path), step, Path(options.out or path))


def _measure(run: "Run", params: list, name: str, step: int | None, directory: Path) -> None:
    """Answer, grade, write and show; `step` is None before any training."""
    from hacpo_jax.training.measure import measure

    settings = run.config.evaluation
    # With several samples and no k named, the one everybody asks for is all of them.
    best_of = settings.best_of or ((settings.samples,) if settings.samples > 1 else ())
    results: dict[str, dict[str, Any]] = {agent.name: {} for agent in run.agents}
    answers = []
    for agent, benchmark, graded in measure(run, params):
        scores = graded.summary(best_of, run.config.algorithm.max_reward)
        results[agent.name][benchmark] = scores
        answers += _answer_rows(agent.name, benchmark, run.benchmarks[benchmark], graded)
    figures = {
        "run": name,
        "step": step,
        "evaluation": {
            **settings.model_dump(mode="json", exclude={"every"}),
            "max_new_tokens": settings.max_new_tokens or run.config.sampling.max_new_tokens,
            "best_of": best_of,
        },
        "seed": run.config.seed,
        "task": run.config.task.model_dump(mode="json", exclude={"train"}),
        "agents": results,
    }
    _write(directory, figures, answers)
    _show(figures, directory)


def _write(directory: Path, figures: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    from hacpo_jax.training.run_dir import replace_text

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in answers)
        replace_text(directory / "evaluation_answers.jsonl", lines)
        replace_text(directory / "evaluation.json", json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise UserError("out", str(directory), f"cannot be written ({error.strerror})") from None


def _answer_rows(agent: str, benchmark: str, problems: "Problems", graded: "Graded"):
    for i, example in enumerate(problems.examples):
        for k, response in enumerate(graded.texts[i]):
            yield {
                "agent": agent,
                "benchmark": benchmark,
                "problem": example.id,
                "sample": k,
                "prompt": problems.texts[i],
                "answer": example.answer,
                "response": response,
                "reward": float(graded.rewards[i, k]),
                "valid": bool(graded.valid[i, k]),
                "finish_reason": "stop" if graded.stopped[i, k] else "length",
                "length": int(graded.lengths[i, k]),
            }


def _show(figures: dict[str, Any], directory: Path) -> None:
    settings, console = figures["evaluation"], Console(highlight=False)
    when = "before training" if figures["step"] is None else f"after step {figures['step']}"
    heat = settings["temperature"]
    how = f"temperature {heat}, top_p {settings['top_p']}, top_k {settings['top_k']}"
    console.print(Text(f"{figures['run']} {when}; {how if heat else 'greedy'}"))
    best = [f"best@{k}" for k in settings["best_of"]]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("agent", "benchmark"):
        table.add_column(heading, no_wrap=True)
    for heading in (f"avg@{settings['samples']}", *best, "tokens", "cut off", "invalid"):
        table.add_column(heading, justify="right")
    for agent, benchmarks in figures["agents"].items():
        for benchmark, row in benchmarks.items():
            table.add_row(
                agent,
                Text(f"{benchmark} ({row['problems']})"),
                *(f"{row[key]:.1%}" for key in ("accuracy", *best)),
                f"{row['response_length/mean']:.1f}",
                f"{row['truncated']:.1%}",
                str(row["invalid"]),
            )
    console.print(table)
    console.print(Text(f"written: evaluation.json and evaluation_answers.jsonl in {directory}"))
