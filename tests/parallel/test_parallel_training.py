"""Whole runs of several processes on this machine, against one process with as many devices."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from child_flags import xla_flags
from tiny_runs import tiny_config

from hacpo_jax.config import save_config

SETTINGS = {
    "training": {
        "steps": 2,
        "prompts_per_step": 5,  # which 2 and 4 processes share unevenly
        "group_size": 2,
        "mini_batch_prompts": 5,
        "micro_batch_tokens": 60,
    },
    # 4 slots for 5 prompts: one of them has to wait.
    "sampling": {"max_new_tokens": 4, "temperature": 0.8, "max_rows": 8},
    "algorithm": {"name": "hacpo", "kl_coef": 0.01, "rescue": {"coef": 0.5}},
    "placement": "colocated",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("several")


def started(
    home: Path,
    name: str,
    count: int,
    *words: str,
    agents: tuple[str, str] = ("one", "three"),
    last: tuple[str, ...] = (),
):
    """Processes with 4 devices together; `last` is for the last of them alone.

    One and three are a group, which is half as much to compile as two groups are.
    """
    path = home / "config.yaml"
    save_config(tiny_config(home / name, agents=agents, **SETTINGS), path)
    environment = {
        **os.environ,
        "XLA_FLAGS": xla_flags(4 // count),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(home / f"cache_{count}"),
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for i in range(count):
        flags = ["--coordinator", f"127.0.0.1:{port}", "--processes", f"{count}", "--process"]
        place = [*flags, str(i)] if count > 1 else []
        own = [*words, *(last if i == count - 1 else ())]
        command = [sys.executable, "-m", "hacpo_jax.launch", "--config", str(path), *place]
        processes.append(
            subprocess.Popen(
                [*command, f"run_dir={home / name}", *own],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def ended(processes, timeout: float = 600) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answers_of(run: Path) -> dict:
    """Tokens and rewards by step, problem, source and number, from all files of a run."""
    rows = [row for path in sorted((run / "rollouts").iterdir()) for row in rows_of(path)]
    places = [(r["step"], r["prompt_id"], r["source"], r["index"]) for r in rows]
    assert len(set(places)) == len(places)
    found = ((r["tokens"], r["reward"]) for r in rows)
    return dict(zip(places, found, strict=True))


@pytest.fixture(scope="module")
def alone(home) -> Path:
    ((code, _, err),) = ended(started(home, "alone", 1))
    assert code == 0, err
    return home / "alone"


@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_give_the_numbers_of_one(home, alone, count):
    name = f"of_{count}"
    for i, (code, out, err) in enumerate(ended(started(home, name, count))):
        assert code == 0, err
        assert bool("steps" in out) == (i == 0)  # one of them shows the run
    assert answers_of(home / name) == answers_of(alone)
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        rows, expected = rows_of(home / name / file), rows_of(alone / file)
        assert len(rows) == len(expected) > 0
        for row, other in zip(rows, expected, strict=True):
            assert row.keys() == other.keys()
            for key, value in other.items():
                if not key.startswith(("time/", "started/", "tokens_per_second")):
                    if isinstance(value, float):
                        value = pytest.approx(value, rel=1e-4, abs=1e-5)
                    assert row[key] == value, key


def test_a_run_of_four_processes_goes_on_as_one(home, alone):
    """A checkpoint belongs to no number of processes or devices."""
    assert (home / "of_4").exists()  # the test before this one made it
    ((code, _, err),) = ended(started(home, "of_4", 1, "training.steps=3"))
    assert code == 0, err
    steps = [row["step"] for row in rows_of(home / "of_4" / "metrics.jsonl")]
    assert steps == [1] * 2 + [2] * 2 + [3] * 2


def test_a_process_with_another_config_ends_all(home):
    for code, _, err in ended(started(home, "differs", 2, last=("seed=9",)), 120):
        assert code == 2
        (line,) = [line for line in err.splitlines() if line.startswith("error:")]
        assert "config of process 1" in line and "seed" in line
    assert not (home / "differs").exists()


def test_a_killed_process_ends_all(home):
    """The other says who died, and both are gone within a minute and a half."""
    words = ("training.steps=100000", "checkpoint.every=1000", "algorithm={name: gspo}")
    processes = started(home, "killed", 2, *words, agents=("one", "two"))
    metrics = home / "killed" / "metrics.jsonl"
    until = time.monotonic() + 300
    while not metrics.exists() and time.monotonic() < until:
        time.sleep(0.5)
    assert metrics.exists()
    processes[1].send_signal(signal.SIGKILL)
    (code, _, err), _ = ended(processes, 150)
    assert code == 1
    assert any(line.startswith("error:") and "process 1" in line for line in err.splitlines())
