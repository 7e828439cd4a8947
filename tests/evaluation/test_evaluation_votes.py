"""Majority votes against every possible draw, what a vote is, and the bootstrap."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hacpo_jax.evaluation import majority_at_k, standard_error
from hacpo_jax.evaluation.votes import classes, vote


def brute_force(sizes, right, k, silent) -> float:
    """Mean over all draws; classes with equally many votes share the chance."""
    answers = [c for c, size in enumerate(sizes) for _ in range(size)] + [None] * silent
    total, draws = Fraction(0), list(itertools.combinations(answers, k))
    for draw in draws:
        votes = Counter(c for c in draw if c is not None)
        if votes:
            most = max(votes.values())
            winners = [c for c, count in votes.items() if count == most]
            total += Fraction(sum(Fraction(right[c]) for c in winners), len(winners))
    return float(total / len(draws))


@given(
    sizes=st.lists(st.integers(1, 4), max_size=4),
    silent=st.integers(0, 2),
    data=st.data(),
)
def test_every_draw_is_counted(sizes, silent, data):
    count = sum(sizes) + silent
    assume(count > 0)
    right = data.draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(sizes), max_size=len(sizes))
    )
    k = data.draw(st.integers(1, count))
    found = majority_at_k(sizes, right, k, silent)
    assert found == pytest.approx(brute_force(sizes, right, k, silent), abs=1e-12)


def test_by_hand():
    assert majority_at_k([2, 1], [1.0, 0.0], 3) == 1
    assert majority_at_k([2, 2], [1.0, 0.0], 4) == 0.5
    assert majority_at_k([1, 1, 1], [0.0, 1.0, 0.0], 3) == pytest.approx(1 / 3)
    assert majority_at_k([], [], 2, silent=2) == 0
    # Many answers: numbers of draws are beyond what floats hold.
    assert majority_at_k([900, 300], [1.0, 0.0], 1200) == 1


@pytest.mark.parametrize("k", [0, 4])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=f"k = {k}"):
        majority_at_k([2], [1.0], k, silent=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"so \boxed{ \dfrac{1}{2} }", r"\boxed{\frac{1}{2}}."),
        (r"\boxed{1,234}", "The answer is 1234."),
        (r"\boxed{007.50}", "it costs $7.5"),
        (r"\boxed{\text{East}}", r"\boxed{east}"),
        (r"\boxed{90^\circ}", r"\boxed{90°}"),
        ("2 + 2 = 4", "4"),
        ("-0", "0.0"),
        (r"\boxed{50\%}", r"\boxed{50 %}"),
    ],
)
def test_one_answer_in_two_spellings_is_one_vote(one, other):
    assert vote(one, True) == vote(other, True) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [("3", "-3"), (r"\boxed{3,4}", r"\boxed{34}"), ("7-3", "7 or -3"), ("yes", "no"), ("1/2", "2")],
)
def test_different_answers_are_different_votes(one, other):
    assert vote(one, True) != vote(other, True)


def test_answers_without_a_vote():
    assert vote("", True) is None
    assert vote("  \n", True) is None
    assert vote("the sum is 12 and then", False) is None  # cut off: 12 is no final answer
    assert vote(r"\boxed{12} because", False) == "12"


def test_classes_of_one_problem():
    texts = ["5", "so 5.0", "", "6", r"\boxed{5}"]
    assert classes(texts, [True] * 5, [True, True, False, False, False]) == ([3, 1], [2 / 3, 0], 1)


def test_the_bootstrap_comes_near_the_textbook():
    """Of a mean, the standard error is the standard deviation over the root of N."""
    values = np.random.default_rng(3).normal([5.0, -1.0], [2.0, 0.5], (400, 2))
    found = standard_error(values, resamples=4000)
    np.testing.assert_allclose(found, values.std(axis=0) / 20, rtol=0.05)
    np.testing.assert_array_equal(found, standard_error(values, resamples=4000))
    assert (found != standard_error(values, seed=1, resamples=4000)).all()
    np.testing.assert_array_equal(standard_error(np.ones((7, 1))), [0.0])
