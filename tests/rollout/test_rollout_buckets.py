"""Bucketed lengths: little padding, few programs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.rollout import bucket


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_holds_the_length_grows_with_it_and_wastes_less_than_a_third(length, other):
    size = bucket(length)
    assert size >= length
    assert bucket(size) == size
    assert (length <= other) <= (size <= bucket(other))
    assert size == 4 or 3 * (size - length) < size


def test_bounded_number_of_compiled_shapes():
    """Growing caches, mixed lengths: the set of compiled shapes is bounded."""
    sizes = {bucket(length) for length in range(4097)}
    expected = {4 * 2**i for i in range(11)} | {6 * 2**i for i in range(10)}
    assert sizes == expected


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="length = -1"):
        bucket(-1)
