"""THL: token log-probs carried over to another tokenization of the same text."""

import json
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_zoo import TEXTS
from traces import slow_align, slow_masses, slow_segments

from hacpo_jax.exchange import AlignmentReport, align_log_probs, alignment_report


def tiling(size: int, cuts) -> list[tuple[int, int]]:
    """Spans of [0, size), empty ones where a cut is repeated: tokens that stand for no text."""
    return list(pairwise([0, *sorted(cut % (size + 1) for cut in cuts), size]))


@st.composite
def cases(draw):
    """A text, two tokenizations of it with or without an end token, and log-probs of the first."""
    text = draw(TEXTS.filter(bool))
    size = len(text.encode())
    cuts = st.lists(st.integers(0, 400), max_size=30)
    source, target = (tiling(size, draw(cuts)) for _ in range(2))
    # An empty span at the end of both would be an end token.
    if source[-1] == target[-1] == (size, size):
        target = [(start, end) for start, end in target if start < size]
    log_probs = [draw(st.floats(-20, 0)) for _ in source]
    return text, source, log_probs, target, draw(st.sampled_from(["word", "token"]))


@given(cases())
@settings(deadline=None)
def test_every_segment_keeps_its_mass(case):
    text, source, log_probs, target, granularity = case
    aligned = align_log_probs(*case)
    np.testing.assert_allclose(aligned, slow_align(*case), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(aligned.sum(), sum(log_probs), rtol=1e-12, atol=1e-12)
    cuts = slow_segments(text, source, target, granularity)
    before, after = slow_masses(cuts, source, log_probs), slow_masses(cuts, target, aligned)
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)


@given(cases(), st.floats(-20, 0))
@settings(deadline=None)
def test_an_end_token_changes_nothing_before_it(case, last):
    text, source, log_probs, target, granularity = case
    end = [(len(text.encode()),) * 2]
    with_end = align_log_probs(
        text, [*source, *end], [*log_probs, last], [*target, *end], granularity
    )
    assert with_end[-1] == last
    np.testing.assert_allclose(with_end[:-1], slow_align(*case), rtol=1e-12, atol=1e-12)


@given(cases())
@settings(deadline=None)
def test_equal_tokenizers_give_the_identity_by_token(case):
    """Also for tokens without text, which share their place with others."""
    text, source, log_probs, _, _ = case
    np.testing.assert_array_equal(
        align_log_probs(text, source, log_probs, source, "token"), log_probs
    )


def golden(shared_dir):
    path = shared_dir / "golden" / "alignment.json"
    if path.exists():
        return json.loads(path.read_text())
    by_hand = {
        "text": "ab cd",
        "source_spans": [[0, 2], [2, 5]],
        "source_log_probs": [-1.0, -3.0],
        "target_spans": [[0, 1], [1, 2], [2, 5]],
        "word": [-0.5, -0.5, -3.0],
        "token": [-0.5, -0.5, -3.0],
    }
    return [by_hand]


def test_golden_pairs(shared_dir):
    for case in golden(shared_dir):
        arguments = [case[k] for k in ("text", "source_spans", "source_log_probs", "target_spans")]
        for granularity in ("word", "token"):
            aligned = align_log_probs(*arguments, granularity)
            np.testing.assert_allclose(aligned, case[granularity], rtol=1e-9, atol=1e-9)


def test_by_hand():
    """One side splits n and é, the other é itself, so they share; " ok" is cut off from them."""
    text = "né ok\n"  # n 0, é 1-2, space 3, ok 4-5, newline 6
    source = [(0, 1), (1, 3), (3, 6), (6, 7)]
    target = [(0, 2), (2, 3), (3, 7)]
    aligned = align_log_probs(text, source, [-1.0, -2.0, -4.0, -8.0], target)
    np.testing.assert_array_equal(aligned, [-1.5, -1.5, -12.0])


def test_the_end_token_is_its_own_segment():
    source, target = [(0, 2), (2, 2)], [(0, 1), (1, 2), (2, 2)]
    for granularity in ("word", "token"):
        aligned = align_log_probs("ab", source, [-2.0, -7.0], target, granularity)
        np.testing.assert_array_equal(aligned, [-1.0, -1.0, -7.0])
    only_end = align_log_probs("", [(0, 0)], [-7.0], [(0, 0)])
    np.testing.assert_array_equal(only_end, [-7.0])


