"""THL between every two tokenizers that people use, or, where those are not at hand, our own.

The environment variable HACPO_ASSETS names a directory with one tokenizer directory for each of
`REAL`, made by `AutoTokenizer.from_pretrained(HUB_ID).save_pretrained("ASSETS/tok-qwen")`: hub id
Qwen/Qwen3-4B for tok-qwen, meta-llama/Llama-3.2-1B-Instruct for tok-llama3,
mistralai/Mistral-7B-Instruct-v0.3 (SentencePiece with byte fallback) for tok-mistral and
mistralai/Mistral-Nemo-Instruct-2407 for tok-tekken. Without it the tokenizers of `tokenizer_zoo`
take their place.
"""

import itertools
import os
import unicodedata
from functools import cache

import numpy as np
import pytest
import tokenizer_zoo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer_zoo import EXACT
from traces import make_trace, slow_masses, slow_segments
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.exchange import DriftReport, drift, reencode, transfer_trace

REAL = ("tok-llama3", "tok-qwen", "tok-mistral", "tok-tekken")
ASSETS = os.environ.get("HACPO_ASSETS")
NAMES = REAL if ASSETS else EXACT
PAIRS = list(itertools.product(NAMES, repeat=2))

PIECES = [
    *("<|im_end|>", "<|im_start|>user\n", "</s>", "<s>", "<eos>", "<unk>", "<pad>", "<0x0A>"),
    *("<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|begin_of_text|>", "<|end|>"),
    *("[INST]", "[/INST]", "<SPECIAL_20>", "<|reserved_special_token_0|>"),
    *("\U0001f600", "\U0001f469\U0001f3fd\u200d\U0001f52c", "\U0001f1ea\U0001f1fa"),
    *("e\u0301", "a\u0323\u0307", "\u00e9", "\ufb01", "\u01c4", "수학은", "证明无穷多个素数"),
    *("\\frac{1}{2}", "\\boxed{42}", "$x^{2}_1$", "\\[\n", "\r\n", "\n\n\n", "\t", "\u00a0"),
    *(" ", "   ", " " * 40, "\u3000", "The answer", " is", "don't", "3.14159", "12345678", "..."),
]
letters = st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co"), exclude_characters="\u2581")
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(letters, max_size=6), max_size=12).map("".join)
EVERYTHING = "".join(PIECES)


@cache
def load(name: str) -> Tokenizer:
    return Tokenizer.load(f"{ASSETS}/{name}") if ASSETS else tokenizer_zoo.exact(name)


@cache
def pieces(name: str) -> tuple[dict[int, str], bool]:
    """Tokens as the vocabulary spells them, and whether in the alphabet of byte-level BPE."""
    backend = load(name)._hf.backend_tokenizer
    byte_level = "ByteLevel" in str(backend.decoder)
    return {id_: piece for piece, id_ in backend.get_vocab().items()}, byte_level


def spans_of(name: str, ids: list[int]) -> list[tuple[int, int]]:
    """Byte spans from the vocabulary alone."""
    table, byte_level = pieces(name)
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    sizes = []
    for piece in (table[id_] for id_ in ids):
        if byte_level:
            sizes.append(len([alphabet[character] for character in piece]))
        elif len(piece) == 6 and piece.startswith("<0x"):
            sizes.append(1)
        else:
            sizes.append(len(piece.replace("\u2581", " ").encode()))
    ends = list(itertools.accumulate(sizes, initial=0))
    return list(itertools.pairwise(ends))


def as_both_keep(text: str, *names: str) -> str:
    """The text, composed if one of the tokenizers (the hub's Qwen) composes whatever it reads."""
    composes = any("NFC" in str(load(name)._hf.backend_tokenizer.normalizer) for name in names)
    return unicodedata.normalize("NFC", text) if composes else text


def control_ids(tokenizer: Tokenizer) -> set[int]:
    added = tokenizer._hf.added_tokens_decoder.items()
    return {id_ for id_, token in added if token.special} | set(tokenizer.stop_ids)


def some_log_probs(count: int) -> list[float]:
    """Between sure and hopeless, none like its neighbour."""
    return [-1e-4 - 7.3 * ((i * 0.618) % 1) ** 3 for i in range(count)]


