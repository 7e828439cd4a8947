"""THL: a peer's responses in the learner's tokens."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_zoo import CHATML, EXACT, TEXTS, across_words_hf, byte_level_hf, exact, letters_hf
from tokenizers import normalizers
from traces import make_trace

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.exchange import (
    AlignmentReport,
    DriftReport,
    align_log_probs,
    drift,
    reencode,
    response_texts,
    token_spans,
    transfer_trace,
)

PAIRS = [(a, b) for a, b in itertools.permutations(EXACT, 2)]
AB = train_bpe(["abab abab"], vocab_size=258)  # "ab" is one token
BYTES = byte_tokenizer()


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
    trace = make_trace(BYTES, ids, [-1.0, -2.0, -4.0, -8.0, -16.0, -32.0], ended=True)
    cross, aligned, report = transfer_trace(trace, BYTES, AB, "token")
    assert [cross] == through(BYTES, AB, [ids], [True])
    np.testing.assert_array_equal(aligned, [-3.0, -4.0, -8.0, -16.0, -32.0])
    assert (report.segments, report.source_tokens, report.target_tokens) == (5, 6, 5)
    # By word: "ab", then " é" whose three tokens share 28; the end token apart.
    _, by_word, report = transfer_trace(trace, BYTES, AB)
    np.testing.assert_allclose(by_word, [-3.0, -28 / 3, -28 / 3, -28 / 3, -32.0])
    assert (report.segments, report.several_words) == (3, 0)


def test_reports_by_hand():
    """A learner with "a b" in one token: in "a b a a b" words 1 and 2 and words 4 and 5 share."""
    learner = Tokenizer(across_words_hf())
    ids = [*b"a b a a b", 256]
    trace = make_trace(BYTES, ids, [-1.0] * 9 + [-5.0], ended=True)
    cross, aligned, report = transfer_trace(trace, BYTES, learner)
    assert [learner.decode([id_]) for id_ in cross] == ["a b", " a", " ", "a b", "<eos>"]
    # "a b", " a", " a b" (two tokens), and the end.
    np.testing.assert_array_equal(aligned, [-3.0, -2.0, -2.0, -2.0, -5.0])
    assert report == AlignmentReport(segments=4, several_words=2, source_tokens=10, target_tokens=5)
    assert report.several_words_share == 2 / 4
    assert report.tokens_per_segment == 5 / 4
    assert report.length_ratio == 5 / 10


def test_spans_of_a_trace():
    """Whole bytes of the text, none for an id that no token has, none for the end token."""
    ids = [*"né".encode(), 999, 0xF0, 256]
    assert token_spans(BYTES, ids, ended=True) == [(0, 1), (1, 2), (2, 3), (3, 3), (3, 6), (6, 6)]
    # Cut off, the last id is no end: it is text like any other.
    assert token_spans(BYTES, ids, ended=False)[-1] == (6, 6 + len("<eos>"))
    assert token_spans(BYTES, [], ended=True) == []


def test_trace_of_a_cut_off_response_has_no_end():
    trace = make_trace(BYTES, [97, 98, 0xF0], [-1.0, -2.0, -4.0], ended=False)
    cross, aligned, _ = transfer_trace(trace, BYTES, AB, "token")
    assert AB.decode(cross) == "ab\ufffd"
    np.testing.assert_allclose(aligned, [-3.0, -4 / 3, -4 / 3, -4 / 3])


def test_trace_of_text_that_the_learner_composes():
    """Qwen's tokenizers read e and its accent as one character, by NFC: three bytes become two."""
    learner = Tokenizer(byte_level_hf(normalizer=normalizers.NFC()))
    spelled = learner.encode_texts(["e"])[0] + learner.encode_texts(["\u0301"])[0]
    assert drift(learner, [spelled], [False]) == DriftReport(1, 1, tokens=3, tokens_after=2)
    trace = make_trace(BYTES, [*"e\u0301a".encode(), 256], [-1, -2, -4, -8, -16], ended=True)
    assert trace.response == "e\u0301a"
    cross, aligned, _ = transfer_trace(trace, BYTES, learner, "token")
    assert learner.decode(cross[:-1]) == "\u00e9a" and len(cross) == 4
    # The two bytes of the character share the three that it was written with.
    np.testing.assert_array_equal(aligned, [-1, -6, -8, -16])


