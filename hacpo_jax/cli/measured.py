"""What `eval` measures, and how it goes on where it was killed."""

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hacpo_jax.agents import initial_params
from hacpo_jax.agents.base_weights import weights_digest
from hacpo_jax.cli.subjects import Measured
from hacpo_jax.config import Config, NewModel, NewTokenizer
from hacpo_jax.errors import UserError
from hacpo_jax.evaluation import AnswerFile, figures_rows, fingerprint, results_table
from hacpo_jax.text import printable, time_left
from hacpo_jax.training.measure import measure_into
from hacpo_jax.training.run import Run, prepare
from hacpo_jax.training.run_dir import replace_text
from hacpo_jax.training.saved_run import AGENTS, choose_step, saved_params

_SECONDS = 20.0  # between two lines about how far it is
_COUNTED = ("best_of", "majority_of", "headline")  # settings that draw no other answers


def measure_all(
    measured: Sequence[Measured], *, quiet: bool
) -> Iterator[tuple[Measured, dict[str, Any]]]:
    """Measure, one after another, and write the results of each.

    Yields:
      Who was measured, and what is in their `evaluation.json`.
    """
    steps = [
        None if one.run_dir is None else choose_step(one.run_dir, one.step) for one in measured
    ]
    for one, step in zip(measured, steps, strict=True):
        saved = None if one.run_dir is None else one.run_dir / AGENTS
        run = _prepare(one.config, saved)
        assert one.directory is not None
        with run.verifier, AnswerFile(one.directory / "evaluation_answers.jsonl") as file:
            figures = _measure(run, one, step, file, quiet)
            try:
                replace_text(
                    one.directory / "evaluation.json", json.dumps(figures, indent=2) + "\n"
                )
                table = results_table(figures_rows(figures))
                replace_text(one.directory / "evaluation.md", table)
            except OSError as error:
                remedy = f"cannot be written ({error.strerror})"
                raise UserError("out", str(one.directory), remedy) from None
            error = run.verifier.first_error
        if error is not None:
            told = "answers could not be graded and count as wrong; the first"
            print(f"warning: {one.name}: {told}: {printable(error)}", file=sys.stderr)
        yield one, figures


def _prepare(config: Config, saved: Path | None) -> Run:
    """Training problems are not needed, and may be gone, unless tokenizers are made from them; nor
    has training to fit."""
    made = any(isinstance(agent.tokenizer, NewTokenizer) for agent in config.agents)
    return prepare(config, saved, training=made and saved is None)


def _measure(
    run: Run, one: Measured, step: int | None, file: AnswerFile, quiet: bool
) -> dict[str, Any]:
    """Answer what is not answered yet; `step` is None before any training."""
    config, weights = run.config, _weights(run, one, step)
    names, all_draws = {}, {}
    for name, problems in run.benchmarks.items():
        # With several samples and no k named, the one everybody asks for is all of them.
        draws, of_all = config.draws(name), (config.draws(name).samples,)
        asked = draws.best_of + draws.majority_of
        if draws.samples > 1 and not asked:
            draws = dataclasses.replace(draws, best_of=of_all, majority_of=of_all)
        all_draws[name] = draws
        settings = dataclasses.asdict(draws)
        how = {key: value for key, value in settings.items() if key not in _COUNTED}
        names[name] = fingerprint([weights, _grading(config), str(run.dtype), how], problems)
    params = _params(run, one, step)
    results: dict[str, dict[str, Any]] = {agent.name: {} for agent in run.agents}
    progress = _Progress(quiet)
    for agent, benchmark, graded in measure_into(run, params, file, names, progress):
        draws = all_draws[benchmark]
        results[agent.name][benchmark] = graded.summary(
            config.algorithm.max_reward, best_of=draws.best_of, majority_of=draws.majority_of
        )
    trained = one.run_dir is not None and step
    return {
        "run": str(one.run_dir or one.name),
        "subject": one.name,
        "step": step,
        "seed": config.seed,
        "evaluation": config.evaluation.model_dump(
            mode="json", exclude={"every", "log_answers", "benchmarks"}
        ),
        "draws": {
            name: {**dataclasses.asdict(draws), "draws": names[name]}
            for name, draws in all_draws.items()
        },
        "task": config.task.model_dump(mode="json", exclude={"train"}),
        "algorithms": {
            agent.name: agent.algorithm.name if trained else None for agent in run.agents
        },
        "agents": results,
    }


def _params(run: Run, one: Measured, step: int | None) -> list:
    if one.run_dir is None or step is None:
        return [
            initial_params(group, run.config.seed, layout=layout)
            for group, layout in zip(run.groups, run.layouts, strict=True)
        ]
    return saved_params(one.run_dir, run.groups, step, run.config.seed, run.layouts)


def _weights(run: Run, one: Measured, step: int | None) -> list[Any]:
    """What tells these agents from all others, wherever they lie."""
    agents = [
        agent.model_dump(mode="json", include={"name", "tokenizer", "chat", "chat_options", "lora"})
        for agent in run.config.agents
    ]
    if one.run_dir is not None:
        # Orbax notes down when a checkpoint was made, to the nanosecond.
        note = one.run_dir / "checkpoints" / str(step) / "_CHECKPOINT_METADATA"
        made = hashlib.sha256(note.read_bytes() if note.is_file() else b"").hexdigest()
        return [agents, run.config.seed, step, made]
    models = [
        config.model.model_dump() if isinstance(config.model, NewModel) else None
        for config in run.config.agents
    ]
    files = [
        None if agent.directory is None else weights_digest(agent.directory) for agent in run.agents
    ]
    return [agents, run.config.seed, models, files]


def _grading(config: Config) -> dict[str, Any]:
    """All of the task but its problems, which the fingerprint holds as they are asked."""
    return config.task.model_dump(
        mode="json", exclude={"train": True, "eval": True, "verifier": {"workers": True}}
    )


class _Progress:
    """Tells how far an evaluation is: now and then, and when a benchmark is through.

    Args:
      quiet: tell nothing.
    """

    def __init__(self, quiet: bool):
        self._quiet = quiet
        self._of: tuple[str, str] | None = None
        self._before = 0
        self._started = self._told = 0.0

    def __call__(self, agents: str, benchmark: str, done: int, total: int) -> None:
        now, where = time.monotonic(), f"{agents} on {benchmark}: {done} of {total} problems"
        if self._quiet:
            return
        if self._of != (agents, benchmark):
            self._of, self._before = (agents, benchmark), done
            self._started = self._told = now
            if done:
                print(f"{where} were answered before", flush=True)
        elif done == total or now - self._told > _SECONDS:
            seconds = now - self._started
            left = seconds / (done - self._before) * (total - done)
            rest = "" if done == total else f", {time_left(left)}"
            print(f"{where} ({seconds:.0f} s{rest})", flush=True)
            self._told = now
