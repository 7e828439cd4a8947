"""THL, trace alignment: carry a peer's token log-probs over to another tokenization of the text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Granularity = Literal["word", "token"]
Spans = Sequence[tuple[int, int]] | np.ndarray

_NOT_SPACE = re.compile(r"\S+")


@dataclass(frozen=True)
class AlignmentReport:
    """Counts of one or several alignments; add them up with `+`.

    Attributes:
      segments: stretches of text between two cuts, and end-of-sequence segments.
      several_words: segments that span more than one word.
      source_tokens, target_tokens: tokens on either side.
    """

    segments: int = 0
    several_words: int = 0
    source_tokens: int = 0
    target_tokens: int = 0

    def __add__(self, other: "AlignmentReport") -> "AlignmentReport":
        return AlignmentReport(
            self.segments + other.segments,
            self.several_words + other.several_words,
            self.source_tokens + other.source_tokens,
            self.target_tokens + other.target_tokens,
        )

    @property
    def several_words_share(self) -> float:
        """Share of segments that span several words."""
        return self.several_words / max(self.segments, 1)

    @property
    def tokens_per_segment(self) -> float:
        """Target tokens per segment."""
        return self.target_tokens / max(self.segments, 1)

    @property
    def length_ratio(self) -> float:
        """Target tokens per source token."""
        return self.target_tokens / max(self.source_tokens, 1)


def align_log_probs(
    text: str,
    source_spans: Spans,
    source_log_probs: Sequence[float] | np.ndarray,
    target_spans: Spans,
    granularity: Granularity = "word",
) -> np.ndarray:
    """Log-probs of one tokenization of a text, shared out to the tokens of another.

    The text is cut where both tokenizations have a token boundary and, at "word", a word starts (a
    run of whitespace and the run of other characters after it). Within a segment the source's
    log-probs are summed and shared evenly by the target's tokens, so each segment keeps its mass.
    An end token is given as an empty span at the end of the text, the last on both sides, and is a
    segment of its own. Equal tokenizations give the identity at "token". Source: Mutual RL, arXiv
    2605.07244. Time is linear in the length of the text.

    Args:
      text: the response, without the end token.
      source_spans: byte spans [start, end) of the source's tokens in the UTF-8 of `text`, [S, 2];
        they tile it.
      source_log_probs: their log-probs, nats, [S].
      target_spans: the target's, [T, 2].
      granularity: "word", or "token": cut at every common boundary.

    Returns:
      Log-probs of the target's tokens, float64, [T]. (Where the text is empty, source tokens
      before the end token have no counterpart and are left out.)

    Raises:
      ValueError: spans that do not tile the text, or numbers of spans and log-probs that differ.
    """
    source, target = _array(source_spans), _array(target_spans)
    log_probs = np.asarray(source_log_probs, dtype=np.float64)  # [S]
    if log_probs.shape != (len(source),):
        raise ValueError(
            f"source_log_probs must have shape ({len(source)},), got {log_probs.shape}"
        )
    _, of_source, of_target = _segments(text, source, target, granularity)
    # Tokens without text share a position with others, so that segments cannot tell them apart.
    if granularity == "token" and np.array_equal(source, target):
        return log_probs.copy()
    mass = np.bincount(of_source, weights=log_probs, minlength=1 + of_target.max(initial=0))
    return mass[of_target] / np.bincount(of_target)[of_target]


def alignment_report(
    text: str, source_spans: Spans, target_spans: Spans, granularity: Granularity = "word"
) -> AlignmentReport:
    """How coarse an alignment is; arguments and errors as in `align_log_probs`."""
    source, target = _array(source_spans), _array(target_spans)
    segment, _, of_target = _segments(text, source, target, granularity)
    # A word that starts at a segment's first byte is its first; any other is one more.
    first_byte = np.diff(segment, prepend=-1)[:-1] > 0
    crossed = segment[:-1][_word_starts(text) & ~first_byte]
    return AlignmentReport(
        segments=len(np.unique(of_target)),
        several_words=len(np.unique(crossed)),
        source_tokens=len(source),
        target_tokens=len(target),
    )


def _segments(
    text: str, source: np.ndarray, target: np.ndarray, granularity: Granularity
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index of the segment that each byte, source token and target token belongs to.

    The first has one entry more, for tokens without text that come last.
    """
    if granularity not in ("word", "token"):
        raise ValueError(f"granularity must be word or token, got {granularity!r}")
    size = len(text.encode(errors="surrogatepass"))
    ended = all(len(spans) and (spans[-1] == size).all() for spans in (source, target))
    if ended:
        source, target = source[:-1], target[:-1]
    cut = _starts("source", source, size) & _starts("target", target, size)
    if granularity == "word":
        cut[:-1] &= _word_starts(text)
    cut[0] = True
    segment = np.cumsum(cut) - 1
    end = segment[-1:] + 1 if ended else segment[:0]
    of_source, of_target = (
        np.concatenate([segment[spans[:, 0]], end]) for spans in (source, target)
    )
    return segment, of_source, of_target


def _starts(name: str, spans: np.ndarray, size: int) -> np.ndarray:
    """Mask of the byte positions at which a token starts, the end of the text included."""
    ends = np.concatenate([[0], spans[:, 1]])
    if (spans[:, 0] != ends[:-1]).any() or (spans[:, 0] > spans[:, 1]).any() or ends[-1] != size:
        raise ValueError(f"{name}_spans must tile the {size} bytes of the text in order")
    starts = np.zeros(size + 1, dtype=bool)
    starts[spans[:, 0]] = True
    return starts


def _word_starts(text: str) -> np.ndarray:
    """Mask of the byte positions at which a word starts, [bytes]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    byte_of = np.cumsum(widths) - widths
    starts = np.zeros(int(widths.sum()), dtype=bool)
    # A word starts where the one before ends, so with its whitespace; what trails the last starts
    # none. (A pattern for both runs takes quadratic time on long whitespace.)
    ends = [match.end() for match in _NOT_SPACE.finditer(text)]
    starts[byte_of[[0, *ends][: len(ends)]]] = True
    return starts


def _array(spans: Spans) -> np.ndarray:
    return np.asarray(spans, dtype=np.int64).reshape(-1, 2)
