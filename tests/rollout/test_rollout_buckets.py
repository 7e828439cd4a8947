"""Bucketed lengths: little padding, few programs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.rollout import bucket, fitting_width, ring_widths


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


def test_widths_of_a_ring_by_hand():
    assert ring_widths(1) == (1,)  # nothing is ever written to it
    assert ring_widths(2) == (1,)
    assert ring_widths(16) == (15,)
    assert ring_widths(18) == (32,)
    assert ring_widths(65) == (64,)
    assert ring_widths(66) == (48, 80)
    assert ring_widths(1024) == (64, 128, 256, 512, 1024)


@given(st.integers(2, 10**6))
def test_a_ring_grows_by_halves_to_about_what_answers_may_need(longest):
    widths = ring_widths(longest)
    assert longest - 1 <= widths[-1] < longest - 1 + 16
    assert widths[0] <= 64
    assert all(width % 16 == 0 for width in widths if width > 15)
    for width, following in itertools.pairwise(widths):
        assert 2 * width - 30 <= following <= 2 * width


@given(st.data(), st.integers(2, 3000))
def test_a_ring_has_room_for_the_longest_answer_and_little_more(data, most):
    """Whatever lengths follow each other, as far as a segment can bring them."""
    widths, width, longest = ring_widths(most), ring_widths(most)[0], 0
    for _ in range(20):
        before, width = width, fitting_width(widths, width, longest)
        assert longest < width
        assert abs(widths.index(width) - widths.index(before)) <= 1
        # An answer is cut off when its last token is drawn, which is never in the ring.
        grown = data.draw(st.integers(longest + 1, width))
        longest = data.draw(st.integers(0, min(grown, most - 2)))


def test_a_ring_shrinks_when_three_quarters_of_a_narrower_one_do():
    widths = (64, 128, 256)
    assert fitting_width(widths, 128, 128) == 256
    assert fitting_width(widths, 128, 127) == 128
    assert fitting_width(widths, 128, 49) == 128
    assert fitting_width(widths, 128, 48) == 64
    assert fitting_width(widths, 256, 0) == 128
    assert fitting_width(widths, 64, 0) == 64
