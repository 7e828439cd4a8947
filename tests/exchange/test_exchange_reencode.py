"""THL: a peer's responses in the learner's tokens."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_zoo import CHATML, EXACT, TEXTS, byte_level_hf, exact, letters_hf

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.exchange import (
    DriftReport,
    align_log_probs,
    drift,
    reencode,
    response_texts,
    transfer_trace,
)

PAIRS = [(a, b) for a, b in itertools.permutations(EXACT, 2)]
AB = train_bpe(["abab abab"], vocab_size=258)  # "ab" is one token


def through(source, learner, ids, ended):
    return reencode(response_texts(source, ids, ended), ended, source, learner, ids)


@given(pair=st.sampled_from(PAIRS), text=TEXTS, ended=st.booleans())
@settings(max_examples=60, deadline=None)
def test_text_survives_and_only_the_end_token_ends(pair, text, ended):
    source, learner = map(exact, pair)
    ids = source.encode_texts([text])[0] + [source.eos_id] * ended
    (cross,) = through(source, learner, [ids], [ended])
    assert (cross[-1:] == [learner.eos_id]) == ended
    assert learner.decode(cross[: len(cross) - ended]) == text
    assert set(learner.stop_ids).isdisjoint(cross[: len(cross) - ended])


def test_end_token_exactly_when_the_source_ended_with_its_own():
    """Cut off at 3 new tokens: tokens kept, no end token added; pad id = EOS id is no end."""
    chat = Tokenizer(byte_level_hf(template=CHATML), extra_stop_ids=[3])
    letters = byte_tokenizer()
    (a,) = chat.encode_texts(["a"])
    rows = [[*a, 1], [*a, 3], [*a, *a, *a], [], [1], a]
    ended = [True, True, False, False, True, True]  # the last: a stop string, no end token
    assert response_texts(chat, rows, ended) == ["a", "a", "aaa", "", "", "a"]
    expected = [[97, 256], [97, 256], [97, 97, 97], [], [256], [97]]
    assert through(chat, letters, rows, ended) == expected


def test_equal_tokenizers_pass_ids_through():
    """ids whose text encodes to other ids: equal tokenizers keep them, end token included."""
    a, b = (AB.encode_texts([x])[0][0] for x in "ab")
    rows = [[a, b, AB.eos_id], [a, b]]
    again = train_bpe(["abab abab"], vocab_size=258)
    assert through(AB, again, rows, [True, False]) == rows
    assert through(AB, byte_tokenizer(), rows, [True, False]) == [[97, 98, 256], [97, 98]]
    # Back the other way the text is encoded afresh.
    assert through(byte_tokenizer(), AB, [[97, 98]], [False]) == AB.encode_texts(["ab"])


def test_a_base_and_its_instruct_model_exchange_only_the_end_token():
    """Same vocabulary, other template and end token: the ids stay, the end is the learner's."""
    base = Tokenizer(byte_level_hf())
    hf = byte_level_hf(template=CHATML)
    hf.eos_token = "<|im_end|>"
    instruct = Tokenizer(hf)
    assert (base.eos_id, instruct.eos_id) == (1, 3)
    (spelled,) = byte_tokenizer().encode_texts(["the"])
    odd = [base.encode_texts([chr(byte)])[0][0] for byte in spelled]
    assert base.encode_texts(["the"]) != [odd]
    assert through(base, instruct, [[*odd, 1]], [True]) == [[*odd, 3]]
    assert through(instruct, base, [[*odd, 3], odd], [True, False]) == [[*odd, 1], odd]


def test_a_peers_control_tokens_are_plain_text():
    chat = Tokenizer(byte_level_hf(template=CHATML))
    text = "<|im_end|> 4 <|endoftext|><|im_start|>user\n<eos>"
    rows = [[*text.encode(), 256]]
    (cross,) = through(byte_tokenizer(), chat, rows, [True])
    assert cross[-1] == chat.eos_id and set(cross[:-1]).isdisjoint(range(4))
    assert chat.decode(cross[:-1]) == text
    # The source's own control tokens, drawn as tokens, are text to the learner as well.
    (back,) = through(chat, byte_tokenizer(), [[2, 3]], [False])
    assert bytes(back) == b"<|im_start|><|im_end|>"


def test_drift_is_counted():
    """ids whose text encodes to other ids: "ab" drawn as a, b comes back as one token."""
    a, b = (AB.encode_texts([x])[0][0] for x in "ab")
    (ab,) = AB.encode_texts(["ab"])[0]
    rows = [[a, b, AB.eos_id], [ab, AB.eos_id], [b, a], [a, b], []]
    report = drift(AB, rows, [True, True, False, False, False])
    assert report == DriftReport(responses=5, changed=2, tokens=7, tokens_after=5)
    assert (report.share, report.length_ratio) == (2 / 5, 5 / 7)
    empty = drift(AB, [], [])
    assert (empty.share, empty.length_ratio) == (0, 0)


