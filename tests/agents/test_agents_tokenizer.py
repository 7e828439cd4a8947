"""Prompts in, continuations out: ids, texts and byte spans of every kind of tokenizer."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer_zoo import (
    ANY_TEXT,
    CHATML,
    CHATML_WITH_BOS,
    COMPLETE,
    EXACT,
    PIECES,
    SHARED_MODELS,
    STORY,
    TEXTS,
    THINKING,
    byte_level_hf,
    exact,
    letters_hf,
    refuse,
    sentencepiece_hf,
    unigram_hf,
)
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer


def control_ids(tokenizer: Tokenizer) -> set[int]:
    return {id_ for id_, t in tokenizer._hf.added_tokens_decoder.items() if t.special}


@pytest.mark.parametrize("name", EXACT)
@given(text=TEXTS)
@example(text="".join(PIECES))
@example(text="   two\n\n  words  ")
@settings(max_examples=40, deadline=None)
def test_texts_survive_and_never_become_control_tokens(name, text):
    """Emoji, combining marks, CJK, LaTeX, CRLF, runs of spaces, look-alikes of control tokens."""
    tokenizer = exact(name)
    (ids,) = tokenizer.encode_texts([text])
    assert tokenizer.decode(ids) == text
    assert control_ids(tokenizer).isdisjoint(ids)
    assert tokenizer.encode_texts([tokenizer.decode(ids)]) == [ids]


@pytest.mark.parametrize("name", COMPLETE)
@given(text=ANY_TEXT)
@settings(max_examples=25, deadline=None)
def test_any_text_at_all_survives(name, text):
    tokenizer = exact(name)
    assert tokenizer.decode_batch(tokenizer.encode_texts([text])) == [text]


@pytest.mark.parametrize("name", EXACT)
@given(text=TEXTS)
@settings(max_examples=25, deadline=None)
def test_spans_are_each_tokens_own_bytes(name, text):
    """A character split over tokens: byte spans, not character spans."""
    tokenizer, raw = exact(name), text.encode()
    ids, spans = tokenizer.encode_with_spans(text)
    assert [ids] == tokenizer.encode_texts([text])
    assert [a for a, _ in spans] + [len(raw)] == [0] + [b for _, b in spans]
    for id_, (start, end) in zip(ids, spans, strict=True):
        # U+FFFD has bytes of its own, so a token that is half a character cannot hide in it.
        assert tokenizer.decode([id_]) == raw[start:end].decode(errors="replace")
    assert tokenizer.decode_with_spans(ids) == (text, spans)


def test_a_character_split_over_two_tokens():
    """Llama against Qwen, "é" split over two tokens, BOS on one side only."""
    split, spans = byte_tokenizer().encode_with_spans("né")
    assert (split, spans) == ([0x6E, 0xC3, 0xA9], [(0, 1), (1, 2), (2, 3)])
    with_bos = Tokenizer(byte_level_hf(adds_bos=True))
    ids, spans = with_bos.encode_with_spans("né")
    assert with_bos.bos_id not in ids
    assert spans == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("make", [sentencepiece_hf, lambda: sentencepiece_hf(metaspace=True)])
def test_a_continuation_keeps_its_leading_space(make):
    """Cut HF's ids of a document at each word: the rest decodes to the rest, and back."""
    hf = make()
    tokenizer = Tokenizer(hf)
    ids = hf.encode(STORY, add_special_tokens=False)
    starts = [i for i, t in enumerate(hf.convert_ids_to_tokens(ids)) if t.startswith("\u2581")]
    words = STORY.split(" ")
    assert len(starts) == len(words)
    for word, start in enumerate(starts):
        rest = " " + " ".join(words[word:])
        assert tokenizer.decode(ids[start:]) == rest
        assert tokenizer.encode_texts([rest]) == [ids[start:]]
    inside = tokenizer.encode_texts(["nce upon"])
    assert tokenizer.decode_batch(inside) == ["nce upon"]


def test_stories_tokenizer_agrees_with_its_published_prompt():
    """llama2.c: "Once upon a time" is 403 407 261 378 in the 512-token vocabulary."""
    hf = sentencepiece_hf()
    expected = hf.encode("Once upon a time", add_special_tokens=False)
    tokenizer = Tokenizer(hf)
    if (SHARED_MODELS / "stories260k").exists():
        tokenizer, expected = exact("stories260k"), [403, 407, 261, 378]
    assert tokenizer.encode_prompt("Once upon a time") == expected
    assert tokenizer.decode(expected) == " Once upon a time"


@pytest.mark.parametrize("name", EXACT)
def test_plain_prompts_and_texts_agree_with_transformers(name):
    """HF's own encoding and decoding are the reference where it loses nothing."""
    tokenizer = exact(name)
    hf, plain = tokenizer._hf, Tokenizer(tokenizer._hf, chat=False)
    text = "the cat\n said: 42 東京 " + STORY
    assert plain.encode_prompt(text) == hf.encode(text)
    ids = [*hf.encode(text, add_special_tokens=False), tokenizer.eos_id]
    # HF takes the space that SentencePiece puts before a document for its own and drops it.
    assert tokenizer.decode(ids).removeprefix(" ") == hf.decode(ids)
    assert tokenizer.decode(ids).endswith(hf.eos_token)