@pytest.mark.parametrize(("source_name", "learner_name"), PAIRS)
@given(text=TEXTS, ended=st.booleans(), granularity=st.sampled_from(["word", "token"]))
@example(text=EVERYTHING, ended=True, granularity="word")
@example(text=EVERYTHING, ended=False, granularity="token")
@example(text="  The", ended=True, granularity="token")
@settings(max_examples=20, deadline=None)
def test_a_trace_keeps_its_mass(source_name, learner_name, text, ended, granularity):
    source, learner = load(source_name), load(learner_name)
    text = as_both_keep(text, source_name, learner_name)
    (body,) = source.encode_texts([text])
    ids = body + [source.eos_id] * ended
    log_probs = some_log_probs(len(ids))
    trace = make_trace(source, ids, log_probs, ended=ended)
    cross, aligned, report = transfer_trace(trace, source, learner, granularity)
    assert trace.response == text
    assert [cross] == reencode([text], [ended], source, learner, [ids])

    cross_body = cross[: len(cross) - ended]
    assert cross[len(cross_body) :] == [learner.eos_id] * ended
    assert aligned[len(cross_body) :].tolist() == log_probs[len(body) :]
    assert control_ids(learner).isdisjoint(cross_body)
    assert learner.decode(cross_body) == text

    source_spans, spans = spans_of(source_name, body), spans_of(learner_name, cross_body)
    assert list(trace.spans[: len(body)]) == source_spans
    cuts = slow_segments(text, source_spans, spans, granularity)
    before = slow_masses(cuts, source_spans, log_probs[: len(body)])
    after = slow_masses(cuts, spans, aligned[: len(cross_body)])
    np.testing.assert_allclose(after, before, rtol=1e-9)
    np.testing.assert_allclose(aligned.sum(), sum(log_probs), rtol=1e-9)
    assert report.segments == len(cuts) * bool(text) + ended
    assert (report.source_tokens, report.target_tokens) == (len(ids), len(cross))
    if source_name == learner_name and granularity == "token":
        assert (cross, aligned.tolist()) == (ids, log_probs)


@pytest.mark.parametrize(("source_name", "learner_name"), PAIRS)
@given(data=st.data(), granularity=st.sampled_from(["word", "token"]))
@settings(max_examples=20, deadline=None)
def test_whatever_a_peer_draws(source_name, learner_name, data, granularity):
    """Halves of characters, control tokens, ids without text, any of its stop ids at the end."""
    source, learner = load(source_name), load(learner_name)
    stops = st.sampled_from(source.stop_ids)
    drawn = st.integers(0, source.size + 9) | st.integers(0, min(source.size, 512))
    body = data.draw(st.lists(drawn, max_size=25))
    end = data.draw(st.lists(stops, max_size=1))
    log_probs = some_log_probs(len(body) + len(end))
    trace = make_trace(source, body + end, log_probs, ended=bool(end))
    cross, aligned, _ = transfer_trace(trace, source, learner, granularity)
    if source_name == learner_name:
        assert cross == body + end
        np.testing.assert_allclose(aligned.sum(), sum(log_probs), rtol=1e-9)
        return
    cross_body = cross[: len(cross) - len(end)]
    assert cross[len(cross_body) :] == [learner.eos_id] * len(end)
    assert control_ids(learner).isdisjoint(cross_body)
    # A learner without the bytes of a character drops it; what is left carries the mass.
    mass = sum(log_probs[: len(body)]) if cross_body else 0.0
    np.testing.assert_allclose(aligned[: len(cross_body)].sum(), mass, rtol=1e-9)
    assert aligned[len(cross_body) :].tolist() == log_probs[len(body) :]


@pytest.mark.parametrize("name", NAMES)
def test_drift_is_counted(name):
    """A model may spell a word letter by letter; its text comes back in fewer tokens."""
    tokenizer = load(name)
    texts = ["the cat", "\\boxed{42} \U0001f600\r\n", ""]
    rows = tokenizer.encode_texts(texts)
    same = drift(tokenizer, [[*row, tokenizer.eos_id] for row in rows], [True] * 3)
    assert same == DriftReport(3, 0, sum(map(len, rows)), sum(map(len, rows)))
    spelled = [id_ for letter in "the cat" for id_ in tokenizer.encode_texts([letter])[0]]
    assert tokenizer.decode(spelled) == "the cat"
    whole = len(rows[0])
    expected = DriftReport(2, int(whole < 7), 7 + whole, 2 * whole)
    assert drift(tokenizer, [spelled, rows[0]], [False, False]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_text_with_the_character_that_stands_for_a_space(name):
    """U+2581 is how SentencePiece writes a space: three bytes of text can become a token of one."""
    learner, source = load(name), tokenizer_zoo.exact("bytes")
    text = "a\u2581b \u2581\u2581c"
    ids = list(text.encode())
    trace = make_trace(source, ids, some_log_probs(len(ids)), ended=False)
    for granularity in ("word", "token"):
        cross, aligned, report = transfer_trace(trace, source, learner, granularity)
        assert learner.decode(cross) in (text, text.replace("\u2581", " "))
        np.testing.assert_allclose(aligned.sum(), sum(trace.log_probs), rtol=1e-9)
        assert report.target_tokens == len(aligned) == len(cross)