def test_trace_of_text_that_the_learner_drops():
    """A vocabulary without the character and without bytes: only the end token is left."""
    learner = Tokenizer(letters_hf())
    ids = [*"é".encode(), 256]
    trace = make_trace(BYTES, ids, [-1, -2, -4], ended=True)
    cross, aligned, report = transfer_trace(trace, BYTES, learner)
    assert (cross, aligned.tolist()) == ([learner.eos_id], [-4.0])
    assert report == AlignmentReport(segments=1, source_tokens=1, target_tokens=1)
    cut_off = make_trace(BYTES, ids[:2], [-1, -2], ended=False)
    cross, aligned, report = transfer_trace(cut_off, BYTES, learner)
    assert (cross, aligned.tolist(), report) == ([], [], AlignmentReport())


def test_trace_of_ids_that_decode_to_nothing():
    """A model's vocabulary can be larger than its tokenizer's: ids 999 have no text."""
    ids, log_probs = [97, 999, 98, 999, 256], [-1.0, -2.0, -4.0, -8.0, -16.0]
    trace = make_trace(BYTES, ids, log_probs, ended=True)
    cross, aligned, _ = transfer_trace(trace, BYTES, AB, "token")
    assert cross == [*AB.encode_texts(["ab"])[0], AB.eos_id] and len(cross) == 2
    np.testing.assert_array_equal(aligned, [-15.0, -16.0])
    cross, aligned, _ = transfer_trace(trace, BYTES, BYTES, "token")
    assert (cross, aligned.tolist()) == (ids, log_probs)
    nothing = make_trace(BYTES, [999, 256], [-2.0, -16.0], ended=True)
    cross, aligned, _ = transfer_trace(nothing, BYTES, AB)
    assert (cross, aligned.tolist()) == ([AB.eos_id], [-16.0])


def test_trace_between_a_base_and_its_instruct_model():
    """Same vocabulary, another end token: each id keeps its log-prob, the end's goes to the end."""
    base = Tokenizer(byte_level_hf())
    hf = byte_level_hf(template=CHATML)
    hf.eos_token = "<|im_end|>"
    instruct = Tokenizer(hf)
    (body,) = base.encode_texts(["the cat \N{PILE OF POO}"])
    log_probs = np.linspace(-3, -0.1, len(body) + 1)
    for stop in base.stop_ids:
        trace = make_trace(base, [*body, stop], log_probs, ended=True)
        cross, aligned, _ = transfer_trace(trace, base, instruct, "token")
        assert cross == [*body, instruct.eos_id]
        np.testing.assert_array_equal(aligned, log_probs)


@pytest.mark.parametrize("name", EXACT)
@given(data=st.data(), ended=st.booleans())
@settings(max_examples=20, deadline=None)
def test_trace_between_equal_tokenizers_is_the_trace(name, data, ended):
    """Whatever was drawn: broken characters, control tokens, ids without text, any stop id."""
    tokenizer = exact(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.size + 9), max_size=20))
    ids += [data.draw(st.sampled_from(tokenizer.stop_ids))] * ended
    log_probs = np.linspace(-3, -0.1, len(ids))
    trace = make_trace(tokenizer, ids, log_probs, ended=ended)
    cross, aligned, _ = transfer_trace(trace, tokenizer, tokenizer, "token")
    assert cross == ids
    np.testing.assert_array_equal(aligned, log_probs)


def test_no_one_sided_bos_in_a_trace():
    """BOS on one side only: a response has none on either side."""
    with_bos = Tokenizer(byte_level_hf(adds_bos=True))
    ids, spans = with_bos.encode_with_spans("né")
    source_ids, source_spans = byte_tokenizer().encode_with_spans("né")
    assert len(ids) == len(source_ids) == 3
    aligned = align_log_probs("né", source_spans, [-1, -2, -3], spans, "token")
    np.testing.assert_array_equal(aligned, [-1, -2, -3])