def test_text_that_a_model_would_merge_into_its_end_token():
    """A peer writes `</s>`: a Unigram model has that piece, and it must not stop the learner."""
    tokenizer = Tokenizer(unigram_hf())
    text = "the end</s></s> of <s>"
    (ids,) = tokenizer.encode_texts([text])
    assert control_ids(tokenizer).isdisjoint(ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_with_spans(text)[1][-2:] == [(20, 21), (21, 22)]


def test_unknown_characters_become_the_unknown_token():
    """It is marked as special, but it is text; unless it is the end token as well."""
    hf = unigram_hf()
    assert Tokenizer(hf).encode_with_spans("té") == (
        [hf.convert_tokens_to_ids("t"), hf.unk_token_id],
        [(0, 1), (1, 3)],
    )
    assert Tokenizer(hf, extra_stop_ids=[0]).encode_texts(["té"]) == [
        [hf.convert_tokens_to_ids("t")]
    ]


def test_an_end_token_that_is_not_marked_special_is_still_no_text():
    hf = byte_level_hf()
    hf.add_tokens(["<stop>"])
    stop = hf.convert_tokens_to_ids("<stop>")
    assert hf.encode("a<stop>")[-1] == stop
    tokenizer = Tokenizer(hf, extra_stop_ids=[stop])
    (ids,) = tokenizer.encode_texts(["a<stop>"])
    assert stop not in ids and tokenizer.decode(ids) == "a<stop>"


@given(raw=st.binary(max_size=40) | TEXTS.map(lambda text: text.encode()[1:-1]))
@example(raw=b"ok \xf0\x9f\x98")
@example(raw=b"\xff\xe2\x82a\xf0\x9f")
@settings(deadline=None)
def test_broken_utf8_becomes_replacement_characters(raw):
    """A response cut off inside an emoji; the spans still tile the text that peers see."""
    tokenizer = byte_tokenizer()
    text, spans = tokenizer.decode_with_spans(list(raw))
    assert text == tokenizer.decode(list(raw)) == raw.decode(errors="replace")
    assert [a for a, _ in spans] + [len(text.encode())] == [0] + [b for _, b in spans]
    assert all(start < end for start, end in spans)


def test_ids_that_no_token_has_decode_to_nothing():
    """A model's vocabulary is often padded beyond the tokenizer's."""
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([104, 257, 9999, -1, 105]) == "hi"
    assert tokenizer.decode_with_spans([104, 999, 105]) == ("hi", [(0, 1), (1, 1), (1, 2)])


def test_spans_where_a_normalizer_changes_the_text():
    """NFC joins e and its accent: three bytes of text, two byte tokens, which share them."""
    tokenizer = Tokenizer(byte_level_hf(normalizer=normalizers.NFC()))
    ids, spans = tokenizer.encode_with_spans("xe\u0301z")
    assert tokenizer.decode(ids) == "xéz"
    assert spans == [(0, 1), (1, 2), (2, 4), (4, 5)]


@given(text=ANY_TEXT)
@settings(max_examples=40, deadline=None)
def test_spans_always_tile_the_text(text):
    for hf in (_NFKC, _LETTERS):
        ids, spans = hf.encode_with_spans(text)
        if ids:
            assert [a for a, _ in spans] + [len(text.encode())] == [0] + [b for _, b in spans]


_NFKC = Tokenizer(byte_level_hf(normalizer=normalizers.NFKC()))
_LETTERS = Tokenizer(letters_hf())


def test_lone_surrogates_are_replaced():
    tokenizer = train_bpe(["abc"], vocab_size=257)
    (ids,) = tokenizer.encode_texts(["a\ud800b\udc00"])
    assert tokenizer.decode(ids) == "a\ufffdb\ufffd"
    assert tokenizer.decode(tokenizer.encode_prompt("\ud83d")) == "\ufffd"


def test_encoding_from_several_threads():
    """Texts and prompts at the same time: one's setting must not reach the other."""
    hf = byte_level_hf(template=CHATML)
    tokenizer = Tokenizer(hf)
    texts = [f"{STORY} <|im_end|> {i}" for i in range(20)]
    prompt, expected = tokenizer.encode_prompt("<|im_end|>"), tokenizer.encode_texts(texts)
    with ThreadPoolExecutor(4) as pool:
        encoded = [pool.submit(tokenizer.encode_texts, texts) for _ in range(20)]
        prompts = [pool.submit(tokenizer.encode_prompt, "<|im_end|>") for _ in range(200)]
        assert all(future.result() == expected for future in encoded)
        assert all(future.result() == prompt for future in prompts)
    assert hf.backend_tokenizer.encode_special_tokens is False


def test_stop_ids_are_explicit():
    """A base model whose files disagree on the end token: every one of them stops."""
    tokenizer = Tokenizer(byte_level_hf(), extra_stop_ids=[7, 3])
    assert tokenizer.eos_id == 1  # <|endoftext|>
    assert tokenizer.stop_ids == (1, 3, 7)  # 3 is <|im_end|>, named twice
    assert tokenizer.pad_id == tokenizer.eos_id
    assert Tokenizer(letters_hf()).stop_ids == (0,)
    if "smollm2-135m" in EXACT:
        assert exact("smollm2-135m").stop_ids == (0, 2)


def test_ids_below_the_size_that_no_token_has():
    """Phi-4-mini: 18 ids between its words and its last control tokens belong to nothing."""
    hf = letters_hf()
    spec = json.loads(hf.backend_tokenizer.to_str())
    spec["model"]["vocab"] = {"<eos>": 0, "a": 1, "b": 4, "c": 6}
    spec["added_tokens"] = []
    backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    holed = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer = Tokenizer(holed)
    assert (tokenizer.size, tokenizer.missing_ids) == (7, (2, 3, 5))
    assert tokenizer.decode([1, 2, 3, 4, 5, 6]) == "abc"
    assert Tokenizer(hf).missing_ids == ()
    refuse("tokenizer.stop_ids", "have a token", lambda: Tokenizer(holed, extra_stop_ids=[5]))


def test_size_counts_added_tokens():
    hf = byte_level_hf()
    assert Tokenizer(hf).size == 300
    hf.add_tokens(["<new>"])
    tokenizer = Tokenizer(hf)
    assert tokenizer.size == 301 and tokenizer.decode([300]) == "<new>"


@pytest.mark.parametrize("name", EXACT)
def test_save_and_load(name, tmp_path):
    tokenizer = exact(name)
    tokenizer.save(str(tmp_path))
    loaded = Tokenizer.load(str(tmp_path))
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.size, loaded.stop_ids) == (tokenizer.size, tokenizer.stop_ids)
    hf = AutoTokenizer.from_pretrained(tmp_path)
    assert hf.chat_template == tokenizer._hf.chat_template
    assert hf.backend_tokenizer.to_str() == tokenizer._hf.backend_tokenizer.to_str()
    texts = ["".join(PIECES), STORY]
    assert loaded.encode_texts(texts) == tokenizer.encode_texts(texts)
    assert loaded.encode_prompt(STORY) == tokenizer.encode_prompt(STORY)


