"""A run that is killed and resumed is the run that was never killed."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny_runs import AGENTS, tiny_config

from hacpo_jax.config import Config, save_config
from hacpo_jax.errors import UserError
from hacpo_jax.training.console import Console
from hacpo_jax.training.trainer import train

TRAIN = """
import sys
from hacpo_jax.config import load_config
from hacpo_jax.training.console import Console
from hacpo_jax.training.trainer import train
train(load_config(sys.argv[1]), Console())
"""
STEPS, FIRST_STEPS = 8, 6  # the killed run is told to go on for longer when it is resumed


def config_of(run_dir: Path, steps: int) -> Config:
    """Warm starts after which half of the answers are right, KL to them, shuffled mini-batches."""
    problems = run_dir.parent / "problems.jsonl"
    lines = [{"problem": letter, "answer": str(i % 2)} for i, letter in enumerate("abcdef")]
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"kind": "jsonl", "path": str(problems)}
    warm = {"warm_start": {"steps": 15, "batch_size": 8, "learning_rate": 0.02}}
    return tiny_config(
        run_dir,
        agents=(AGENTS["one"] | warm, AGENTS["three"] | warm),
        task={"train": source, "eval": {"same": source | {"limit": 2}}},
        algorithm={"name": "hacpo", "kl_coef": 0.01, "minibatch_order": "mixed"},
        training={"steps": steps, "mini_batch_prompts": 2},
        # Shaped like a step's draws, so that one program serves both.
        evaluation={"every": 2, "samples": 3, "temperature": 1.0},
        checkpoint={"every": 1},
    )


@contextlib.contextmanager
def training(config: Config, folder: Path):
    """A process that runs `config`; compiled programs are shared between all of them."""
    save_config(config, folder / "config.yaml")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    with (folder / "output.txt").open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(folder / "config.yaml")],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def run_to_the_end(config: Config, folder: Path) -> None:
    with training(config, folder) as process:
        assert process.wait(300) == 0, (folder / "output.txt").read_text()[-3000:]


def kill_when(config: Config, folder: Path, reached: Callable[[], bool], wait: float) -> None:
    """SIGKILL, `wait` seconds after something is true of the run's directory."""
    with training(config, folder) as process:
        while not reached():
            assert process.poll() is None, (folder / "output.txt").read_text()[-3000:]
            time.sleep(0.0005)
        time.sleep(wait)
        assert process.poll() is None, "it ended before it could be killed"


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(path: Path) -> list[dict]:
    """Metrics but for what a clock says."""
    return [
        {k: v for k, v in row.items() if not k.startswith(("time/", "started/", "tokens_per"))}
        for row in rows_of(path)
    ]


def parameters(run_dir: Path):
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(run_dir.absolute() / "checkpoints" / str(STEPS) / "default")


def test_killed_at_random_moments_and_resumed_it_is_the_same_run(tmp_path):
    """The next draw equals the uninterrupted run's; a kill while a checkpoint is written."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_to_the_end(config_of(whole, STEPS), tmp_path)

    config, checkpoints = config_of(killed, FIRST_STEPS), killed / "checkpoints"
    chance = random.Random(7)

    def writing_after(step: int) -> bool:
        names = [path.name for path in checkpoints.glob("*")]
        return str(step) in names and any("tmp" in name for name in names)

    def logged(lines: int) -> bool:
        metrics = killed / "metrics.jsonl"
        return metrics.exists() and metrics.read_bytes().count(b"\n") >= lines

    kill_when(config, tmp_path, lambda: writing_after(1), 0)
    lines = 2 * chance.randint(3, 4)
    kill_when(config, tmp_path, lambda: logged(lines), chance.uniform(0, 0.02))
    assert not (killed / "summary.json").exists()
    # A kill may cut off the last line.
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "agent": "on')
    with (killed / "evaluations.jsonl").open("a") as file:
        file.write('{"step"')
    run_to_the_end(config_of(killed, STEPS), tmp_path)

    metrics = without_times(killed / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [s for s in range(1, STEPS + 1) for _ in range(2)]
    assert metrics == without_times(whole / "metrics.jsonl")
    assert 0.1 < np.mean([row["reward/mean"] for row in metrics]) < 0.95
    assert len({row["omega/three"] for row in metrics[::2]}) > 3
    evaluations = rows_of(killed / "evaluations.jsonl")
    assert [row["step"] for row in evaluations] == [s for s in (0, 2, 4, 6, 8) for _ in range(2)]
    assert evaluations == rows_of(whole / "evaluations.jsonl")
    for step in range(1, STEPS + 1):
        name = f"rollouts/step_{step:06d}.jsonl"
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    mine, theirs = (jax.tree.leaves(parameters(run_dir)) for run_dir in (killed, whole))
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    summaries = [json.loads((run_dir / "summary.json").read_text()) for run_dir in (killed, whole)]
    for summary in summaries:
        assert summary.pop("seconds") > 0
        assert summary["steps"] == STEPS
        assert summary["rollouts"] == STEPS * 2 * 3 * 2
        assert set(summary["agents"]) == {"one", "three"}
    assert summaries[0] == summaries[1]
    # Steps that were done cannot be undone.
    with pytest.raises(UserError, match=r"training\.steps = 5: 8 steps are done there already"):
        train(config_of(killed, 5), Console())
