"""One step with the agents of the quickstart; other algorithms are in test_training_regimes."""

import dataclasses
import json
import math
import zlib

import jax
import numpy as np
import pytest
from in_process_grader import InProcessGrader

from hacpo_jax.agents import initial_params
from hacpo_jax.cli.configs import find_config
from hacpo_jax.config import load_config
from hacpo_jax.tasks.verifiers import Verifier
from hacpo_jax.training.run import prepare
from hacpo_jax.training.step import Frozen, train_step
from hacpo_jax.training.trainer import fresh_run_state

pytestmark = pytest.mark.usefixtures("compile_quickly")

SHORT = [
    "task.train.size=8",
    "task.eval.addition.size=1",
    "training.steps=1",
    "training.prompts_per_step=2",
    "training.mini_batch_prompts=2",
    "training.group_size=4",
    "training.micro_batch_tokens=64",
]


@pytest.mark.parametrize("name", ["grpo", "hacpo"])
def test_one_step_of_the_quickstart(name):
    """Two architectures and two tokenizers; a text is right by luck, as nobody can add yet."""
    config = load_config(find_config("quickstart"), [*SHORT, f"algorithm.name={name}"])
    run = prepare(config)
    run.verifier.close()
    grader = InProcessGrader(lambda response, answer: zlib.crc32(response.encode()) % 2 == 0)
    run = dataclasses.replace(run, verifier=Verifier(grader))
    state = fresh_run_state(run, [initial_params(group, 0) for group in run.groups])
    before = [np.array(learner.params["embedding"]) for learner in state.learners]
    state, result = train_step(run, state, [Frozen()] * len(run.groups))
    assert [row["agent"] for row in result.metrics] == ["llama-bpe", "qwen3-characters"]
    for row, learner, old in zip(result.metrics, state.learners, before, strict=True):
        assert json.loads(json.dumps(row, allow_nan=False)) == row
        assert row["grad_norm"] > 0 and math.isfinite(row["loss"])
        assert row["ratio/own"] == pytest.approx(1, abs=1e-5)
        assert learner.skipped.tolist() == [0]
        new = np.asarray(learner.params["embedding"])
        assert np.isfinite(new).all() and not np.array_equal(new, old)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(learner.params))