def test_an_id_without_text_keeps_its_mass():
    """An unknown id at the end of a response that was cut off belongs to the last segment."""
    aligned = align_log_probs("a b", [(0, 1), (1, 3), (3, 3)], [-1.0, -2.0, -4.0], [(0, 1), (1, 3)])
    np.testing.assert_array_equal(aligned, [-1.0, -6.0])


def test_an_id_without_text_takes_nothing_from_the_end_token():
    """An unknown id before the end token: its mass stays with the text, where there is any."""
    source = [(0, 2), (2, 2), (2, 2)]
    for granularity in ("word", "token"):
        aligned = align_log_probs(
            "ab", source, [-1.0, -2.0, -4.0], [(0, 1), (1, 2), (2, 2)], granularity
        )
        np.testing.assert_array_equal(aligned, [-1.5, -1.5, -4.0])
    alone = align_log_probs("", [(0, 0), (0, 0)], [-2.0, -4.0], [(0, 0)])
    np.testing.assert_array_equal(alone, [-4.0])


def test_impossible_log_probs_stay_in_their_segment():
    """What is minus infinity or no number spoils its own word only."""
    spans = [(0, 1), (1, 3), (3, 5)]
    aligned = align_log_probs("a b c", spans, [-1.0, -np.inf, -2.0], spans)
    np.testing.assert_array_equal(aligned, [-1.0, -np.inf, -2.0])
    aligned = align_log_probs("a b c", spans, [np.nan, -1.0, -2.0], spans)
    np.testing.assert_array_equal(aligned, [np.nan, -1.0, -2.0])


def test_nothing_aligns_to_nothing():
    assert align_log_probs("", [], [], []).shape == (0,)


def test_spans_must_tile_the_text():
    for bad in ([(0, 1)], [(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 4)], [(1, 3)], []):
        with pytest.raises(ValueError, match="target_spans must tile the 3 bytes"):
            align_log_probs("abc", [(0, 3)], [-1.0], bad)
    with pytest.raises(ValueError, match="must tile the 3 bytes"):
        align_log_probs("abc", [(0, 3), (3, 4)], [-1.0, -1.0], [(0, 3), (3, 4)])
    with pytest.raises(ValueError, match="source_spans must tile"):
        align_log_probs("é", [(0, 1)], [-1.0], [(0, 2)])
    with pytest.raises(ValueError, match=r"shape \(1,\), got \(2,\)"):
        align_log_probs("abc", [(0, 3)], [-1.0, -2.0], [(0, 3)])
    with pytest.raises(ValueError, match="granularity must be word or token, got 'line'"):
        align_log_probs("abc", [(0, 3)], [-1.0], [(0, 3)], "line")


def test_report_by_hand():
    """The first two words of "a bb cc" share a token, the third stands alone; then the end."""
    source = [(0, 1), (1, 4), (4, 7), (7, 7)]
    target = [(0, 3), (3, 4), (4, 5), (5, 7), (7, 7)]
    report = alignment_report("a bb cc", source, target)
    assert report == AlignmentReport(segments=3, several_words=1, source_tokens=4, target_tokens=5)
    both = report + report
    assert (both.segments, both.several_words_share, both.length_ratio) == (6, 1 / 3, 5 / 4)
    assert both.tokens_per_segment == 10 / 6
    # By token there is a cut inside "bb cc" only where both have one.
    assert alignment_report("ab cd", [(0, 1), (1, 5)], [(0, 1), (1, 5)], "token") == (
        AlignmentReport(segments=2, several_words=1, source_tokens=2, target_tokens=2)
    )
    assert AlignmentReport().length_ratio == 0


@pytest.mark.parametrize("piece", [" ", "a", " a", "\n", "é"])
def test_time_is_linear(piece):
    """Peers can write anything: a run of 400,000 spaces takes no longer than other text."""
    text = piece * 400_000
    size = len(text.encode())
    spans = np.stack([np.arange(size), np.arange(1, size + 1)], axis=1)
    started = time.perf_counter()
    aligned = align_log_probs(text, spans, np.full(size, -1.0), spans, "token")
    assert time.perf_counter() - started < 5
    assert aligned.sum() == -size
