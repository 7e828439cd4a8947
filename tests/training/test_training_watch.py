"""Warnings: when, for whom, and once."""

import pytest

from hacpo_jax.config import Algorithm
from hacpo_jax.training.watch import WINDOW
from hacpo_jax.training.watch import Watch as WatchOf

FINE = {
    "agent": "a",
    "cross_gradient_fraction": 0.5,
    "ratio/own": 1.0,
    "ratio/b": 0.41,
    "clip_fraction/own": 0.0,
    "clip_fraction/b": 0.93,
    "truncated": 0.2,
    "invalid": 0,
    "updates/skipped": 0,
}


def Watch(**algorithm):
    """Of agents `a` and `b`, HACPO unless another is named."""
    chosen = Algorithm.model_validate(algorithm)
    return WatchOf({"a": chosen, "b": chosen})


def test_a_run_that_learns_says_nothing():
    watch = Watch()
    assert [watch.warnings([FINE]) for _ in range(3 * WINDOW)] == [[]] * (3 * WINDOW)


def test_peers_without_gradient_are_told_once_after_a_whole_window():
    watch = Watch()
    told = [watch.warnings([FINE | {"cross_gradient_fraction": 0.09}]) for _ in range(WINDOW + 5)]
    assert [len(t) for t in told] == [0] * (WINDOW - 1) + [1] + [0] * 5
    (warning,) = told[WINDOW - 1]
    assert warning.startswith("a: ") and "b 0.41" in warning
    assert "clip_low = 0.8" in warning and "alpha = 1" in warning


@pytest.mark.parametrize(("name", "section"), [("naive", "gspo"), ("prp", "grpo")])
def test_the_bounds_named_are_those_of_the_algorithm(name, section):
    watch, low = Watch(name=name), FINE | {"cross_gradient_fraction": 0.0}
    (warning,) = [w for _ in range(WINDOW) for w in watch.warnings([low])]
    assert f"algorithm.{section}.eps_low" in warning and "alpha" not in warning


def test_bounds_are_not_blamed_for_rewards_that_are_all_alike():
    """Nothing is clipped, and still no answer of a peer has an advantage."""
    watch, low = Watch(), FINE | {"cross_gradient_fraction": 0.0, "clip_fraction/b": 0.02}
    (warning,) = [w for _ in range(WINDOW) for w in watch.warnings([low])]
    assert "all alike" in warning and "clip_low" not in warning


def test_one_step_with_gradient_starts_a_new_window():
    watch = Watch()
    low = FINE | {"cross_gradient_fraction": 0.0}
    rows = [low] * (WINDOW - 1) + [FINE] + [low] * (WINDOW - 1)
    assert [watch.warnings([row]) for row in rows] == [[]] * len(rows)


@pytest.mark.parametrize(
    ("sign", "word"),
    [
        ({"truncated": 1.0}, "max_new_tokens"),
        ({"invalid": 2}, "boom"),
        ({"updates/skipped": 1}, "finite"),
    ],
)
def test_single_signs_name_the_agent(sign, word):
    (warning,) = Watch().warnings([FINE | {"agent": "b"} | sign], "boom")
    assert warning.startswith("b: ") and word in warning


def test_without_peers_nothing_is_missed():
    watch = Watch()
    row = {k: v for k, v in FINE.items() if k != "cross_gradient_fraction"}
    assert [watch.warnings([row]) for _ in range(2 * WINDOW)] == [[]] * (2 * WINDOW)
