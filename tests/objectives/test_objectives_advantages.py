"""Advantages against plain loops, hand arithmetic, and faults that users met."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import objective_loops as loops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_jax import objectives

SETTINGS = list(itertools.product(("learner", "source"), (True, False), (True, False)))


group_advantages = jax.jit(objectives.group_advantages, static_argnames="scale")
pooled_advantages = jax.jit(objectives.pooled_advantages, static_argnames="scale")
hacpo_advantages = jax.jit(objectives.hacpo_advantages)
capability_baseline = jax.jit(objectives.capability_baseline)
success_gate = jax.jit(objectives.success_gate)


@pytest.fixture(scope="module")
def random_rewards():
    """Rewards, validity and ratio of 3 agents on 6 prompts, some of them with equal rewards."""
    rng = np.random.default_rng(0)
    rewards = rng.choice([0.0, 0.3, 1.0], size=(3, 6, 4))
    rewards[:, 1] = 0.3
    valid = rng.random(rewards.shape) < 0.7
    valid[:, 2] = False
    valid[1:, 3] = False
    valid[0, 4] = False
    return rewards, valid, np.array([[1, 4, 2], [0.25, 1, 0.5], [0.5, 2, 1]])


def _all_hacpo(rewards, ratio, valid):
    return [
        objectives.hacpo_advantages(
            rewards, ratio, cross_baseline=c, discrepancy=d, capability_baseline=b, valid=valid
        )
        for c, d, b in SETTINGS
    ]


def test_capability_aware_advantages_match_loops(random_rewards):
    rewards, valid, ratio = random_rewards
    with jax.enable_x64(True):
        actual = jax.jit(_all_hacpo)(rewards, ratio, valid)
        baseline = np.asarray(capability_baseline(rewards, ratio, valid=valid))
    for (cross_baseline, discrepancy, capability), got in zip(SETTINGS, actual, strict=True):
        expected = loops.hacpo_advantages(
            rewards, ratio, valid,
            cross_baseline=cross_baseline, discrepancy=discrepancy, capability=capability,
        )  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    for k, p in np.ndindex(3, 6):
        expected = loops.capability_baseline(rewards, ratio, valid, k, p)
        np.testing.assert_allclose(baseline[k, p], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["std", "none"])
def test_group_and_pooled_advantages_match_loops(random_rewards, scale):
    rewards, valid, _ = random_rewards
    with jax.enable_x64(True):
        group = np.asarray(group_advantages(rewards, scale=scale, valid=valid))
        pooled = np.asarray(pooled_advantages(rewards, scale=scale, valid=valid))
    for a, p in np.ndindex(3, 6):
        expected = loops.group_advantages(rewards[a, p], valid[a, p], scale)
        np.testing.assert_allclose(group[a, p], expected, rtol=1e-9, atol=1e-9)
    for p in range(6):
        expected = loops.group_advantages(rewards[:, p].ravel(), valid[:, p].ravel(), scale)
        np.testing.assert_allclose(pooled[:, p].ravel(), expected, rtol=1e-9, atol=1e-9)


def test_without_validity_every_sample_counts():
    rewards = np.array([[[0.0, 1.0]], [[1.0, 0.5]]])
    ratio, everywhere = np.array([[1.0, 0.5], [2.0, 1.0]]), np.ones((2, 1, 2))
    for function in (
        group_advantages,
        pooled_advantages,
        functools.partial(hacpo_advantages, ratio=ratio),
        functools.partial(capability_baseline, ratio=ratio),
    ):
        assert np.array_equal(function(rewards), function(rewards, valid=everywhere))


@pytest.mark.parametrize("reward", [1.0, 0.0, 0.7, 1 / 3])
def test_equal_rewards_give_exactly_zero(reward):
    """Objectives: rewards 1,1,1,1; also those whose float32 mean is off by rounding."""
    rewards = np.full((2, 3, 7), reward)
    assert not np.any(group_advantages(rewards))
    assert not np.any(group_advantages(rewards, scale="none"))
    assert not np.any(pooled_advantages(rewards))
    assert not np.any(hacpo_advantages(rewards, np.array([[1, 0.5], [2, 1]])))


def test_a_group_of_one_value_is_defined():
    """Objectives: standard deviation of one value."""
    assert group_advantages(np.array([[1.0], [0.0]])).tolist() == [[0.0], [0.0]]
    one_valid = group_advantages(np.array([5.0, 1.0]), valid=np.array([0, 1]))
    assert one_valid.tolist() == [0.0, 0.0]
    gradient = jax.jit(jax.grad(lambda r: objectives.group_advantages(r).sum()))
    assert np.isfinite(gradient(np.ones(1))).all()


def test_everything_invalid_is_defined():
    """Objectives: every answer cut off and masked."""
    rewards, nothing = np.full((2, 1, 3), jnp.nan), np.zeros((2, 1, 3))
    assert not np.any(group_advantages(rewards, valid=nothing))
    assert not np.any(pooled_advantages(rewards, valid=nothing))
    assert not np.any(hacpo_advantages(rewards, np.ones((2, 2)), valid=nothing))


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1e30])
def test_an_invalid_sample_leaves_the_groups_statistics(junk):
    """Masks: one of two answers rejected or empty; the rest is as if it had not been there."""
    valid = np.array([1, 1, 0, 1])
    actual = group_advantages(np.array([1.0, 0.0, junk, 1.0]), valid=valid)
    smaller = np.asarray(group_advantages(np.array([1.0, 0.0, 1.0])))
    np.testing.assert_allclose(actual, [smaller[0], smaller[1], 0, smaller[2]], rtol=1e-6)

    ratio = np.array([[1.0, 0.5], [2.0, 1.0]])
    rewards = np.array([[[1.0, junk]], [[1.0, 0.0]]])
    actual = hacpo_advantages(rewards, ratio, valid=np.array([[[1, 0]], [[1, 1]]]))
    deviation = (1 / 3) ** 0.5 + 1e-6  # of 1, 1, 0
    # Learner 0's baseline is (1 + 0.5) / 3, learner 1's (2 + 1) / 3.
    expected = [
        [[[0.5 / deviation, 0]], [[1 / deviation, -1 / deviation]]],
        [[[0, 0]], [[0, -1 / deviation]]],
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_of_two_answers_one_rejected_leaves_nothing_to_compare():
    advantages = group_advantages(np.array([0.0, 1.0]), valid=np.array([True, False]))
    assert advantages.tolist() == [0.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-4, 4, width=16), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.permutations(range(5)),
)
def test_group_advantages_are_centered_bounded_and_follow_their_samples(rewards, valid, order):
    rewards, valid, order = np.array(rewards), np.array(valid), list(order)
    actual = np.asarray(group_advantages(rewards, valid=valid))
    assert np.isfinite(actual).all()
    # The largest deviation from the mean of n values is (n - 1) / sqrt(n) sample deviations.
    assert np.abs(actual).max() <= 4 / 5**0.5 + 1e-4
    assert abs(float(actual.sum())) < 1e-3
    assert not np.any(actual[~valid])
    renamed = group_advantages(rewards[order], valid=valid[order])
    np.testing.assert_allclose(renamed, actual[order], atol=1e-3)


def test_half_precision_rewards_are_computed_in_single():
    rewards = jnp.array([1.0, 0.0, 0.5], jnp.bfloat16)
    actual = group_advantages(rewards)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, [1, -1, 0], atol=1e-5)


def test_unknown_choices_and_shapes_are_named():
    rewards, ratio = np.zeros((2, 1, 3)), np.ones((2, 2))
    with pytest.raises(ValueError, match=r"scale = 'max': expected 'std' or 'none'"):
        objectives.group_advantages(rewards, scale="max")
    with pytest.raises(ValueError, match=r"scale = '': expected 'std' or 'none'"):
        objectives.pooled_advantages(rewards, scale="")
    with pytest.raises(ValueError, match=r"cross_baseline = 'peer': expected 'learner' or 'sour"):
        objectives.hacpo_advantages(rewards, ratio, cross_baseline="peer")
    with pytest.raises(ValueError, match=r"ratio has shape \(1, 2\): expected \(2, 2\)"):
        objectives.hacpo_advantages(rewards, ratio[:1], capability_baseline=False)


def test_gate_opens_where_only_peers_succeed():
    success = np.array(
        [  # prompts: all fail, all succeed, only agent 1 does, agents 0 and 2 do
            [[0, 0], [1, 1], [0, 0], [0, 1]],
            [[0, 0], [0, 1], [1, 0], [0, 0]],
            [[0, 0], [1, 0], [0, 0], [1, 1]],
        ]
    )
    expected = [
        [False, False, True, False],
        [False, False, False, True],
        [False, False, True, False],
    ]
    assert success_gate(success).tolist() == expected
    valid = np.ones_like(success)
    valid[1, 2, 0] = 0  # agent 1's only success does not count
    expected[0][2] = expected[2][2] = False
    assert success_gate(success > 0, valid=valid).tolist() == expected
    assert not success_gate(np.array([[[0, 0]]])).any()
