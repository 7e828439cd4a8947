"""Own answers scored by the trainer, where the sampler's rounding would pass for learning."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import tiny_config

from hacpo_jax.agents import initial_params
from hacpo_jax.rollout import answer, answer_keys
from hacpo_jax.training.rescore import policy_log_probs, rescore
from hacpo_jax.training.run import prepare
from hacpo_jax.training.step import Frozen, train_step
from hacpo_jax.training.trainer import fresh_run_state

INDICES = np.array([4, 1])


def drawn(run):
    (group,) = run.groups
    params = initial_params(group, 0)
    keys = answer_keys(0, group.indices, 0, INDICES.tolist(), 3)
    prompts = run.train.prompts(group.indices[0], INDICES.tolist())
    rollouts = answer(params, prompts, keys, run.sampling_spec(group), max_rows=6)
    return group, params, rollouts


def run_of(dtype: str, **training):
    return prepare(
        tiny_config(
            "unused",
            agents=("one", "three"),
            sampling={"max_new_tokens": 7, "temperature": 0.7},
            training={"compute_dtype": dtype, "micro_batch_tokens": 40, **training},
        )
    )


def test_in_float32_trainer_and_sampler_agree_and_nothing_follows_the_end():
    run = run_of("float32")
    group, params, rollouts = drawn(run)
    scored = policy_log_probs(run, group, params, rollouts.tokens, rollouts.lengths, INDICES)
    np.testing.assert_allclose(scored, rollouts.log_probs, atol=1e-4)
    after = np.arange(7) >= rollouts.lengths[..., None]
    assert not scored[after].any()


def test_rescoring_changes_log_probs_alone_and_tells_the_largest_change():
    run = run_of("bfloat16")
    group, params, rollouts = drawn(run)
    scored, gaps = rescore(run, group, params, rollouts, INDICES)
    assert scored.tokens is rollouts.tokens and scored.lengths is rollouts.lengths
    expected = [
        max(abs(a - b).ravel()) for a, b in zip(scored.log_probs, rollouts.log_probs, strict=True)
    ]
    assert gaps.tolist() == expected and min(expected) > 0


@pytest.mark.parametrize(
    ("dtype", "chosen", "rescores"),
    [
        ("float32", "auto", False),
        ("bfloat16", "auto", True),
        ("bfloat16", "sampler", False),
        ("float32", "trainer", True),
    ],
)
def test_who_scores(dtype, chosen, rescores):
    run = run_of(dtype, behavior_log_probs=chosen)
    assert run.dtype == jnp.dtype(dtype)
    assert run.rescores is rescores


def test_in_bfloat16_the_first_update_starts_at_ratio_1():
    """Fault: sampler and trainer round differently, by more than the own clip is wide."""
    run = run_of("bfloat16")
    state = fresh_run_state(run, [initial_params(group, 0) for group in run.groups])
    _, result = train_step(run, state, [Frozen()])
    for row in result.metrics:
        # The only own update of an own-first step is its first.
        assert row["ratio/own"] == pytest.approx(1, abs=1e-5)
        assert row["clip_fraction/own"] == 0
        assert row["sampler_gap"] > 1e-4
