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


NO_REASON = dict[str, str]().get


def Watch(**algorithm):
    """Of agents `a` and `b`, HACPO unless another is named."""
    chosen = Algorithm.model_validate(algorithm)
    return WatchOf({"a": chosen, "b": chosen})


def test_a_run_that_learns_says_nothing():
    watch = Watch()
    assert [watch.warnings([FINE], NO_REASON) for _ in range(3 * WINDOW)] == [[]] * (3 * WINDOW)


def test_peers_without_gradient_are_told_once_after_a_whole_window():
    watch = Watch()
    told = [
        watch.warnings([FINE | {"cross_gradient_fraction": 0.09}], NO_REASON)
        for _ in range(WINDOW + 5)
    ]
    assert [len(t) for t in told] == [0] * (WINDOW - 1) + [1] + [0] * 5
    (warning,) = told[WINDOW - 1]
    assert warning.startswith("a: ") and "b 0.41" in warning
    assert "clip_low = 0.8" in warning and "alpha = 1" in warning


@pytest.mark.parametrize(("name", "section"), [("naive", "gspo"), ("prp", "grpo")])
def test_the_bounds_named_are_those_of_the_algorithm(name, section):
    watch, low = Watch(name=name), FINE | {"cross_gradient_fraction": 0.0}
    (warning,) = [w for _ in range(WINDOW) for w in watch.warnings([low], NO_REASON)]
    assert f"algorithm.{section}.eps_low" in warning and "alpha" not in warning


def test_bounds_are_not_blamed_for_rewards_that_are_all_alike():
    """Nothing is clipped, and still no answer of a peer has an advantage."""
    watch, low = Watch(), FINE | {"cross_gradient_fraction": 0.0, "clip_fraction/b": 0.02}
    (warning,) = [w for _ in range(WINDOW) for w in watch.warnings([low], NO_REASON)]
    assert "all alike" in warning and "clip_low" not in warning


def test_one_step_with_gradient_starts_a_new_window():
    watch = Watch()
    low = FINE | {"cross_gradient_fraction": 0.0}
    rows = [low] * (WINDOW - 1) + [FINE] + [low] * (WINDOW - 1)
    assert [watch.warnings([row], NO_REASON) for row in rows] == [[]] * len(rows)


@pytest.mark.parametrize(
    ("sign", "word"),
    [
        ({"truncated": 1.0}, "max_new_tokens"),
        ({"invalid": 2}, "the first: boom of b"),
        ({"updates/skipped": 1}, "finite"),
    ],
)
def test_single_signs_name_the_agent(sign, word):
    (warning,) = Watch().warnings([FINE | {"agent": "b"} | sign], "boom of {}".format)
    assert warning.startswith("b: ") and word in warning


def test_figures_that_change_are_not_news():
    watch = Watch()
    rows = [FINE | {"cross_gradient_fraction": 0.0, "ratio/b": 0.3 + i / 100} for i in range(30)]
    assert sum(len(watch.warnings([row], NO_REASON)) for row in rows) == 1


def test_every_agent_has_its_own_reason_for_answers_that_were_not_graded():
    reasons = {"a": "TypeError: of a", "b": "took longer than 1 s"}
    rows = [FINE | {"agent": name, "invalid": 1} for name in ("a", "b", "c")]
    told = "answers could not be graded and were left out"
    assert Watch().warnings(rows, reasons.get) == [
        f"a: {told}; the first: TypeError: of a",
        f"b: {told}; the first: took longer than 1 s",
        f"c: {told}",  # without a token, or in another process
    ]


def test_without_peers_nothing_is_missed():
    watch = Watch()
    row = {k: v for k, v in FINE.items() if k != "cross_gradient_fraction"}
    assert [watch.warnings([row], NO_REASON) for _ in range(2 * WINDOW)] == [[]] * (2 * WINDOW)
