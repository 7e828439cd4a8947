"""From an algorithm's name to its advantages and capability ratio, by hand."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import tiny_config

from hacpo_jax.config import Algorithm
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.step import _capability_ratio as capability_ratio

# Two agents, two prompts, three answers each; one answer is invalid.
REWARDS = np.array([[[1, 0, 0], [1, 1, 1]], [[1, 1, 0], [0, 0, 1]]], np.float32)
VALID = np.array([[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [1, 1, 1]]], bool)
RATIO = np.array([[1.0, 0.8], [1.25, 1.0]], np.float32)


def standardised(values, valid):
    """(R - mean) / (std + 1e-6), ddof 1, 0 where invalid or all alike."""
    chosen = values[valid]
    if len(set(chosen.tolist())) < 2:
        return np.zeros(values.shape)
    return np.where(valid, (values - chosen.mean()) / (chosen.std(ddof=1) + 1e-6), 0)


def advantages(name, **section):
    algorithm = Algorithm.model_validate({"name": name, **section})
    objective = make_objective(algorithm, 2)
    return np.asarray(objective.advantages(jnp.asarray(REWARDS), jnp.asarray(VALID), RATIO))


@pytest.mark.parametrize("name", ["gspo", "grpo"])
def test_gspo_and_grpo_compare_answers_of_one_agent(name):
    expected = np.stack(
        [[standardised(REWARDS[a, p], VALID[a, p]) for p in range(2)] for a in range(2)]
    )
    found = advantages(name)
    for learner in range(2):
        np.testing.assert_allclose(found[learner], expected, rtol=1e-5)


def test_without_scaling_grpo_is_dr_grpo():
    found = advantages("grpo", grpo={"scale": "none"})
    np.testing.assert_allclose(found[0, 0, 0], [2 / 3, -1 / 3, -1 / 3], rtol=1e-6)
    np.testing.assert_allclose(found[0, 1, 0], [0, 0, 0])
    np.testing.assert_allclose(found[1, 1, 1], [-1 / 3, -1 / 3, 2 / 3], rtol=1e-6)


def test_naive_sharing_compares_all_answers_to_a_prompt():
    found = advantages("naive")
    for p in range(2):
        expected = standardised(REWARDS[:, p], VALID[:, p])
        for learner in range(2):
            np.testing.assert_allclose(found[learner, :, p], expected, rtol=1e-5)


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
