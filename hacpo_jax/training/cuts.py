"""Answers laid out over devices, and cut into micro-batches of so many tokens, in numpy.

Each device has a row of answers, those to one prompt side by side. A micro-batch takes some of the
answers of every row, as wide as the longest of them, with their prompts. Either answers of like
lengths are taken together, so that little is padding, or answers to the same prompts, so that each
prompt is computed once: whichever makes fewer tokens.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from hacpo_jax.models import Answers
from hacpo_jax.rollout import bucket
from hacpo_jax.training.scoring import Cut

FINE = 16
"""Tokens beyond which widths are finer than buckets."""

PADDING = 0.12
"""Of the tokens of answers taken together by their lengths and of their prompts, at most so many
are the answers' padding, or `FEW`."""

FINEST = 4
"""Answers of which a micro-batch may have any number; beyond, it is a bucket."""

FEW = 128
"""Tokens of padding that are not worth a micro-batch more, or another shape."""

OVERHEAD = 512
"""Tokens that one more micro-batch costs as much as: gradients are read and written once more.

A TPU reads and writes 8 bytes a parameter, where a token takes 6 FLOPs of it, in the time of 220
to 750 tokens; a CPU in that of fewer, but there each further shape is compiled for seconds.
"""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where answers lie.

    Args:
      answers: `[R, n]` places in the list of them; -1 is filler.
      prompts: `[R, n]` the prompt of each, as a number of the caller's; -1 at filler.
    """

    answers: np.ndarray
    prompts: np.ndarray

    @property
    def prompt_of(self) -> np.ndarray:
        """`[R, n]` int32, which of its row's prompts each answer is to."""
        return self.prompt_places(self.prompts.shape[1])[1]

    def lay(self, values: np.ndarray) -> np.ndarray:
        """`[N, ...]` of the list as `[R, n, ...]`; 0 at filler."""
        padded = np.concatenate([values, np.zeros_like(values, shape=(1, *values.shape[1:]))])
        return padded[self.answers]

    def prompt_places(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers `[R, count]` of each row's prompts, and which of them is each answer's `[R, n]`.

        What is left of the former repeats the row's first prompt, or is 0 where a row is empty.
        """
        numbers = np.zeros((len(self.prompts), count), np.int64)
        places = np.zeros(self.prompts.shape, np.int32)
        for r, row in enumerate(self.prompts):
            found = np.unique(row[row >= 0])
            if len(found):
                numbers[r] = found[0]
                numbers[r, : len(found)] = found
                places[r] = np.searchsorted(found, np.maximum(row, found[0]))
        return numbers, places


def count_prompts(prompt_of: np.ndarray) -> int:
    """Prompts of the row that has most, given `[..., n]` which of its row's each answer is to."""
    return int(prompt_of.max(initial=0)) + 1


def lay_rows(prompts: np.ndarray, rows: int, size: int) -> Rows:
    """Answers in rows of about as many, those to one prompt side by side.

    Args:
      prompts: `[N]` number of each answer's prompt.
      rows: R.
      size: n, answers of a row; `rows * size` is N or more.
    """
    order = np.argsort(prompts, kind="stable")
    shares = np.array_split(order, rows)
    answers = np.full((rows, size), -1, np.int64)
    for row, share in zip(answers, shares, strict=True):
        row[: len(share)] = share
    numbers = prompts[answers] if len(prompts) else answers
    return Rows(answers, np.where(answers < 0, -1, numbers))


def lay_answers(
    rows: Rows,
    count: int,
    prompts: np.ndarray,
    prompt_lengths: np.ndarray,
    responses: np.ndarray,
    lengths: np.ndarray,
) -> Answers:
    """Answers `[R, n, ...]` as they lie in `rows`, on the host.

    Args:
      rows: where they lie.
      count: P, at least as many prompts as any row has.
      prompts: `[p, S]`, by the numbers that `rows` has.
      prompt_lengths: `[p]`.
      responses: `[N, T]`.
      lengths: `[N]`.
    """
    numbers, prompt_of = rows.prompt_places(count)
    if not len(prompts):  # a process without a prompt has filler of one token
        prompts, prompt_lengths = np.zeros_like(prompts, shape=(1, prompts.shape[1])), np.ones(1)
    # Host arrays stand in for device arrays until a jitted function takes them.
    return Answers(
        prompts=prompts[numbers],  # type: ignore[arg-type]
        prompt_lengths=prompt_lengths[numbers].astype(np.int32),  # type: ignore[arg-type]
        responses=rows.lay(responses),  # type: ignore[arg-type]
        response_lengths=rows.lay(lengths),  # type: ignore[arg-type]
        prompt_of=prompt_of,  # type: ignore[arg-type]
    )


def width_of(length: int) -> int:
    """The smallest bucket that holds `length`; beyond 16 of twice as many: 20, 24, 28, 32, 40, ...

    With four widths an octave a fifth of the longest answer is padding at most, a tenth on average.
    """
    if length <= FINE:
        return bucket(length)
    size = FINE
    while 2 * size < length:
        size *= 2
    return -(-length // (size // 4)) * (size // 4)


def make_cuts(
    lengths: np.ndarray,
    prompt_of: np.ndarray,
    prompts: tuple[int, int],
    tokens: int,
    widest: int,
) -> list[Cut]:
    """The micro-batches of all rows of all agents.

    Few shapes come out whatever the lengths: numbers of answers are buckets, or all; numbers of
    prompts are as many as there may be, and halves of it where that saves more than `FEW` tokens.

    Args:
      lengths: `[..., N]` of the answers of every row; those of length 0 are left out.
      prompt_of: `[..., N]` which of its row's prompts each answer is to.
      prompts: P and S of the array that holds a row's prompts.
      tokens: at most so many in one row of a micro-batch, padding and prompts included, unless a
        single answer has more.
      widest: T, tokens of the array that holds the answers.

    Returns:
      Cuts of `[..., n]`.
    """
    lead = lengths.shape[:-1]
    lengths, prompt_of = (x.reshape(-1, x.shape[-1]) for x in (lengths, prompt_of))  # [D, N]
    counts = (lengths > 0).sum(axis=1)
    by_prompt = np.argsort(lengths == 0, axis=1, kind="stable")
    by_length = np.argsort(-lengths, axis=1, kind="stable")
    found = []
    for order, padding in ((by_prompt, 1.0), (by_length, PADDING)):
        cutter = _Cutter(order, counts, lengths, prompt_of, *prompts, tokens, widest, padding)
        found.append(list(cutter.cuts()))

    def cost(cuts: list[Cut]) -> int:
        return sum(load_of(cut, prompts[1]).tokens + OVERHEAD for cut in cuts)

    def shaped(values) -> Any:
        return values.reshape(*lead, values.shape[-1])

    return [jax.tree.map(shaped, cut) for cut in min(found, key=cost)]


@dataclasses.dataclass(frozen=True)
class Load:
    """What one row of a micro-batch holds, padding included.

    Args:
      prompts: p.
      prompt_width: S.
      answers: n.
      width: T.
    """

    prompts: int
    prompt_width: int
    answers: int
    width: int

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return self.prompts * self.prompt_width

    @property
    def answer_tokens(self) -> int:
        """Of all answers."""
        return self.answers * self.width

    @property
    def tokens(self) -> int:
        """Of both."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def pairs(self) -> int:
        """Of queries and keys, where answers meet their prompt's keys and their own."""
        within = self.prompt_tokens * self.prompt_width
        return within + self.answer_tokens * (self.prompt_width + self.width)


@functools.lru_cache(maxsize=1024)
def longest_loads(
    answers: int, samples: int, rows: int, prompt_width: int, width: int, tokens: int
) -> tuple[Load, ...]:
    """The micro-batches of answers that are all as long as they may be.

    Args:
      answers: N, to N / `samples` prompts.
      samples: answers to each prompt.
      rows: R, that they are laid in.
      prompt_width: S.
      width: T.
      tokens: of a micro-batch, in all rows.
    """
    laid = lay_rows(np.arange(answers) // samples, rows, -(-answers // rows))
    lengths = np.where(laid.answers < 0, 0, width)
    prompt_of = laid.prompt_of
    prompts = (count_prompts(prompt_of), prompt_width)
    cuts = make_cuts(lengths, prompt_of, prompts, max(tokens // rows, 1), width)
    return tuple(load_of(cut, prompt_width) for cut in cuts)


def load_of(cut: Cut, prompt_width: int) -> Load:
    """What one row of a micro-batch holds."""
    return Load(cut.prompts.shape[-1], prompt_width, cut.answers.shape[-1], cut.width)


@dataclasses.dataclass(frozen=True)
class _Cutter:
    """Cuts answers in a given order `[D, N]`, of which each row's first `counts` have a token."""

    order: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    prompt_of: np.ndarray
    num_prompts: int
    prompt_width: int
    tokens: int
    widest: int
    padding: float

    def cuts(self) -> Iterator[Cut]:
        """As many answers in each as may be."""
        start, end = 0, int(self.counts.max(initial=0))
        while start < end:
            for size in _sizes(end - start, self.order.shape[1]):
                piece = self._piece(start, size)
                if size == 1 or self._is_good(piece):
                    yield self._cut(piece)
                    start += size
                    break

    def _is_good(self, piece: "_Piece") -> bool:
        """Whether it is small enough and little of it is padding, in the row that has most.

        The last of all, where answers may be too few for its bucket, may have `FEW` tokens of
        filler as well: each of its pieces would be another shape.
        """
        load = piece.load
        padding = load.answer_tokens - int(piece.lengths.sum(axis=1).max(initial=0))
        filler = load.width * int((piece.lengths == 0).sum(axis=1).min())
        padding -= min(filler, FEW)
        return load.tokens <= self.tokens and padding <= max(self.padding * load.tokens, FEW)

    def _piece(self, start: int, size: int) -> "_Piece":
        """The next `size` answers of every row."""
        places = start + np.arange(size)
        inside = places < self.counts[:, None]
        chosen = self.order[:, np.minimum(places, self.order.shape[1] - 1)]
        prompts = np.where(inside, np.take_along_axis(self.prompt_of, chosen, axis=1), -1)
        lengths = np.where(inside, np.take_along_axis(self.lengths, chosen, axis=1), 0)
        load = Load(
            prompts=min(size, self.num_prompts),
            prompt_width=self.prompt_width,
            answers=size,
            width=min(width_of(int(lengths.max(initial=1))), self.widest),
        )
        load = self._with_prompts(load, int(_distinct(prompts).max(initial=1)))
        return _Piece(np.where(inside, chosen, -1), prompts, lengths, load)

    def _with_prompts(self, load: Load, needed: int) -> Load:
        """With half the prompts, again and again, while these are enough and that is worth another
        shape, which does not depend on `needed`."""
        less = dataclasses.replace(load, prompts=-(-load.prompts // 2))
        saved = load.tokens - less.tokens
        wanted = saved > FEW or load.tokens > self.tokens
        if saved and wanted and needed <= less.prompts:
            return self._with_prompts(less, needed)
        return load

    def _cut(self, piece: "_Piece") -> Cut:
        rows = Rows(piece.answers, piece.prompts)
        prompts, prompt_of = rows.prompt_places(piece.load.prompts)
        filler = self.order.shape[1]
        # Host arrays stand in for device arrays until a jitted function takes them.
        return Cut(
            answers=np.where(piece.answers < 0, filler, piece.answers).astype(np.int32),  # type: ignore[arg-type]
            prompts=prompts.astype(np.int32),  # type: ignore[arg-type]
            prompt_of=prompt_of,  # type: ignore[arg-type]
            width=piece.load.width,
        )


@dataclasses.dataclass(frozen=True)
class _Piece:
    """What a micro-batch would have, `[D, n]` each; answers and prompts are -1 at filler."""

    answers: np.ndarray
    prompts: np.ndarray
    lengths: np.ndarray
    load: Load


def _sizes(left: int, total: int) -> list[int]:
    """Numbers of answers that a micro-batch may have where so many are left, most first."""
    sizes = [1]
    while sizes[-1] < left:
        sizes.append(sizes[-1] + 1 if sizes[-1] < FINEST else bucket(sizes[-1] + 1))
    return [min(size, total) for size in reversed(sizes)]


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """How many different numbers of at least 0 each row `[D, n]` has, `[D]`."""
    ordered = np.sort(numbers, axis=1)
    new = np.diff(ordered, axis=1, prepend=-1) > 0
    return (new & (ordered >= 0)).sum(axis=1)
