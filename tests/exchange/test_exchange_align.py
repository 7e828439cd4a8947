"""THL: token log-probs carried over to another tokenization of the same text."""

import json
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_zoo import TEXTS

from hacpo_jax.exchange import AlignmentReport, align_log_probs, alignment_report


def slow_segments(text, source, target, granularity):
    """The definition, read aloud: byte positions at which a segment starts."""
    words, position, after_space = {0}, 0, True
    for character in text:
        if character.isspace() and not after_space:
            words.add(position)
        after_space = character.isspace()
        position += len(character.encode())
    if text[-1:].isspace() and len(words) > 1:  # the whitespace at the end starts no word
        words.discard(len(text.rstrip().encode()))
    common = {s for s, _ in source} & {s for s, _ in target}
    return sorted((common & words if granularity == "word" else common) | {0})


def slow_align(text, source, log_probs, target, granularity):
    cuts = slow_segments(text, source, target, granularity)
    owner = lambda span: sum(cut <= span[0] for cut in cuts)  # noqa: E731
    result = []
    for span in target:
        mates = [other for other in target if owner(other) == owner(span)]
        mass = sum(x for x, s in zip(log_probs, source, strict=True) if owner(s) == owner(span))
        result.append(mass / len(mates))
    return result


def tiling(size: int, cuts) -> list[tuple[int, int]]:
    edges = [0, *sorted({cut % size for cut in cuts} - {0}), size]
    return list(pairwise(edges))


@st.composite
def cases(draw):
    text = draw(TEXTS.filter(bool))
    cuts = st.lists(st.integers(0, 400), max_size=30)
    source, target = (tiling(len(text.encode()), draw(cuts)) for _ in range(2))
    log_probs = [draw(st.floats(-20, 0)) for _ in source]
    return text, source, log_probs, target, draw(st.sampled_from(["word", "token"]))


@given(cases())
@settings(deadline=None)
def test_every_segment_keeps_its_mass(case):
    text, source, log_probs, target, granularity = case
    aligned = align_log_probs(*case)
    np.testing.assert_allclose(aligned, slow_align(*case), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(aligned.sum(), sum(log_probs), rtol=1e-12, atol=1e-12)
    cuts = [*slow_segments(text, source, target, granularity), len(text.encode())]
    for start, end in pairwise(cuts):
        before = sum(x for x, s in zip(log_probs, source, strict=True) if start <= s[0] < end)
        after = sum(x for x, s in zip(aligned, target, strict=True) if start <= s[0] < end)
        np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)


@given(cases())
@settings(deadline=None)
def test_equal_tokenizers_give_the_identity_by_token(case):
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


def test_nothing_aligns_to_nothing():
    assert align_log_probs("", [], [], []).shape == (0,)


def test_spans_must_tile_the_text():
    for bad in ([(0, 1)], [(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 4)], [(1, 3)], []):
        with pytest.raises(ValueError, match="target_spans must tile the 3 bytes"):
            align_log_probs("abc", [(0, 3)], [-1.0], bad)
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
