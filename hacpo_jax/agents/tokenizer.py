"""One agent's tokenizer: prompts in, continuations out, and byte spans for both."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import tokenizers

from hacpo_jax.agents.token_bytes import (
    continuation,
    decode_utf8,
    tile,
    tile_by_offsets,
    token_bytes,
)
from hacpo_jax.agents.tokenizer_files import read_tokenizer
from hacpo_jax.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>")
"""Tokens that end a turn or a document in the supported families. Each is a stop id wherever the
vocabulary has it as an added token, because files of one model often disagree on the end token."""

# Llama 3 templates print today's date unless told another; a run must not change at midnight.
# This is the date those templates fall back to themselves.
_TEMPLATE_DATE = "26 Jul 2024"

# What a chat template is given with every prompt, and what `apply_chat_template` takes for itself.
_NO_OPTIONS = {"messages", "conversation", "add_generation_prompt", "continue_final_message"}
_NO_OPTIONS |= {"tokenize", "chat_template", "tools", "documents"}

Chat = Literal["auto"] | bool
Span = tuple[int, int]


class Tokenizer:
    """A fast tokenizer of `transformers`, with the few operations that training needs.

    Prompts are documents: they go through the chat template where there is one, and get the BOS.
    Everything else is a *continuation* (a response): no BOS, no space put before it, no clean-up,
    so that `decode` gives exactly the bytes of the tokens and `encode_texts` inverts it wherever
    the text determines the ids. This uses a private copy of the Rust backend in which the parts
    that prepend a space are switched off and special tokens in text are not recognised; it is
    never changed afterwards, so all methods may be called from several threads.

    Attributes:
      size: exclusive upper bound of the known ids, added tokens included. A model's vocabulary may
        be larger (padded); ids from `size` on decode to nothing.
      missing_ids: ids below `size` that no token has, sorted; they decode to nothing, too.
      eos_id: the id that ends a text which this tokenizer re-encodes.
      stop_ids: ids that end a response, sorted: the EOS, `extra_stop_ids`, and every token of
        `END_OF_TURN` that the vocabulary has.
      bos_id: id of the BOS token, or None.
      pad_id: a filler; masks never come from it, and it may equal `eos_id`.
      is_chat: whether prompts go through the chat template.
      vocabulary_fingerprint: hash of the tokenizer itself: ids mean the same where it is equal.
      fingerprint: hash of that, the chat template in use and its options, the stop ids and the EOS.

    Args:
      hf: the tokenizer. It is kept for its chat template and for `save`.
      chat: "auto" uses the chat template if there is one, True demands one, False ignores it.
      chat_options: values of names in the chat template, such as `enable_thinking` of Qwen3's.
      extra_stop_ids: further stop ids, such as `eos_token_id` of `generation_config.json`.
      field: what errors call this tokenizer, e.g. `agents.0.tokenizer`.

    Raises:
      UserError: no end token, no template though `chat=True`, an option that the template does not
        have, a stop id outside the vocabulary, or a decoder that does not give exact text.
    """

    def __init__(
        self,
        hf: "PreTrainedTokenizerFast",
        *,
        chat: Chat = "auto",
        chat_options: Mapping[str, Any] | None = None,
        extra_stop_ids: Iterable[int] = (),
        field: str = "tokenizer",
    ):
        name = hf.name_or_path or type(hf).__name__
        if hf.eos_token_id is None:
            raise UserError(field, name, "has no end token; set eos_token in tokenizer_config.json")
        if chat is True and not hf.chat_template:
            raise UserError(f"{field}.chat", chat, f"{name} has no chat template; set it to false")
        self._hf: Any = hf  # its annotations allow tokens where there are only ids
        backend = hf.backend_tokenizer
        vocab = backend.get_vocab(with_added_tokens=True)
        added = {id_: t.content for id_, t in backend.get_added_tokens_decoder().items()}

        self.size: int = 1 + max(vocab.values())
        self.missing_ids: tuple[int, ...] = tuple(sorted({*range(self.size)} - {*vocab.values()}))
        self.eos_id: int = self._hf.eos_token_id
        self.bos_id: int | None = self._hf.bos_token_id
        self.pad_id: int = self.eos_id if hf.pad_token_id is None else self._hf.pad_token_id
        self.is_chat: bool = bool(hf.chat_template) and chat is not False
        self.stop_ids: tuple[int, ...] = self._stop_ids(extra_stop_ids, added, field)
        template: Any = hf.chat_template if self.is_chat else None
        self._chat_options = dict(chat_options or {})
        _check_options(self._chat_options, template, f"{field}.chat_options")

        spec = json.loads(backend.to_str())
        # What a caller last asked of the tokenizer is kept in its JSON, but is not part of it.
        spec["truncation"] = spec["padding"] = None
        try:
            self._bytes = token_bytes(spec["decoder"], vocab, added)
        except ValueError as error:
            remedy = (
                f"{error} does not give exact text; use a byte-level or SentencePiece tokenizer"
            )
            raise UserError(field, name, remedy) from None
        self._prompts = tokenizers.Tokenizer.from_str(json.dumps(spec))
        self._adds_bos = self._prompts.encode("a").ids[:1] == [self.bos_id]

        named = {self.eos_id, self.bos_id, self.pad_id, *self.stop_ids}
        special = {t["id"] for t in spec["added_tokens"] if t["special"] or t["id"] in named}
        # The unknown token stands for text that has no other encoding; unless it also stops.
        special -= {self._hf.unk_token_id} - set(self.stop_ids)
        self._control = frozenset(special)
        self._control_text = re.compile(
            "|".join(f"(?={re.escape(added[id_])})" for id_ in sorted(special))
        )
        self._texts = tokenizers.Tokenizer.from_str(json.dumps(continuation(spec)))
        self._texts.encode_special_tokens = True

        self.vocabulary_fingerprint: str = _digest(spec)
        self.fingerprint: str = _digest(
            [
                self.vocabulary_fingerprint,
                template,
                sorted(self._chat_options.items()),
                self.stop_ids,
                self.eos_id,
            ]
        )

    @classmethod
    def load(
        cls,
        path_or_hub_id: str,
        *,
        field: str = "tokenizer",
        chat: Chat = "auto",
        chat_options: Mapping[str, Any] | None = None,
        extra_stop_ids: Iterable[int] = (),
    ) -> Self:
        """Loads from a local directory or from the hub; code in the repository is never run.

        Args:
          path_or_hub_id: directory, or hub id such as `Qwen/Qwen3-4B`.
          field, chat, chat_options, extra_stop_ids: see the class.

        Raises:
          UserError: it cannot be loaded or is not a fast tokenizer; or see the class.
        """
        return cls(
            read_tokenizer(path_or_hub_id, field),
            chat=chat,
            chat_options=chat_options,
            extra_stop_ids=extra_stop_ids,
            field=field,
        )

    def encode_prompt(self, text: str, *, system: str | None = None) -> list[int]:
        """Ids of a prompt, ready to be continued.

        Chat: the user's message (after the system's) through the template, with the header of the
        answer; otherwise the text itself. Control tokens are recognised. The ids start with exactly
        one BOS if the tokenizer adds one by itself or the text already begins with it.

        Args:
          text: the prompt.
          system: system message; needs a chat template.

        Raises:
          UserError: a system message that the template, or its absence, has no place for.
        """
        if self.is_chat:
            text = self._render(text, system)
        elif system is not None:
            raise UserError("system", system, "needs a chat template; put it into the prompt")
        ids = self._prompts.encode(_unicode(text), add_special_tokens=False).ids
        return [self.bos_id, *ids] if self._adds_bos and ids[:1] != [self.bos_id] else ids  # type: ignore[list-item]

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of continuations. Text is data: it never yields a special token or a stop token.

        A control token that a text spells out is encoded as the characters it is spelled with (one
        that cannot be spelled otherwise, being a single character, is dropped). Added tokens that
        the tokenizer does not mark as special, such as Qwen3's `<think>`, are ordinary vocabulary.
        """
        texts = [_unicode(text) for text in texts]
        encodings = self._texts.encode_batch_fast(texts, add_special_tokens=False)
        return [self._plain(t, e.ids) for t, e in zip(texts, encodings, strict=True)]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]]:
        """Ids of a continuation and the byte span [start, end) of each in the UTF-8 of `text`.

        Consecutive spans tile the text and each is its token's own bytes, also where a token splits
        a character. Where the tokenizer normalizes (NFC, unknown characters), the tokens of one
        changed stretch share its bytes in proportion to their own.
        """
        text = _unicode(text)
        (ids,) = self.encode_texts([text])
        pieces, encoded = [self._bytes[id_] for id_ in ids], text.encode()
        sizes = [len(piece) for piece in pieces]
        if b"".join(pieces) != encoded:
            encoding = self._texts.encode(text, add_special_tokens=False)
            if encoding.ids == ids:
                return ids, tile_by_offsets(text, encoding.offsets, sizes)
        return ids, tile(0, len(encoded), sizes)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a continuation: the bytes of the tokens, special tokens as their own text.

        Bytes that are not UTF-8 become U+FFFD; unknown ids are left out.
        """
        return self._raw(ids).decode(errors="replace")

    def decode_batch(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """`decode` of each."""
        return [self.decode(row) for row in ids]

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """`decode`, and the byte span [start, end) of each given id in the UTF-8 of that text.

        The spans tile the text, U+FFFD included; an unknown id has an empty one.
        """
        pieces = [self._bytes.get(id_, b"") for id_ in ids]
        text, offset_of = decode_utf8(b"".join(pieces))
        raw = tile(0, len(offset_of) - 1, [len(piece) for piece in pieces])
        return text, [(offset_of[start], offset_of[end]) for start, end in raw]

    def save(self, directory: str) -> None:
        """Writes it, chat template included, for `transformers.AutoTokenizer.from_pretrained`."""
        self._hf.save_pretrained(str(directory))

    def _stop_ids(
        self, extra: Iterable[int], added: Mapping[int, str], field: str
    ) -> tuple[int, ...]:
        extra = set(extra)
        for id_ in extra:
            if not 0 <= id_ < self.size or id_ in self.missing_ids:
                remedy = (
                    f"must be in [0, {self.size}) and have a token; the model ends answers with "
                    "it, so these files are incomplete or another model's; put the model's there"
                )
                raise UserError(f"{field}.stop_ids", id_, remedy)
        ends = {id_ for id_, content in added.items() if content in END_OF_TURN}
        return tuple(sorted({self.eos_id} | extra | ends))

    def _render(self, text: str, system: str | None) -> str:
        from jinja2 import TemplateError

        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        options = {"date_string": _TEMPLATE_DATE} | self._chat_options
        try:
            prompt = self._hf.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
        except (TemplateError, TypeError, ValueError) as error:
            field, value = ("prompt", text) if system is None else ("system", system)
            raise UserError(field, value, f"the chat template refuses it: {error}") from error
        if system is not None and system.strip() not in prompt:
            remedy = "the chat template leaves it out; put it into the prompt"
            raise UserError("system", system, remedy)
        return prompt

    def _raw(self, ids: Iterable[int]) -> bytes:
        get = self._bytes.get
        return b"".join([get(id_, b"") for id_ in ids])

    def _plain(self, text: str, ids: list[int]) -> list[int]:
        """`ids` if free of control tokens; else the text again, with each spelling of one broken.

        A stop token need not be marked as special, and a Unigram model, or BPE with unlucky merges,
        can build a special token out of characters.
        """
        if self._control.isdisjoint(ids):
            return ids
        cuts = sorted({0, *(m.start() + 1 for m in self._control_text.finditer(text)), len(text)})
        parts = [text[a:b] for a, b in pairwise(cuts)]
        encodings = self._texts.encode_batch_fast(parts, add_special_tokens=False)
        return [id_ for e in encodings for id_ in e.ids if id_ not in self._control]


def _check_options(
    options: Mapping[str, Any], template: str | Mapping[str, str] | None, field: str
) -> None:
    text = template.get("default", "") if isinstance(template, Mapping) else template
    for name, value in options.items():
        if text is None:
            remedy = "needs a chat template, and none is in use; leave it out"
        elif name in _NO_OPTIONS:
            remedy = "every chat template is given it by itself; leave it out"
        elif name not in (names := set(re.findall(r"[^\W\d]\w*", text))):
            close = difflib.get_close_matches(name, names, n=1)
            nearest = f"; did you mean {close[0]!r}?" if close else ""
            remedy = f"the chat template never mentions it{nearest or '; leave it out'}"
        else:
            continue
        raise UserError(f"{field}.{name}", value, remedy)


def _unicode(text: str) -> str:
    """The text with lone surrogates, which no tokenizer can take, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
