"""How answers are laid in rows and cut into micro-batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.training.cuts import (
    FEW,
    PADDING,
    Load,
    lay_rows,
    load_of,
    longest_loads,
    make_cuts,
    width_of,
)


@given(data=st.data())
def test_every_answer_with_a_token_is_cut_once_with_its_own_prompt(data):
    """In rows of several agents, where some have fewer answers and some answers are empty."""
    rows, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    prompts, prompt_width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 40))
    tokens = data.draw(st.integers(1, 3000))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    lengths = rng.integers(0, 200, (2, rows, size)) * rng.integers(0, 2, (2, rows, size))
    prompt_of = np.sort(rng.integers(0, prompts, (2, rows, size)), axis=-1)
    widest = max(int(lengths.max()), 4)
    cuts = make_cuts(lengths, prompt_of, (prompts, prompt_width), tokens, widest)
    for a, r in np.ndindex(2, rows):
        seen = []
        for cut in cuts:
            assert cut.answers.shape[:2] == cut.prompts.shape[:2] == (2, rows)
            here = np.asarray(cut.answers)[a, r]
            real = here[here < size]
            seen += real.tolist()
            assert (lengths[a, r, real] <= cut.width).all() and cut.width <= widest
            mine = np.asarray(cut.prompts)[a, r][np.asarray(cut.prompt_of)[a, r]]
            np.testing.assert_array_equal(mine[here < size], prompt_of[a, r, real])
        assert sorted(seen) == np.flatnonzero(lengths[a, r]).tolist()
    for cut in cuts:
        load = load_of(cut, prompt_width)
        assert load.tokens <= tokens or load.answers == 1


@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize(("prompts", "mean"), [(64, 64), (256, 64), (32, 300)])
def test_little_is_padding_where_lengths_differ(samples, prompts, mean):
    """Lengths drawn from an exponential distribution cut at 8 times its mean; short prompts."""
    rng = np.random.default_rng(prompts)
    lengths = np.clip(rng.exponential(mean, prompts * samples), 1, 8 * mean).astype(int)[None]
    prompt_of = np.repeat(np.arange(prompts), samples)[None]
    cuts = make_cuts(lengths, prompt_of, (prompts, 4), 32 * 8 * mean, 8 * mean)
    loads = [load_of(cut, 4) for cut in cuts]
    made = sum(load.answer_tokens for load in loads)
    # The last may have filler besides.
    assert made - lengths.sum() <= sum(max(PADDING * load.tokens, FEW) for load in loads) + FEW
    assert made < lengths.size * 8 * mean / 3
    if lengths.sum() > 10_000:
        assert 1 - lengths.sum() / made < 0.15


def test_answers_of_one_length_are_taken_prompt_by_prompt():
    """8 prompts of 32 tokens with 4 answers of 64: 288 tokens each with its answers."""
    prompt_of = np.repeat(np.arange(8), 4)[None]
    lengths = np.full((1, 32), 64)

    def loads(tokens: int) -> list[Load]:
        return [load_of(cut, 32) for cut in make_cuts(lengths, prompt_of, (8, 32), tokens, 64)]

    assert loads(10_000) == [Load(8, 32, 32, 64)]
    assert loads(4 * 288) == 2 * [Load(4, 32, 16, 64)]
    assert loads(288) == 8 * [Load(1, 32, 4, 64)]
    assert loads(1) == 32 * [Load(1, 32, 1, 64)]
    assert longest_loads(32, 4, 1, 32, 64, 4 * 288) == tuple(loads(4 * 288))
    assert longest_loads(32, 4, 2, 32, 64, 10_000) == (Load(4, 32, 16, 64),)


def test_long_prompts_are_computed_once_whatever_the_lengths():
    """8 prompts of 4,096 tokens whose answers have 1 to 64: padding costs less than a prompt."""
    lengths = np.random.default_rng(0).integers(1, 65, (1, 64))
    prompt_of = np.repeat(np.arange(8), 8)[None]
    cuts = make_cuts(lengths, prompt_of, (8, 4096), 100_000, 64)
    assert sum(load_of(cut, 4096).prompts for cut in cuts) == 8


def test_few_fillers_are_not_worth_another_shape():
    """480 answers that are left of 512 stay together: 32 fillers of 4 tokens are `FEW`.

    Their own padding is 240 of 2,048 + 512 tokens, less than 12%, and with filler more than that.
    """
    lengths = np.repeat([40, 4, 3], [32, 240, 240])[None]
    cuts = make_cuts(lengths, np.arange(512)[None] % 64, (64, 8), 16_384, 40)
    assert [load_of(cut, 8) for cut in cuts] == [Load(32, 8, 32, 40), Load(64, 8, 512, 4)]


@pytest.mark.parametrize(("width", "expected"), [(32, {8}), (33, {8, 4}), (129, {8, 4, 2, 1})])
def test_fewer_prompts_are_another_shape_where_that_saves_much(width, expected):
    """Half of 8 prompts of 32 tokens is `FEW`; 32 answers to 1, 2, ... 8 prompts."""
    found = set()
    for count in range(1, 9):
        prompt_of = np.arange(32)[None] * count // 32
        (cut,) = make_cuts(np.full((1, 32), 64), prompt_of, (8, width), 10_000, 64)
        assert cut.prompts.shape[-1] >= count
        found.add(cut.prompts.shape[-1])
    assert found == expected


def test_shapes_are_few_whatever_the_lengths():
    """500 batches of answers, 32 in each: those shapes that there are come again and again."""
    rng, shapes = np.random.default_rng(1), set()
    prompt_of = np.repeat(np.arange(8), 4)[None]
    for _ in range(500):
        lengths = rng.integers(1, rng.integers(2, 65), (1, 32))
        for cut in make_cuts(lengths, prompt_of, (8, 32), 10_000, 64):
            shapes.add(load_of(cut, 32))
    assert {load.width for load in shapes} <= {4, 6, 8, 12, *range(16, 33, 4), *range(40, 65, 8)}
    assert len(shapes) < 60


def test_widths_are_fine_where_answers_are_long():
    assert [width_of(n) for n in (0, 1, 5, 7, 13, 17, 21, 33, 64, 65, 100)] == [
        *(4, 4, 6, 8, 16, 20, 24, 40, 64, 80, 112)
    ]
    for length in range(17, 3000):
        width = width_of(length)
        assert length <= width < length * 5 / 4
        assert width_of(width) == width


@pytest.mark.parametrize(("count", "rows"), [(12, 1), (12, 4), (10, 4), (3, 8), (0, 2)])
def test_rows_hold_about_as_many_answers_side_by_side_by_prompt(count, rows):
    prompts = np.random.default_rng(count).permutation(np.arange(count) // 3)
    laid = lay_rows(prompts, rows, -(-count // rows) + 1)
    places = laid.answers[laid.answers >= 0]
    assert sorted(places.tolist()) == list(range(count))
    sizes = (laid.answers >= 0).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1
    assert prompts[places].tolist() == sorted(prompts.tolist())
    np.testing.assert_array_equal(laid.prompts >= 0, laid.answers >= 0)
    np.testing.assert_array_equal(laid.prompts[laid.answers >= 0], prompts[places])


def test_a_mini_batch_without_a_token_is_not_cut():
    assert make_cuts(np.zeros((1, 2, 6), int), np.zeros((1, 2, 6), int), (1, 8), 100, 4) == []
