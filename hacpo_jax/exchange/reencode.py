"""THL, text adaptation: a peer's response in the learner's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hacpo_jax.exchange.align import (
    AlignmentReport,
    Granularity,
    align_log_probs,
    alignment_report,
)
from hacpo_jax.exchange.records import Trace

if TYPE_CHECKING:
    from hacpo_jax.agents.tokenizer import Tokenizer

Span = tuple[int, int]


@dataclass(frozen=True)
class DriftReport:
    """How well responses survive decoding and encoding with their own tokenizer.

    Attributes:
      responses: number of responses looked at.
      changed: those whose ids come back different.
      tokens: ids before.
      tokens_after: ids after.
    """

    responses: int
    changed: int
    tokens: int
    tokens_after: int

    @property
    def share(self) -> float:
        """Share of responses that change."""
        return self.changed / max(self.responses, 1)

    @property
    def length_ratio(self) -> float:
        """Ids after per id before."""
        return self.tokens_after / max(self.tokens, 1)


def response_texts(
    tokenizer: "Tokenizer", ids: Sequence[Sequence[int]], ended: Sequence[bool]
) -> list[str]:
    """Texts of responses, the end token left out.

    Args:
      tokenizer: the source's.
      ids: the source's ids per response, as drawn.
      ended: whether the finish reason is "stop".
    """
    return tokenizer.decode_batch(_bodies(tokenizer, ids, ended))


def reencode(
    texts: Sequence[str],
    ended: Sequence[bool],
    source: "Tokenizer",
    learner: "Tokenizer",
    source_ids: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Responses in the learner's ids.

    Where both tokenizers are the same, ids pass through untouched; where they differ in stop ids or
    template only, all but the end token does. Otherwise the text is encoded, as data. The learner's
    EOS is appended exactly to the responses that the source ended with one of its stop ids: not to
    those that were cut off, nor to those that a stop string ended.

    Args:
      texts: the texts, see `response_texts`.
      ended: whether the finish reason is "stop".
      source, learner: the tokenizers.
      source_ids: the source's ids as drawn, end token included.
    """
    if source.fingerprint == learner.fingerprint:
        return [list(row) for row in source_ids]
    bodies = _bodies(source, source_ids, ended)
    closed = [len(body) < len(row) for body, row in zip(bodies, source_ids, strict=True)]
    if source.vocabulary_fingerprint != learner.vocabulary_fingerprint:
        bodies = learner.encode_texts(texts)
    return [
        [*body, learner.eos_id] if close else body
        for body, close in zip(bodies, closed, strict=True)
    ]


def token_spans(tokenizer: "Tokenizer", ids: Sequence[int], *, ended: bool) -> list[Span]:
    """Bytes of a response's text that each of its ids stands for; see `Trace.spans`.

    Args:
      tokenizer: the source's.
      ids: its ids as drawn.
      ended: whether the finish reason is "stop".
    """
    (body,) = _bodies(tokenizer, [ids], [ended])
    text, spans = tokenizer.decode_with_spans(body)
    return [*spans, *[_end(text)] * (len(ids) - len(body))]


def transfer_trace(
    trace: Trace, source: "Tokenizer", learner: "Tokenizer", granularity: Granularity = "word"
) -> tuple[list[int], np.ndarray, AlignmentReport]:
    """One response and its token log-probs in the learner's tokens (PRP's `thl_peer`).

    Args:
      trace: the response.
      source, learner: the tokenizers.
      granularity: see `align_log_probs`.

    Returns:
      The ids that `reencode` gives, their log-probs (float64), and the alignment's counts. If the
      learner has no token for the text (it drops all of it), the log-probs are empty too.
    """
    ended = trace.finish_reason == "stop"
    (body,) = _bodies(source, [trace.tokens], [ended])
    text, log_probs = trace.response, trace.log_probs
    source_spans = list(trace.spans[: len(body)])
    if source.vocabulary_fingerprint == learner.vocabulary_fingerprint:
        ids, spans = list(body), source_spans
    else:
        ids, spans = learner.encode_with_spans(text)
    if text and not ids:
        text, source_spans, log_probs = "", [], log_probs[len(body) :]
    if len(body) < len(trace.tokens):
        same = source.fingerprint == learner.fingerprint
        ids = [*ids, trace.tokens[-1] if same else learner.eos_id]
        spans, source_spans = [*spans, _end(text)], [*source_spans, _end(text)]
    aligned = align_log_probs(text, source_spans, log_probs, spans, granularity)
    return ids, aligned, alignment_report(text, source_spans, spans, granularity)


def _end(text: str) -> Span:
    """An end token takes no byte of the text: an empty span at its end."""
    return (len(text.encode()), len(text.encode()))


def drift(
    tokenizer: "Tokenizer", ids: Sequence[Sequence[int]], ended: Sequence[bool]
) -> DriftReport:
    """Counts the responses whose ids do not survive decoding and encoding.

    A peer learns from such a response in tokens that the source would not have drawn; the source
    itself keeps its own ids.

    Args:
      tokenizer: the source's.
      ids: its ids per response, as drawn.
      ended: whether the finish reason is "stop"; the end token is left out of the comparison.
    """
    bodies = _bodies(tokenizer, ids, ended)
    after = tokenizer.encode_texts(tokenizer.decode_batch(bodies))
    return DriftReport(
        responses=len(bodies),
        changed=sum(b != a for b, a in zip(bodies, after, strict=True)),
        tokens=sum(map(len, bodies)),
        tokens_after=sum(map(len, after)),
    )


def _bodies(
    tokenizer: "Tokenizer", ids: Sequence[Sequence[int]], ended: Sequence[bool]
) -> list[list[int]]:
    """The ids without the stop id that ended them."""
    stops = frozenset(tokenizer.stop_ids)
    return [
        list(row[:-1]) if end and len(row) and row[-1] in stops else list(row)
        for row, end in zip(ids, ended, strict=True)
    ]
