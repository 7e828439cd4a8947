"""Small tokenizers of every kind, made here, and texts that are hard on them."""

from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, character_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.errors import UserError

SHARED_MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"

STORY = (
    "Once upon a time there was a little cat. The cat had a red ball, and the ball was round. "
    "One day the cat said: the answer is 42, so 40 + 2 = 42. They all lived in the little house. "
    "The house was red and the cat was little, and that is the end of the story of the cat. "
)

PIECES = [
    "😀",
    "👩‍👩‍👧",
    "e\u0301",
    "é",
    "수학은",
    "東京",
    "\\frac{1}{2}",
    "\\boxed{42}",
    "<|im_end|>",
    "<eos>",
    "</s>",
    "<s>",
    "<unk>",
    "<0x41>",
    "\r\n",
    "   ",
    " ",
    "\t",
    "\u2028",
    "the cat",
    "Once",
    "4",
    ".",
]


def _texts(*exclude: str) -> st.SearchStrategy[str]:
    # U+2581 is how SentencePiece writes a space, so it cannot be told from one afterwards.
    letters = st.characters(exclude_categories=exclude, exclude_characters="\u2581")
    return st.lists(st.sampled_from(PIECES) | st.text(letters, max_size=8), max_size=12).map(
        "".join
    )


ANY_TEXT = _texts("Cs")
# Real byte-level vocabularies lack some bytes (SmolLM2: 0x04, 0xF1, ...), those of texts nobody
# writes: control characters, unassigned and private ones.
TEXTS = _texts("Cs", "Cc", "Cn", "Co")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_WITH_BOS = "{{ bos_token }}" + CHATML
THINKING = CHATML + (
    "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
"""With the switch that Qwen3's template has."""
USER_ONLY = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + (
    "[INST] {{ messages[0].content }} [/INST]"
)


def byte_level_hf(
    *,
    adds_bos: bool = False,
    template: str | None = None,
    normalizer: normalizers.Normalizer | None = None,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the control tokens of ChatML and, if asked, a BOS it adds itself."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    control = ["<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=control, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([STORY], trainer)
    if normalizer is not None:
        backend.normalizer = normalizer
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<|endoftext|>",
        chat_template=template,
    )


def sentencepiece_hf(*, metaspace: bool = False) -> PreTrainedTokenizerFast:
    """SentencePiece-style BPE with byte fallback: Llama 2 (`Prepend`) or newer (`Metaspace`)."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trained.train_from_iterator([STORY], trainers.BpeTrainer(vocab_size=120, show_progress=False))
    merges, ids = [], {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [f"<0x{b:02X}>" for b in range(256)] + sorted(trained.get_vocab()):
        ids[token] = len(ids)
    # Every way to join two pieces is a merge, longest piece last: as converters of real ones do.
    for piece in sorted(trained.get_vocab(), key=lambda p: (len(p), p)):
        splits = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        merges += [pair for pair in splits if pair[0] in ids and pair[1] in ids]
    backend = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    else:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def unigram_hf() -> PreTrainedTokenizerFast:
    """A Unigram model: it builds `</s>` out of plain text unless told otherwise."""
    letters = sorted(set(STORY) - {" "} | set("</s>"))
    scores = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("\u2581", -2.0)]
    backend = tokenizers.Tokenizer(
        models.Unigram(scores + [(letter, -4.0) for letter in letters], unk_id=0)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def letters_hf() -> PreTrainedTokenizerFast:
    """Characters of the story and nothing else: whatever it does not know is dropped."""
    vocab = {token: id_ for id_, token in enumerate(["<eos>", *sorted(set(STORY))])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def across_words_hf() -> PreTrainedTokenizerFast:
    """Letters a and b, a space, and "a b" in one token: some vocabularies hold whole phrases."""
    vocab = {token: id_ for id_, token in enumerate(["<eos>", "a", "b", " ", " b", " a", "a b"])}
    merges = [("a", " b"), (" ", "b"), (" ", "a")]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


_MAKERS = {
    "bpe": lambda: train_bpe([STORY], vocab_size=320),
    "characters": lambda: character_tokenizer([STORY]),
    "bytes": byte_tokenizer,
    "chatml": lambda: Tokenizer(byte_level_hf(template=CHATML)),
    "prepend": lambda: Tokenizer(sentencepiece_hf()),
    "metaspace": lambda: Tokenizer(sentencepiece_hf(metaspace=True)),
}
_ON_DISK = [
    name
    for name in ("smollm2-135m", "stories260k")
    if (SHARED_MODELS / name / "tokenizer.json").exists()
]
COMPLETE = list(_MAKERS)
"""Names of tokenizers that give every text back."""
EXACT = [*COMPLETE, *_ON_DISK]
"""Those, and the real ones, which give back any text that people write."""


@cache
def exact(name: str) -> Tokenizer:
    """One of `EXACT`."""
    return _MAKERS[name]() if name in _MAKERS else Tokenizer.load(str(SHARED_MODELS / name))


def refuse(field: str, words: str, action) -> None:
    """The action is refused in one line that names the field and holds the words."""
    with pytest.raises(UserError) as caught:
        action()
    assert caught.value.field == field
    assert words in str(caught.value) and "\n" not in str(caught.value)
