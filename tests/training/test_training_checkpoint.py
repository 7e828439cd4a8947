"""Checkpoints: whole, bit for bit, and only for the agents that they are of."""

import dataclasses
import functools

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny import LLAMA, QWEN2, random_params, stacked

from hacpo_jax.config import OptimizerConfig
from hacpo_jax.errors import UserError
from hacpo_jax.training.checkpoint import Checkpoints
from hacpo_jax.training.step import RunState
from hacpo_jax.training.update import LearnerState, init_state


@functools.cache
def learner_of(config=LLAMA, agents=2):
    members = [random_params(config, seed) for seed in range(agents)]
    state = init_state(stacked(*members), OptimizerConfig(), 3)
    filled = jax.tree.map(lambda x: x + 7 if x.dtype == np.int32 else x * 1.5, state)
    return jax.device_get(filled)


def state_of(*learners, step=0, window=3) -> RunState:
    history = np.linspace(0, 1, 2 * window, dtype=np.float32).reshape(window, 2)
    history[0] = np.nan
    learners = tuple(jax.tree.map(jax.numpy.array, learner) for learner in learners)
    return RunState(step, 3 * step + 1, learners, history)


def assert_equal(found: RunState, expected: RunState) -> None:
    assert (found.step, found.blocks) == (expected.step, expected.blocks)
    np.testing.assert_array_equal(found.history, expected.history)
    pairs = zip(jax.tree.leaves(found.learners), jax.tree.leaves(expected.learners), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def written(directory, *states: RunState) -> Checkpoints:
    """The states on disk, read by another manager than wrote them."""
    writer = Checkpoints(directory, keep=2)
    for state in states:
        writer.save(state)
    writer.close()
    return Checkpoints(directory, keep=2)


def test_a_state_comes_back_bit_for_bit_though_its_buffers_are_reused_at_once(tmp_path):
    """The step count lives in the state; the next update may donate what is being written."""
    directory = tmp_path / "checkpoints"
    first = Checkpoints(directory, keep=2)
    saved = (learner_of(), learner_of(QWEN2, 1))
    state = state_of(*saved, step=41)
    first.save(state)
    spoiled = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0, tree), donate_argnums=0)(
        state.learners
    )
    jax.block_until_ready(spoiled)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.learners))
    first.close()
    again = Checkpoints(directory, keep=2)
    assert again.latest() == 41
    restored = again.restore(state_of(*saved), 41)
    again.close()
    assert_equal(restored, RunState(41, 124, saved, state.history))
    assert all(isinstance(learner, LearnerState) for learner in restored.learners)


def test_the_start_is_kept_beside_the_latest(tmp_path):
    """Frozen reference policies are the parameters at step 0."""
    assert written(tmp_path / "none").latest() is None
    states = [state_of(learner_of(), step=step) for step in range(0, 10, 2)]
    kept = written(tmp_path / "checkpoints", *states)
    for step in (0, 6, 8):
        assert kept.restore(state_of(learner_of()), step).step == step
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["0", "6", "8"]
    kept.close()


@pytest.mark.parametrize(
    ("like", "path"),
    [
        (
            lambda: state_of(learner_of(dataclasses.replace(LLAMA, num_layers=5))),
            r"learners.0.params.layers.attention.k is \(2, 2, 16, 1, 8\) there and \(2, 5, ",
        ),
        (
            lambda: state_of(learner_of(agents=1)),
            r"params.embedding is \(2, 40, 16\) there and \(1",
        ),
        (lambda: state_of(learner_of(), learner_of()), "learners.1.params.embedding is None there"),
        (
            lambda: state_of(learner_of(dataclasses.replace(LLAMA, qkv_bias=True))),
            "learners.0.params.layers.attention.k_bias is None there",
        ),
        (lambda: state_of(learner_of(), window=5), r"history is \(3, 2\) there and \(5, 2\) here"),
    ],
    ids=["layers", "agents", "groups", "biases", "window"],
)
def test_a_checkpoint_of_other_agents_is_refused_by_the_name_of_an_array(tmp_path, like, path):
    """12 layers restored into 16: an error that names the path."""
    checkpoints = written(tmp_path / "run", state_of(learner_of(), step=1))
    with pytest.raises(UserError, match=f"run/1': is of other agents: .*{path}"):
        checkpoints.restore(like(), 1)
    checkpoints.close()


def test_a_damaged_checkpoint_is_named(tmp_path, monkeypatch):
    checkpoints = written(tmp_path / "run", state_of(learner_of(), step=1))

    def unreadable(self, *args, **kwargs):
        raise Exception("Encountered error while reading array index")  # as Orbax itself does

    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "restore", unreadable)
        with pytest.raises(UserError, match=r"run/1': is damaged.*reading array"):
            checkpoints.restore(state_of(learner_of()), 1)
    metadata = tmp_path / "run" / "1" / "default" / "_METADATA"
    metadata.write_bytes(metadata.read_bytes()[:100])
    with pytest.raises(UserError, match="run/1': is damaged"):
        checkpoints.restore(state_of(learner_of()), 1)
    checkpoints.close()
