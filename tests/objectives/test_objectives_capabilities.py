"""Capability, its window and ratio, and the baseline that follows from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_jax import objectives

NAN = float("nan")

capability = jax.jit(objectives.capability)
capability_ratio = jax.jit(objectives.capability_ratio)
capability_baseline = jax.jit(objectives.capability_baseline)


def test_capability_is_the_mean_reward_of_valid_samples():
    """Verifiers: a failed one (here NaN) must not enter as a 0."""
    rewards = np.array([[[1.0, 0.0], [1.0, NAN]], [[0.5, 9.0], [0.0, 0.25]]])
    valid = np.array([[[1, 1], [1, 0]], [[1, 0], [1, 1]]])
    values, known = capability(rewards, valid=valid)
    np.testing.assert_allclose(values, [2 / 3, 0.25], rtol=1e-6)
    assert known.tolist() == [True, True]


def test_capability_without_a_valid_sample_is_unknown_and_finite():
    rewards = np.array([[[NAN, NAN]], [[1.0, 0.0]]])
    values, known = capability(rewards, valid=np.array([[[0, 0]], [[1, 1]]]))
    assert values.tolist() == [0.0, 0.5]
    assert known.tolist() == [False, True]


def test_capability_of_bools_is_the_share_of_positive_rewards():
    values, _ = capability(np.array([[[0.1, 0.0, -1.0, 2.0]]]) > 0)
    assert values.tolist() == [0.5]
    assert values.dtype == jnp.float32


def test_window_keeps_the_last_k_steps_and_ignores_what_is_not_recorded():
    history = np.full((2, 2), NAN)
    push = jax.jit(objectives.push_history)
    history = push(history, np.array([0.2, 0.0]), np.array([True, False]))
    assert capability_ratio(history).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    history = push(history, np.array([0.4, 0.6]), np.array([True, True]))
    # Agent 1 has one entry: (0.2 + 0.4) / 2 against 0.6.
    np.testing.assert_allclose(capability_ratio(history), [[1, 0.5], [2, 1]], rtol=1e-6)
    history = push(history, np.array([0.8, 0.2]), np.array([True, True]))
    np.testing.assert_allclose(history, [[0.4, 0.6], [0.8, 0.2]], rtol=1e-6)
    np.testing.assert_allclose(capability_ratio(history), [[1, 1.5], [2 / 3, 1]], rtol=1e-6)


def test_ratio_is_floored_and_bounded():
    history = np.array([[0.0, 0.0, 0.9]])
    np.testing.assert_allclose(
        capability_ratio(history), [[1, 1, 0.1], [1, 1, 0.1], [10, 10, 1]], rtol=1e-6
    )
    np.testing.assert_allclose(
        capability_ratio(history, floor=0.45, bounds=(0.6, 1.8)),
        [[1, 1, 0.6], [1, 1, 0.6], [1.8, 1.8, 1]],
        rtol=1e-6,
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6), st.permutations(range(3)))
def test_ratio_of_renamed_agents_is_the_renamed_ratio(values, order):
    history = np.array(values).reshape(2, 3)
    ratio = np.asarray(capability_ratio(history))
    renamed = np.asarray(capability_ratio(history[:, list(order)]))
    np.testing.assert_allclose(renamed, ratio[np.ix_(order, order)], rtol=1e-6)
    np.testing.assert_allclose(ratio * ratio.T, np.ones((3, 3)), rtol=1e-5)
    assert np.all((ratio >= np.float32(0.1)) & (ratio <= 10))


def test_baseline_above_the_largest_reward_falls_back_to_the_own_mean():
    """(10·(1 + 1) + 0 + 1) / 4 > 1: the weak learner's own mean, 1/2, instead."""
    rewards = np.array([[[0.0, 1.0]], [[1.0, 1.0]]])
    ratio = np.array([[1.0, 10.0], [0.1, 1.0]])
    baseline = capability_baseline(rewards, ratio)
    np.testing.assert_allclose(baseline, [[0.5], [(0.1 + 2) / 4]], rtol=1e-6)
    # A task with larger rewards keeps the weighted mean.
    baseline = capability_baseline(rewards, ratio, max_reward=10.0)
    np.testing.assert_allclose(baseline, [[21 / 4], [(0.1 + 2) / 4]], rtol=1e-6)


def test_baseline_falls_back_to_the_joint_mean_without_own_valid_samples():
    rewards = np.array([[[NAN, NAN]], [[1.0, 0.0]], [[1.0, 1.0]]])
    valid = np.array([[[0, 0]], [[1, 1]], [[1, 0]]])
    ratio = np.array([[1.0, 5.0, 5.0], [0.2, 1.0, 1.0], [0.2, 1.0, 1.0]])
    baseline = capability_baseline(rewards, ratio, valid=valid)
    np.testing.assert_allclose(baseline, [[2 / 3], [2 / 3], [2 / 3]], rtol=1e-6)
    nothing = capability_baseline(rewards, ratio, valid=np.zeros_like(valid))
    assert nothing.tolist() == [[0.0], [0.0], [0.0]]


def test_shapes_are_checked_by_name():
    with pytest.raises(ValueError, match=r"ratio has shape \(3, 3\): expected \(2, 2\)"):
        objectives.capability_baseline(np.zeros((2, 1, 4)), np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"history has shape \(2,\): expected \(any, any\)"):
        objectives.capability_ratio(np.ones(2))
    with pytest.raises(ValueError, match="valid has shape"):
        objectives.capability(np.zeros((2, 1, 4)), valid=np.ones((2, 4)))
