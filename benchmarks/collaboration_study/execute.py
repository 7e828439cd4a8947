"""Making starts and runs, each in a process of its own; what is there already is kept."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from collaboration_study.plan import Start, StudyRun
from hacpo_jax.config import Config, parse_config
from hacpo_jax.tasks.problems import load_examples
from hacpo_jax.training.run_dir import replace_text, saved_config


class Failure(Exception):
    """A process that ended badly; the message says why and where its output is."""


def run_status(directory: Path, config: Config) -> str:
    """`finished`, `started` or `new`; a finished run of another config only counts as started."""
    if not (directory / "config.yaml").is_file():
        return "new"
    try:
        summary = json.loads((directory / "summary.json").read_text())
        same = saved_config(directory) == config
    except (OSError, ValueError):  # UserError is a ValueError: a config of another version
        return "started"
    return "finished" if same and summary["steps"] == config.training.steps else "started"


def make_run(run: StudyRun) -> None:
    """Train, or go on with, one run of the study.

    Raises:
      Failure: the run ended badly.
    """
    _train(run.directory, run.data)


def start_is_made(start: Start) -> bool:
    """Whether the weights of all its agents are there."""
    return all(start.model(name).is_dir() for names in start.runs for name in names)


def make_start(start: Start, base: dict[str, Any]) -> None:
    """Warm-start the agents and export what they are before any reinforcement learning.

    Args:
      start: which.
      base: the quickstart's config, whose training problems are divided.

    Raises:
      Failure: a run or an export ended badly.
    """
    if start.setting == "complementary":
        write_halves(start, base)
    for names, data in start.runs.items():
        # An export appears whole or not at all.
        missing = [name for name in names if not start.model(name).is_dir()]
        if not missing:
            continue
        directory = Path(data["run_dir"])
        _train(directory, data)
        for name in missing:
            options = [f"out={start.directory / 'agents'}", f"agent={name}", "step=0"]
            log = directory.with_name(f"{directory.name}_export.log")
            _launch(["export", str(directory), *options], log)


def write_halves(start: Start, base: dict[str, Any]) -> None:
    """The quickstart's training problems, divided by their first operand: the low ones first."""
    source = parse_config(base).task.train
    middle = (source.low + source.high + 1) // 2
    halves: tuple[list[str], list[str]] = ([], [])
    for example in load_examples(source, "task.train"):
        row = {"problem": example.prompt, "answer": example.answer}
        first = int(re.match(r"\d+", example.id)[0])
        halves[first >= middle].append(json.dumps(row) + "\n")
    for data, lines in zip(start.runs.values(), halves, strict=True):
        path = Path(data["task"]["train"]["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(lines))


def _train(directory: Path, data: dict[str, Any]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    config = directory.with_name(f"{directory.name}.yaml")
    replace_text(config, yaml.safe_dump(data, sort_keys=False))
    _launch(["--config", str(config)], directory.with_name(f"{directory.name}.log"))


def _launch(words: list[str], log: Path) -> None:
    with log.open("w") as output:
        command = [sys.executable, "-m", "hacpo_jax.launch", *words]
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    if code == 130:
        raise KeyboardInterrupt
    if code:
        lines = log.read_text().splitlines() or [f"exit code {code}"]
        told = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
        raise Failure(f"{told} (see {log})")
