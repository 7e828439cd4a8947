"""Tokenizers made from nothing."""

import pytest
from tokenizer_zoo import STORY

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, character_tokenizer, train_bpe
from hacpo_jax.errors import UserError


def test_bytes_are_their_own_ids():
    tokenizer = byte_tokenizer()
    assert tokenizer.encode_texts(["aé\n<eos>"]) == [list("aé\n<eos>".encode())]
    assert (tokenizer.size, tokenizer.eos_id, tokenizer.stop_ids) == (257, 256, (256,))
    assert tokenizer.decode([*range(32, 127), 256]) == bytes(range(32, 127)).decode() + "<eos>"


def test_characters_in_code_point_order_after_the_bytes():
    tokenizer = character_tokenizer(["ba", "é"])
    # <eos>; 256 bytes without a and b; a, b, é
    assert tokenizer.size == 1 + 254 + 3
    assert tokenizer.encode_texts(["abé"]) == [[255, 256, 257]]
    # Byte 0xC3 is the 196th of the 256, and two of those before it are left out.
    assert tokenizer.encode_texts(["\x00è"]) == [[1, 1 + 0xC3 - 2, 1 + 0xA8 - 2]]
    assert tokenizer.decode([255, 0]) == "a<eos>"


def test_bpe_learns_the_commonest_pair_first():
    tokenizer = train_bpe(["abab abab abab"], vocab_size=258)
    (ids,) = tokenizer.encode_texts(["abba"])
    assert len(ids) == 3 and tokenizer.decode(ids[:1]) == "ab"
    assert tokenizer.size == 258 and tokenizer.eos_id == tokenizer.pad_id == 0


def test_bpe_keeps_digits_apart():
    tokenizer = train_bpe(["42 42 42 42"] * 9, vocab_size=300)
    assert len(tokenizer.encode_texts(["4242"])[0]) == 4


def test_bpe_is_deterministic():
    texts = [STORY[i : i + 50] for i in range(0, len(STORY), 50)]
    first, again = (train_bpe(iter(texts), vocab_size=300) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != train_bpe(texts, vocab_size=290).fingerprint


def test_bpe_size_is_what_the_texts_allow():
    assert train_bpe(["a"], vocab_size=5000).size == 257
    assert train_bpe(["ab"], vocab_size=5000).size == 258


@pytest.mark.parametrize("vocab_size", [256, 0, -1])
def test_a_vocabulary_that_cannot_hold_the_bytes_is_refused(vocab_size):
    with pytest.raises(UserError, match=r"vocab_size = .*257 or more"):
        train_bpe(["a"], vocab_size=vocab_size)
