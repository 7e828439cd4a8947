"""What the quickstart compiles: python benchmarks/compiling.py [key=value ...]

Four whole runs on a CPU, one after another: one as XLA compiles unless it is told otherwise, one
as `hacpo_jax.cpu_compiler` has it, each with an empty cache of programs, and both again with the
caches that they have filled. Settings of the quickstart may follow, `training.steps=10` say.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hacpo_jax.cli.configs import find_config
from hacpo_jax.config import load_config
from hacpo_jax.cpu_compiler import FLAG
from hacpo_jax.errors import UserError
from hacpo_jax.report import read_log

HEAD = """\
| | programs | s to compile or read | s in all | median s of an update, later half |
|---|---|---|---|---|"""
REFUSED = 2
"""What the command line exits with for bad input."""
CASES = (
    ("XLA's own choice, empty cache", "true", "theirs"),
    ("older emitters, empty cache", "false", "ours"),
    ("XLA's own choice, filled cache", "true", "theirs"),
    ("older emitters, filled cache", "false", "ours"),
)
_TOLD = re.compile(r"(\d+) programs compiled or read in (\d+) s together")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of the quickstart")
    settings = parser.parse_args().settings
    if any(word.startswith("run_dir=") for word in settings):
        parser.error("run_dir=...: each run has a directory of its own; leave it out")
    try:
        load_config(find_config("quickstart"), settings)
    except UserError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as directory:
        for i, (name, emitters, cache) in enumerate(CASES):
            run, programs = Path(directory, f"run{i}"), Path(directory, cache)
            cells = run_once(run, programs, f"{FLAG}={emitters}", settings)
            if i == 0:  # what only a run finds wrong with the settings is told without a table
                print(HEAD)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def run_once(run: Path, programs: Path, flag: str, settings: Sequence[str]) -> list[str]:
    """One quickstart's cells of the table."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "XLA_FLAGS": flag,
    }
    command = [sys.executable, "-m", "hacpo_jax.launch", f"run_dir={run}", *settings]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = _TOLD.search(found.stdout)
    if found.returncode == REFUSED:
        sys.exit(found.stderr.strip().splitlines()[-1])
    if found.returncode or told is None:
        sys.exit(f"{' '.join(command)} ended with {found.returncode}\n{found.stderr[-2000:]}")
    seconds = json.loads((run / "summary.json").read_text(encoding="utf-8"))["seconds"]
    return [told[1], told[2], f"{seconds:.0f}", f"{update_seconds(run):.3f}"]


def update_seconds(run: Path) -> float:
    """Of all agents' updates of the later half of the steps, which compile little, the median."""
    log = read_log(run, run.name)
    updates = [log.series(agent, "time/update")[1] for agent in log.metrics]
    return statistics.median(x for values in updates for x in values[len(values) // 2 :])


if __name__ == "__main__":
    main()
