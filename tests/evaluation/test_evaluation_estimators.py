"""pass@k against golden pairs and against every possible draw."""

import itertools
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.evaluation import pass_at_k


def brute_force(n: int, c: int, k: int) -> float:
    """Share of all draws of k answers, c of n being right, that hold a right one."""
    draws = list(itertools.combinations([i < c for i in range(n)], k))
    return float(Fraction(sum(map(any, draws)), len(draws)))


@pytest.mark.parametrize("n", range(1, 8))
def test_every_draw_is_counted(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert pass_at_k(n, c, k) == pytest.approx(brute_force(n, c, k), abs=1e-12)


def test_golden_pairs(shared_dir):
    path = shared_dir / "golden" / "pass_at_k.json"
    built_in = [{"n": 8, "c": 4, "k": 2, "value": 1 - 6 / 28}]
    for case in built_in + (json.loads(path.read_text()) if path.exists() else []):
        found = pass_at_k(case["n"], case["c"], case["k"])
        assert found == pytest.approx(case["value"], rel=1e-9, abs=1e-9)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_ends(case):
    n, c = case
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert pass_at_k(n, c, n) == (c > 0)
    assert 0 <= pass_at_k(n, c, (n + 1) // 2) <= 1


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [(4, 5, 1, "c = 5"), (4, -1, 1, "c = -1"), (4, 2, 0, "k = 0"), (4, 2, 5, "k = 5")],
)
def test_arguments_out_of_range(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)
