"""What a step costs with more agents: python benchmarks/agents.py [--most 4] [--steps 3].

Every agent answers 8 prompts of 32 tokens 4 times with 64 tokens and learns from the answers of
all: answering should grow with their number A, learning with the answers learned from, which are
A², and compiling not at all while agents are of one group, whose agents are mapped over by one
program. Last come two agents of different groups, which is what two equal ones are compared with.

Models are those of the `small` shape of `peers.py`, float32, random weights; times are medians of
the steps that count. `idle` is the share of a step in which no phase has given the device work.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from peer_scripts import work
from random_run import random_config

from hacpo_jax.agents import initial_params
from hacpo_jax.config import Config, parse_config
from hacpo_jax.models.lora import trained
from hacpo_jax.training.run import Run, prepare
from hacpo_jax.training.step import Frozen, train_step
from hacpo_jax.training.trainer import fresh_run_state

Found = dict[str, float]
PHASES = ("rollout", "share", "update")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=4, help="agents of one group")
    parser.add_argument("--steps", type=int, default=3, help="that count, after two that do not")
    given = parser.parse_args()
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
first step, s | a step, s | idle |
|---|---|---|---|---|---|---|---|---|"""


def line(name: str, found: Found, alone: Found) -> str:
    """A row of the table."""
    cells = [name]
    for phase, between in (("rollout", f"{found['learned']:.0f}"), ("update", None)):
        cells += [f"{found[phase]:.2f}", f"{found[phase] / alone[phase]:.2f}"]
        cells += [between] if between else []
    idle = 1 - sum(found[phase] for phase in PHASES) / found["step"]
    cells += [f"{found['first']:.1f}", f"{found['step']:.2f}", f"{idle:.0%}"]
    return f"| {' | '.join(cells)} |"


def measure(shape: work.Shape, agents: int, steps: int, apart: bool = False) -> Found:
    """Seconds of the phases of a step and of the first one, which compiles.

    Args:
      shape: of every agent's model.
      agents: how many.
      steps: that count.
      apart: each agent is a group of its own.
    """
    with tempfile.TemporaryDirectory() as directory:
        run = prepare(config_of(shape, agents, Path(directory), apart))
        try:
            return timed(run, steps)
        finally:
            run.verifier.close()


def config_of(shape: work.Shape, agents: int, directory: Path, apart: bool) -> Config:
    """HACPO with a KL penalty; agents whose models differ in a name alone are apart."""
    batch = work.STEP
    model: dict[str, Any] = {
        "family": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
    }
    config = random_config(
        directory,
        model,
        shape.vocab,
        prompts=batch.prompts,
        samples=batch.samples,
        prompt_tokens=batch.prompt,
        new_tokens=batch.new,
        agents=agents,
        algorithm={"kl_coef": work.KL_COEF},
    )
    if not apart:
        return config
    data = config.model_dump(mode="json", exclude_unset=True)
    for i, agent in enumerate(data["agents"]):
        agent["model"]["max_position_embeddings"] -= i
    return parse_config(data)


def timed(run: Run, steps: int) -> Found:
    learners, frozen = [], []
    for group in run.groups:
        params = initial_params(group, 0, run.param_dtype, run.layout(group))
        learners.append(trained(params))
        frozen.append(Frozen(reference=jax.tree.map(lambda x: x.copy(), trained(params))))
    state = fresh_run_state(run, learners)
    rows, seconds = [], []
    for _ in range(steps + 2):
        started = time.perf_counter()
        state, result = train_step(run, state, frozen)
        jax.block_until_ready(state.learners)
        seconds.append(time.perf_counter() - started)
        rows.append(result.metrics)
    places = {run.place(agent)[0]: agent.index for agent in run.agents}  # one agent of each group
    found = {
        phase: statistics.median(
            sum(step[i][f"time/{phase}"] for i in places.values()) for step in rows[2:]
        )
        for phase in PHASES
    }
    answers = len(run.agents) * work.STEP.rows
    learned = answers * len(run.agents)
    step = statistics.median(seconds[2:])
    return {**found, "learned": learned, "first": seconds[0], "step": step}


if __name__ == "__main__":
    main()