def test_text_that_the_learner_cannot_write_counts_as_drift():
    """A byte cut in half, and control tokens in the middle of a response."""
    letters = byte_tokenizer()
    report = drift(letters, [[0xF0, 0x9F], [65, 256, 65]], [False, False])
    # U+FFFD is three bytes; "<eos>" is five.
    assert report == DriftReport(responses=2, changed=2, tokens=5, tokens_after=3 + 7)


def test_trace_by_hand():
    """ "ab é" from bytes to a tokenizer with "ab": the pair's mass, then byte by byte."""
    ids = [*"ab é".encode(), 256]
    log_probs = [-1.0, -2.0, -4.0, -8.0, -16.0, -32.0]
    cross, aligned, report = transfer_trace(
        byte_tokenizer(), AB, ids, log_probs, ended=True, granularity="token"
    )
    assert [cross] == through(byte_tokenizer(), AB, [ids], [True])
    np.testing.assert_array_equal(aligned, [-3.0, -4.0, -8.0, -16.0, -32.0])
    assert (report.segments, report.source_tokens, report.target_tokens) == (5, 6, 5)
    # By word: "ab", then " é" whose three tokens share 28; the end token apart.
    _, by_word, report = transfer_trace(byte_tokenizer(), AB, ids, log_probs, ended=True)
    np.testing.assert_allclose(by_word, [-3.0, -28 / 3, -28 / 3, -28 / 3, -32.0])
    assert (report.segments, report.several_words) == (3, 0)


def test_trace_of_a_cut_off_response_has_no_end():
    cross, aligned, _ = transfer_trace(
        byte_tokenizer(), AB, [97, 98, 0xF0], [-1.0, -2.0, -4.0], ended=False, granularity="token"
    )
    assert AB.decode(cross) == "ab\ufffd"
    np.testing.assert_allclose(aligned, [-3.0, -4 / 3, -4 / 3, -4 / 3])


def test_trace_of_text_that_the_learner_drops():
    """A vocabulary without the character and without bytes: only the end token is left."""
    learner = Tokenizer(letters_hf())
    ids = [*"é".encode(), 256]
    cross, aligned, _ = transfer_trace(byte_tokenizer(), learner, ids, [-1, -2, -4], ended=True)
    assert (cross, aligned.tolist()) == ([learner.eos_id], [-4.0])
    cross, aligned, _ = transfer_trace(byte_tokenizer(), learner, ids[:2], [-1, -2], ended=False)
    assert (cross, aligned.tolist()) == ([], [])


@pytest.mark.parametrize("name", EXACT)
def test_trace_between_equal_tokenizers_is_the_trace(name):
    tokenizer = exact(name)
    ids = [*tokenizer.encode_texts(["the cat 東京 \\boxed{42}"])[0], tokenizer.eos_id]
    log_probs = np.linspace(-3, -0.1, len(ids))
    cross, aligned, _ = transfer_trace(
        tokenizer, tokenizer, ids, log_probs, ended=True, granularity="token"
    )
    assert cross == ids
    np.testing.assert_array_equal(aligned, log_probs)


@given(
    pair=st.sampled_from(PAIRS),
    text=TEXTS,
    ended=st.booleans(),
    granularity=st.sampled_from(["word", "token"]),
)
@settings(max_examples=60, deadline=None)
def test_traces_keep_their_mass(pair, text, ended, granularity):
    source, learner = map(exact, pair)
    ids = source.encode_texts([text])[0] + [source.eos_id] * ended
    log_probs = [-1.0 - 0.25 * (i % 7) for i in range(len(ids))]
    cross, aligned, report = transfer_trace(
        source, learner, ids, log_probs, ended=ended, granularity=granularity
    )
    assert [cross] == through(source, learner, [ids], [ended])
    assert len(aligned) == len(cross) == report.target_tokens
    np.testing.assert_allclose(aligned.sum(), sum(log_probs), rtol=1e-12)
    if ended:
        assert aligned[-1] == log_probs[-1]


def test_no_one_sided_bos_in_a_trace():
    """BOS on one side only: a response has none on either side."""
    with_bos = Tokenizer(byte_level_hf(adds_bos=True))
    ids, spans = with_bos.encode_with_spans("né")
    source_ids, source_spans = byte_tokenizer().encode_with_spans("né")
    assert len(ids) == len(source_ids) == 3
    aligned = align_log_probs("né", source_spans, [-1, -2, -3], spans, "token")
    np.testing.assert_array_equal(aligned, [-1, -2, -3])
