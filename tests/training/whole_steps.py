"""What whole steps of tiny agents need besides a config."""

import dataclasses
import zlib

import jax
import numpy as np
from in_process_grader import InProcessGrader
from tiny import random_params, stacked
from tiny_runs import AGENTS, tiny_config

from hacpo_jax.tasks.verifiers import Verifier
from hacpo_jax.training.run import Run, prepare
from hacpo_jax.training.step import Frozen, RunState, train_step
from hacpo_jax.training.update import init_state


def start_of(run: Run) -> RunState:
    """Random weights, which depend on an agent's index alone."""
    learners = [
        init_state(
            stacked(*(random_params(group.model, agent.index) for agent in group.agents)),
            group.optimizer,
            run.total_updates(group),
        )
        for group in run.groups
    ]
    window = run.config.algorithm.capability.window
    history = np.full((window, len(run.agents)), np.nan, np.float32)
    return RunState(0, 0, tuple(learners), history)


def copied(learners):
    """Parameters that later updates cannot reuse."""
    return [jax.device_get(learner.params) for learner in learners]


def lucky_run(agents=("one", "two"), *, odds=3, training=None, **algorithm) -> Run:
    """A run in which some texts are right; all such runs share decodes and shapes.

    Args:
      agents: names of `tiny_runs.AGENTS`, or pairs of a name and keys of its own algorithm.
      odds: one of this many texts is right, however random the weights are.
      training: keys of that section.
      algorithm: of all others.
    """
    sections = [
        agent if isinstance(agent, str) else AGENTS[agent[0]] | {"algorithm": agent[1]}
        for agent in agents
    ]
    run = prepare(
        tiny_config(
            "unused",
            agents=sections,
            task={"verifier": {"name": "exact"}},
            # Answers of peers are as long as own ones at most, so that one width serves.
            algorithm={"name": "grpo", "max_peer_tokens": 4, **algorithm},
            sampling={"max_new_tokens": 4, "temperature": 0.6},
            training={"group_size": 3, **(training or {})},
        )
    )
    grader = InProcessGrader(lambda response, answer: zlib.crc32(response.encode()) % odds == 0)
    return dataclasses.replace(run, verifier=Verifier(grader))


def steps_of(run: Run, count: int, state: RunState | None = None):
    """The state after `count` steps without references, and their results."""
    state, results = state or start_of(run), []
    for _ in range(count):
        state, result = train_step(run, state, [Frozen()] * len(run.groups))
        results.append(result)
    return state, results