def test_fingerprints():
    base = Tokenizer(byte_level_hf(template=CHATML))
    assert Tokenizer(byte_level_hf(template=CHATML)).fingerprint == base.fingerprint
    thinking = Tokenizer(byte_level_hf(template=THINKING))
    switched = Tokenizer(byte_level_hf(template=THINKING), chat_options={"enable_thinking": False})
    assert thinking.fingerprint != switched.fingerprint
    for other in (
        Tokenizer(byte_level_hf(template=CHATML), chat=False),
        Tokenizer(byte_level_hf(template=CHATML_WITH_BOS)),
        thinking,
        Tokenizer(byte_level_hf(template=CHATML), extra_stop_ids=[5]),
    ):
        assert other.fingerprint != base.fingerprint
        assert other.vocabulary_fingerprint == base.vocabulary_fingerprint
    assert exact("bpe").vocabulary_fingerprint != base.vocabulary_fingerprint


def test_a_length_limit_in_the_files_cuts_nothing(tmp_path):
    """A prompt longer than some limit is never cut in silence."""
    hf = byte_level_hf()
    hf.backend_tokenizer.enable_truncation(4)
    hf.backend_tokenizer.enable_padding(length=64)
    limited = Tokenizer(hf)
    assert limited.decode(limited.encode_prompt(STORY)) == STORY
    assert limited.fingerprint == Tokenizer(byte_level_hf()).fingerprint


def test_bad_tokenizers_are_refused(tmp_path):
    no_end = byte_level_hf()
    no_end.eos_token = None
    refuse("tok", "no end token", lambda: Tokenizer(no_end, field="tok"))
    refuse("tok.chat", "no chat template", lambda: Tokenizer(letters_hf(), chat=True, field="tok"))
    out_of_range = lambda: Tokenizer(letters_hf(), extra_stop_ids=[999], field="tok")  # noqa: E731
    refuse("tok.stop_ids", "must be in [0, ", out_of_range)
    no_decoder = letters_hf()
    no_decoder.backend_tokenizer.decoder = None
    refuse("tok", "exact text", lambda: Tokenizer(no_decoder, field="tok"))


def test_loading_says_what_is_wrong(tmp_path):
    nowhere = str(tmp_path / "nowhere")
    refuse(
        "agents.0.tokenizer", "loaded", lambda: Tokenizer.load(nowhere, field="agents.0.tokenizer")
    )
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text('{"version": "1.0"')
    refuse("tokenizer", "loaded", lambda: Tokenizer.load(str(broken)))
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    refuse("tokenizer", "not a fast tokenizer", lambda: Tokenizer.load(str(slow)))


def test_code_in_a_tokenizer_directory_is_never_run(tmp_path):
    marker = tmp_path / "ran"
    directory = tmp_path / "remote"
    directory.mkdir()
    (directory / "code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Mine: pass\n")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["code.Mine", None]}})
    )
    refuse("tokenizer", "cannot be loaded", lambda: Tokenizer.load(str(directory)))
    assert not marker.exists()
