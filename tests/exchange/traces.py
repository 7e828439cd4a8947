"""Traces for tests, and alignment as its definition reads, in quadratic time."""

from collections.abc import Sequence
from itertools import pairwise

from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.exchange import Trace, response_texts, token_spans

Spans = Sequence[tuple[int, int]]


def make_trace(
    source: Tokenizer, ids: Sequence[int], log_probs: Sequence[float], *, ended: bool
) -> Trace:
    """The trace that an agent publishes of these ids."""
    (response,) = response_texts(source, [ids], [ended])
    return Trace(
        step=1,
        prompt_id="0",
        source="peer",
        index=0,
        reward=1.0,
        valid=True,
        response=response,
        success=True,
        finish_reason="stop" if ended else "length",
        tokens=tuple(ids),
        prompt="?",
        behavior_mean_log_prob=sum(log_probs) / max(len(ids), 1),
        behavior_mean_log_prob_without_eos=0.0,
        group_advantage=0.0,
        log_probs=tuple(log_probs),
        spans=tuple(token_spans(source, ids, ended=ended)),
    )


def slow_segments(text: str, source: Spans, target: Spans, granularity: str) -> list[int]:
    """Byte positions at which a segment starts."""
    words, position, after_space = {0}, 0, True
    for character in text:
        if character.isspace() and not after_space:
            words.add(position)
        after_space = character.isspace()
        position += len(character.encode())
    if text[-1:].isspace() and len(words) > 1:  # the whitespace at the end starts no word
        words.discard(len(text.rstrip().encode()))
    common = {start for start, _ in source} & {start for start, _ in target}
    return sorted((common & words if granularity == "word" else common) | {0})


def slow_masses(cuts: Sequence[int], spans: Spans, log_probs: Sequence[float]) -> list[float]:
    """Sum of the log-probs of the tokens that start in each segment."""
    return [
        sum(x for x, span in zip(log_probs, spans, strict=True) if start <= span[0] < end)
        for start, end in pairwise([*cuts, float("inf")])
    ]


def slow_align(
    text: str, source: Spans, log_probs: Sequence[float], target: Spans, granularity: str
) -> list[float]:
    """What `align_log_probs` gives for tokens before the end token."""
    if granularity == "token" and source == target:
        return list(log_probs)
    cuts = slow_segments(text, source, target, granularity)
    masses = slow_masses(cuts, source, log_probs)
    counts = slow_masses(cuts, target, [1] * len(target))
    owner = [sum(cut <= start for cut in cuts) - 1 for start, _ in target]
    return [masses[segment] / counts[segment] for segment in owner]
