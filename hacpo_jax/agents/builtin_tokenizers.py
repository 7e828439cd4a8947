"""Tokenizers for models trained from nothing: byte-level BPE, characters, bytes.

Each has one control token, `<eos>`, which is also the filler, encodes every text and gives it back
exactly.
"""

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from hacpo_jax.agents.token_bytes import byte_alphabet
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.errors import UserError

EOS = "<eos>"
_SMALLEST_BPE = 257  # every byte, and the end token


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Byte-level BPE (Sennrich et al., 2016; Radford et al., 2019), digits kept apart.

    The same texts give the same tokenizer.

    Args:
      texts: what to train on.
      vocab_size: number of ids, `<eos>` (id 0) and the 256 bytes included. Fewer come out when the
        texts have no more pairs to merge; see `Tokenizer.size`.

    Raises:
      UserError: `vocab_size` below 257.
    """
    if vocab_size < _SMALLEST_BPE:
        raise UserError("vocab_size", vocab_size, f"must be {_SMALLEST_BPE} or more: bytes and EOS")
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(byte_alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return _wrap(backend)


def byte_tokenizer() -> Tokenizer:
    """One id per byte, equal to it; `<eos>` is 256."""
    backend = _byte_level(models.BPE(byte_alphabet(), []))
    return _wrap(backend)


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """One id per character seen in `texts`; any other character is spelled in UTF-8 bytes.

    Ids: `<eos>`, then the bytes (those of ASCII characters that were seen have no use and are left
    out, so that they have one encoding only), then the characters by code point.
    """
    seen = sorted({character for text in texts for character in text})
    spelled = [b for b in range(256) if b >= 0x80 or chr(b) not in seen]
    tokens = [EOS, *(f"<0x{b:02X}>" for b in spelled), *seen]
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(backend)


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _wrap(backend: tokenizers.Tokenizer) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast  # seconds to import

    backend.add_special_tokens([EOS])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS, pad_token=EOS)
    return Tokenizer(hf)
