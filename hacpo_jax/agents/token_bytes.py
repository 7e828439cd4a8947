"""What a tokenizer's JSON says about bytes: the bytes of each token, and continuation mode.

Works on the JSON of a Rust tokenizer (`tokenizers.Tokenizer.to_str()`), as parsed by `json`.
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTE_LEVEL = {"ByteLevel", "Fuse"}
_PIECES = {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}


def byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes with (Radford et al., 2019), and the bytes.

    Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def token_bytes(
    decoder: Mapping[str, Any] | None, vocab: Mapping[str, int], added: Mapping[int, str]
) -> dict[int, bytes]:
    """The bytes each token stands for inside a text, so that a text is the join of its tokens.

    Args:
      decoder: the `decoder` entry of the tokenizer's JSON.
      vocab: token -> id, added tokens included.
      added: id -> text of the added tokens, which stand for their own text.

    Returns:
      id -> bytes. A leading space is kept: it is stripped only at the start of a document.

    Raises:
      ValueError: the decoder does not join tokens to exact text; the message names it.
    """
    parts = list(_leaves(decoder, "decoders"))
    kinds = {part["type"] for part in parts}
    if kinds and kinds <= _BYTE_LEVEL and "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        table = {id_: _byte_level(token, alphabet) for token, id_ in vocab.items()}
    elif kinds and kinds <= _PIECES:
        replacements = [_replacement(p) for p in parts if p["type"] in ("Replace", "Metaspace")]
        fallback = "ByteFallback" in kinds
        table = {id_: _piece(token, replacements, fallback) for token, id_ in vocab.items()}
    else:
        raise ValueError(f"decoder {sorted(kinds) or None}")
    return table | {id_: text.encode() for id_, text in added.items()}


def continuation(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer for text that continues another: nothing is put before or around it.

    SentencePiece-style tokenizers put a space before a document. A response does not start one, so
    the parts that insert it (`Prepend`, `Metaspace`, `ByteLevel`, and a `Replace` of what a
    document starts with) are told not to.
    """
    spec = {key: part if key == "model" else copy.deepcopy(part) for key, part in spec.items()}
    spec["truncation"] = spec["padding"] = spec["post_processor"] = None
    kept = [n for n in _leaves(spec["normalizer"], "normalizers") if not _is_at_start(n)]
    spec["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    for part in _leaves(spec["pre_tokenizer"], "pretokenizers"):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    return spec


def decode_utf8(raw: bytes) -> tuple[str, list[int]]:
    """Decodes bytes that may be broken; each broken part becomes one U+FFFD.

    Returns:
      The text, and the offset in the text's own UTF-8 of each of the `len(raw) + 1` byte positions.
    """
    widths, start, text = [1] * len(raw), 0, []
    while True:
        try:
            text.append(raw[start:].decode())
            return "".join(text), [0, *accumulate(widths)]
        except UnicodeDecodeError as error:
            good, bad = start + error.start, start + error.end
            text.append(raw[start:good].decode() + "\ufffd")
            # U+FFFD takes three bytes and a broken part at most three, so none gets less than one.
            widths[bad - 1] = 3 - (bad - 1 - good)
            start = bad


def tile(begin: int, end: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive spans of [begin, end) in proportion to `sizes`; exact when these add up to it."""
    total = max(sum(sizes), 1)
    cuts = [begin + (end - begin) * done // total for done in accumulate(sizes, initial=0)]
    cuts[-1] = end
    return list(pairwise(cuts))


def tile_by_offsets(
    text: str, offsets: Sequence[tuple[int, int]], sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Byte spans of tokens whose joined bytes are not the text's (a normalizer changed it).

    Tokens that share characters form a group; a group covers the bytes of its characters and of
    those that no token has after it (a combining mark that was composed), and its tokens tile them.

    Args:
      text: the text as it was before normalization.
      offsets: character span of each token in `text`, from the tokenizer.
      sizes: number of bytes of each token.
    """
    byte_at = [0, *accumulate(len(character.encode()) for character in text)]
    spans, first, begin = [], 0, 0
    while first < len(offsets):
        last, reach = first + 1, offsets[first][1]
        while last < len(offsets) and offsets[last][0] < reach:
            reach = max(reach, offsets[last][1])
            last += 1
        end = byte_at[-1] if last == len(offsets) else max(begin, byte_at[offsets[last][0]])
        spans += tile(begin, end, sizes[first:last])
        first, begin = last, end
    return spans


def _leaves(part: dict | Mapping | None, key: str) -> Iterable[dict]:
    """The members of a pipeline entry, nested `Sequence` entries flattened."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for member in part[key]:
            yield from _leaves(member, key)
    else:
        yield part  # type: ignore[misc]


def _is_at_start(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        return normalizer["pattern"].get("Regex", "").startswith((r"\A", "^"))
    return normalizer["type"] == "Prepend"


def _replacement(part: Mapping[str, Any]) -> tuple[str, str]:
    if part["type"] == "Metaspace":
        return part["replacement"], " "
    if "String" not in part["pattern"]:
        raise ValueError(f"decoder Replace with pattern {part['pattern']}")
    return part["pattern"]["String"], part["content"]


def _byte_level(token: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def _piece(token: str, replacements: Sequence[tuple[str, str]], fallback: bool) -> bytes:
    if fallback and (match := _BYTE_TOKEN.fullmatch(token)):
        return bytes([int(match[1], 16)])
    for old, new in replacements:
        token = token.replace(old, new)
    return token.encode()
