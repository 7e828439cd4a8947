"""From an algorithm's name to its advantages and capability ratio, by hand."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from made_step import standardised
from tiny_runs import tiny_config

from hacpo_jax.config import Algorithm
from hacpo_jax.exchange import Outcome, Rollout, Scalar, Trace
from hacpo_jax.training.objective import Feedback, make_objective, peer_records
from hacpo_jax.training.step import _capability_ratio as capability_ratio

# Two agents, two prompts, three answers each; one answer is invalid.
REWARDS = np.array([[[1, 0, 0], [1, 1, 1]], [[1, 1, 0], [0, 0, 1]]], np.float32)
VALID = np.array([[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [1, 1, 1]]], bool)
RATIO = np.array([[1.0, 0.8], [1.25, 1.0]], np.float32)


GROUP_ADVANTAGES = np.arange(12, dtype=np.float32).reshape(2, 2, 3) - 5


def advantages(name, **section):
    """`[A learner, A source, P, G]`."""
    objective = make_objective(Algorithm.model_validate({"name": name, **section}), 2)
    feedback = Feedback(*map(jnp.asarray, (REWARDS, VALID, GROUP_ADVANTAGES)))
    ratio = jnp.asarray(RATIO)
    return np.stack([objective.advantages(feedback, ratio, learner) for learner in range(2)])


@pytest.mark.parametrize("name", ["gspo", "grpo", "sgt"])
def test_gspo_grpo_and_sgt_compare_answers_of_one_agent(name):
    expected = np.stack(
        [[standardised(REWARDS[a, p], VALID[a, p]) for p in range(2)] for a in range(2)]
    )
    found = advantages(name)
    for learner in range(2):
        np.testing.assert_allclose(found[learner], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "sgt"])
def test_without_scaling_grpo_is_dr_grpo(name):
    found = advantages(name, grpo={"scale": "none"})
    np.testing.assert_allclose(found[0, 0, 0], [2 / 3, -1 / 3, -1 / 3], rtol=1e-6)
    np.testing.assert_allclose(found[0, 1, 0], [0, 0, 0])
    np.testing.assert_allclose(found[1, 1, 1], [-1 / 3, -1 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("name", ["naive", "xgrpo", "prp"])
def test_naive_sharing_xgrpo_and_prp_compare_all_answers_to_a_prompt(name):
    found = advantages(name)
    for p in range(2):
        expected = standardised(REWARDS[:, p], VALID[:, p])
        for learner in range(2):
            np.testing.assert_allclose(found[learner, :, p], expected, rtol=1e-5)


def test_pooled_advantages_can_be_left_unscaled():
    """Prompt 0: 1, 0, 0, 1, 1 and one invalid."""
    found = advantages("xgrpo", grpo={"scale": "none"})
    np.testing.assert_allclose(found[0, :, 0], [[0.4, -0.6, -0.6], [0.4, 0.4, 0]], rtol=1e-6)


def test_prp_can_carry_advantages_over_from_the_source():
    """As they come, but for answers that do not count."""
    found = advantages("prp", prp={"advantage": "carried"})
    for learner in range(2):
        np.testing.assert_array_equal(found[learner], np.where(VALID, GROUP_ADVANTAGES, 0))


def test_xgrpo_never_changes_support():
    """A prompt that only peers solve has no positive direction for the learner."""
    rewards = jnp.asarray([[[0.0, 0.0]], [[1.0, 0.0]]])
    objective = make_objective(Algorithm(name="xgrpo"), 2)
    feedback = Feedback(rewards, jnp.ones(rewards.shape, bool), rewards)
    assert (objective.advantages(feedback, jnp.ones((2, 2)), 0)[0] < 0).all()


def test_hacpo_takes_its_settings_from_the_config():
    """Learner 0 on prompt 0: baseline (1 + 0.8 * 2) / 5, deviation of 1, 0, 0, 1, 1."""
    deviation = np.std([1, 0, 0, 1, 1], ddof=1)
    baseline = (1 + 0.8 * 2) / 5
    own = (np.array([1, 0, 0]) - baseline) / deviation
    cross = (np.array([1, 1, baseline]) - baseline) / deviation  # the last one is invalid
    found = advantages("hacpo")[0, :, 0]
    np.testing.assert_allclose(found, [own, 1.25 * cross], rtol=1e-4)
    plain = advantages("hacpo", hacpo={"discrepancy": False, "capability_baseline": False})
    mean = 3 / 5
    np.testing.assert_allclose(
        plain[0, :, 0],
        np.array([[1 - mean, -mean, -mean], [1 - mean, 1 - mean, 0]]) / deviation,
        rtol=1e-4,
    )


def test_during_a_warm_up_all_agents_are_equals():
    config = tiny_config("unused", algorithm={"name": "hacpo", "capability": {"warmup_steps": 2}})
    run = types.SimpleNamespace(config=config, agents=(0, 1, 2))
    history = np.array([[0.1, 0.2, 0.4]], np.float32)
    for step in (0, 1):
        np.testing.assert_array_equal(capability_ratio(run, history, step), np.ones((3, 3)))
    ratio = np.asarray(capability_ratio(run, history, 2))
    np.testing.assert_allclose(ratio, [[1, 0.5, 0.25], [2, 1, 0.5], [4, 2, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("gspo", {}, None),
        ("grpo", {}, None),
        ("xgrpo", {}, Scalar),
        ("sgt", {}, Outcome),
        ("hacpo", {}, Rollout),
        ("naive", {}, Rollout),
        ("prp", {}, Rollout),
        ("prp", {"prp": {"denominator": "thl_peer"}}, Trace),
        # A rescue needs the text of what is learned, whatever else is.
        ("gspo", {"rescue": {"coef": 0.1}}, Outcome),
        ("xgrpo", {"rescue": {"coef": 0.1}}, Outcome),
        ("hacpo", {"rescue": {"coef": 0.1}}, Rollout),
        ("prp", {"prp": {"denominator": "thl_peer"}, "rescue": {"coef": 0.1}}, Trace),
    ],
)
def test_an_objective_declares_the_least_record_that_it_can_do_with(name, settings, expected):
    assert peer_records(Algorithm.model_validate({"name": name, **settings})) is expected
