"""What a step costs with more agents: python benchmarks/agents.py [--most 4] [--steps 3].

Every agent answers 8 prompts of 32 tokens 4 times with 64 tokens and learns from the answers of
all: answering should grow with their number A, learning with the answers learned from, which are
A². Agents of one group are mapped over by one program, which does not grow with them. Last come two
agents of different groups, which is what two equal ones are compared with.

Models are those of the `small` shape of `peers.py`, float32, random weights; times are medians of
the steps that count. `compiling` and `programs` are the seconds and the number of large programs,
those of a second or more; `idle` is the share of a step outside of its phases.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from peer_scripts import work
from random_run import Stepper, random_config

from hacpo_jax.cli.compiles import LEAST_SECONDS, listening
from hacpo_jax.cpu_compiler import compile_quickly_for_cpus
from hacpo_jax.training.run import Run, prepare

Found = dict[str, float]
PHASES = ("rollout", "share", "update")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=4, help="agents of one group")
    parser.add_argument("--steps", type=int, default=3, help="that count, after two that do not")
    given = parser.parse_args()
    for name in ("most", "steps"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)}: must be 1 or more")
    compile_quickly_for_cpus()  # as the command line has it
    print(HEAD)
    alone = measure(work.SHAPES["small"], 1, given.steps)
    print(line("1", alone, alone))
    for agents in range(2, given.most + 1):
        together = measure(work.SHAPES["small"], agents, given.steps)
        print(line(f"{agents}, one group", together, alone), flush=True)
    apart = measure(work.SHAPES["small"], 2, given.steps, apart=True)
    print(line("2, two groups", apart, alone), flush=True)


HEAD = """\
| agents | answering, s | against 1 | answers learned from | learning, s | against 1 | \
compiling, s | programs | a step, s | idle |
|---|---|---|---|---|---|---|---|---|---|"""


def line(name: str, found: Found, alone: Found) -> str:
    """A row of the table."""
    answering, learning = (
        [f"{found[phase]:.2f}", f"{found[phase] / alone[phase]:.2f}"]
        for phase in ("rollout", "update")
    )
    idle = 1 - sum(found[phase] for phase in PHASES) / found["step"]
    compiling = [f"{found['compiling']:.1f}", f"{found['programs']:.0f}"]
    step = [f"{found['step']:.2f}", f"{idle:.0%}"]
    cells = [name, *answering, f"{found['learned']:.0f}", *learning, *compiling, *step]
    return f"| {' | '.join(cells)} |"


def measure(shape: work.Shape, agents: int, steps: int, apart: bool = False) -> Found:
    """Seconds of the phases of a step, and of compiling, for which no program is there before.

    Args:
      shape: of every agent's model.
      agents: how many.
      steps: that count.
      apart: each agent is a group of its own.
    """
    jax.clear_caches()
    kl = {"kl_coef": work.KL_COEF}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run = prepare(
            random_config(directory, shape, work.STEP, agents=agents, apart=apart, algorithm=kl)
        )
        try:
            return timed(run, steps)
        finally:
            run.verifier.close()


def timed(run: Run, steps: int) -> Found:
    """Of the steps that count, the median; agents of one group share its phases."""
    make_step, rows, seconds, compiled = Stepper(run), [], [], []
    with listening(lambda _, took: compiled.append(took)):
        for _ in range(steps + 2):
            started = time.perf_counter()
            rows.append(make_step())
            seconds.append(time.perf_counter() - started)
    firsts = [group.agents[0].index for group in run.groups]
    found = {
        phase: statistics.median(sum(step[i][f"time/{phase}"] for i in firsts) for step in rows[2:])
        for phase in PHASES
    }
    learned = len(run.agents) ** 2 * work.STEP.rows
    step = statistics.median(seconds[2:])
    large = [took for took in compiled if took >= LEAST_SECONDS]
    compiling = {"compiling": sum(large), "programs": len(large)}
    return {**found, "learned": learned, **compiling, "step": step}


if __name__ == "__main__":
    main()
