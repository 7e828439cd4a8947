"""From all agents' answers to the mini-batches of one learner, in numpy."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hacpo_jax.rollout import bucket, pad_left
from hacpo_jax.training.cuts import Rows, lay_answers, lay_rows
from hacpo_jax.training.update import MiniBatch


@dataclasses.dataclass(frozen=True)
class LearnerView:
    """Every answer of a step as one learner trains on it.

    Args:
      learner: index of the learner.
      prompts: `[P, S]` the learner's prompt ids, padded on the left.
      prompt_lengths: `[P]`.
      responses: `[A, P, G, T]` in the learner's tokens, padded on the right.
      response_lengths: `[A, P, G]` in the policy loss; 0 for answers that must not count.
      advantages: `[A, P, G]` of the learner.
      behavior_mean_log_prob: `[A, P, G]` of each source, over its own tokens.
      old_log_probs: `[A, P, G, T]` that token ratios start from; zeros where none are needed.
      reference_log_probs: `[P, G, T]` of the learner's frozen start on its own answers, or zeros.
      transfer_weight: `[A, P, G]` in the rescue term.
      transfer_lengths: `[A, P, G]` there, end tokens always included.
    """

    learner: int
    prompts: np.ndarray
    prompt_lengths: np.ndarray
    responses: np.ndarray
    response_lengths: np.ndarray
    advantages: np.ndarray
    behavior_mean_log_prob: np.ndarray
    old_log_probs: np.ndarray
    reference_log_probs: np.ndarray
    transfer_weight: np.ndarray
    transfer_lengths: np.ndarray


def pad_responses(
    rows: Sequence[Sequence[Sequence[int]]], num_samples: int, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids `[A, P, G, T]` and lengths `[A, P, G]` from A lists of P·G answers.

    T is `width`, or the bucket of the longest answer.
    """
    lengths = np.array([[len(row) for row in source] for source in rows], np.int32)
    shape = (len(rows), -1, num_samples)
    tokens = pad_right(rows, width or bucket(int(lengths.max())), np.int32)
    return tokens.reshape(*shape, tokens.shape[-1]), lengths.reshape(shape)


def pad_right(rows: Sequence[Sequence[Any]], width: int, dtype) -> np.ndarray:
    """`[A, N, width]` from A lists of N rows, zeros after each row's end."""
    padded = np.zeros((len(rows), len(rows[0]), width), dtype)
    for a, source in enumerate(rows):
        for i, row in enumerate(source):
            padded[a, i, : len(row)] = row
    return padded


def pad_prompts(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Prompt ids `[P, S]`, padded on the left, and lengths `[P]`."""
    lengths = np.array([len(row) for row in rows], np.int32)
    return pad_left(rows, bucket(int(lengths.max()))), lengths


def update_order(
    learner: int,
    num_agents: int,
    num_prompts: int,
    mini_batch_prompts: int,
    *,
    share: bool,
    order: str,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Which (source, prompt) groups each update of a step takes: a list of `[B, 2]`.

    `own_first`: the learner's own groups fill the first updates, its peers' the later ones, all
    peers' answers to one prompt side by side so that no peer always meets the tighter bounds.
    `mixed`: every update takes whole joint groups of shuffled prompts.

    Args:
      learner: index of the learner.
      num_agents: A.
      num_prompts: P.
      mini_batch_prompts: B, groups in one update; divides what there is.
      share: whether peers' answers are taken at all.
      order: `own_first` or `mixed`.
      rng: shuffles for `mixed`.
    """
    prompts = np.arange(num_prompts)
    own = np.stack([np.full(num_prompts, learner), prompts], axis=1)
    peers = np.array([j for j in range(num_agents) if j != learner], int)
    if not share or not len(peers):
        pairs = own
    elif order == "mixed":
        sources = np.array([learner, *peers])
        pairs = _product(rng.permutation(prompts), sources)
    else:
        pairs = np.concatenate([own, _product(prompts, peers)])
    return np.split(pairs, len(pairs) // mini_batch_prompts)


def _product(prompts: np.ndarray, sources: np.ndarray) -> np.ndarray:
    return np.stack([np.tile(sources, len(prompts)), np.repeat(prompts, len(sources))], axis=1)


def num_rows(view: LearnerView, pairs: np.ndarray) -> int:
    """Answers of an update that this process has, what is to be transferred among them."""
    return len(_places(view, pairs)[0])


def row_size(groups: int, answers: int, rows: int) -> int:
    """Answers of each of `rows` rows: those of the groups plus 0 or a power of two, so that few
    shapes are compiled.

    Args:
      groups: answers of the groups, of the process that has most.
      answers: all answers, of the process that has most.
      rows: of a process.
    """
    least = -(-groups // rows)
    extra = -(-answers // rows) - least
    return least + (1 << (extra - 1).bit_length() if extra > 0 else 0)


def lay_views(
    views: Sequence[LearnerView], pairs: Sequence[np.ndarray], rows: int, size: int
) -> list[Rows]:
    """Where the answers of one update lie, for each learner.

    Args:
      views: the learners' answers.
      pairs: of each learner, `[B, 2]` from `update_order`, prompts by their place in its view.
      rows: R, of this process.
      size: N; see `row_size`.
    """
    places = [_places(view, chosen)[0] for view, chosen in zip(views, pairs, strict=True)]
    return [lay_rows(each[:, 1], rows, size) for each in places]


def mini_batch(
    views: Sequence[LearnerView], pairs: Sequence[np.ndarray], rows: Sequence[Rows], prompts: int
) -> MiniBatch:
    """One update's answers for all learners of a group that this process has, `[A, R, N, ...]`.

    They are every given group of answers, what is to be transferred for the learner's own prompts
    among them, and filler that weighs nothing.

    Args:
      views: the learners' answers.
      pairs: as in `lay_views`.
      rows: what it gave.
      prompts: P, at least as many as any of these rows has.
    """
    batches = []
    for view, chosen, lie in zip(views, pairs, rows, strict=True):
        places, transferred = _places(view, chosen)
        batches.append(_filled(view, places, transferred, lie, prompts))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def _places(view: LearnerView, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[N, 3]` source, prompt and sample of every answer, and which are to be transferred `[N]`:
    groups first, then those."""
    num_samples = view.responses.shape[2]
    samples = np.tile(np.arange(num_samples), len(pairs))
    groups = np.column_stack([np.repeat(pairs, num_samples, axis=0), samples])
    own_prompts = pairs[pairs[:, 0] == view.learner, 1]
    chosen = np.argwhere(view.transfer_weight > 0)
    places = np.concatenate([groups, chosen[np.isin(chosen[:, 1], own_prompts)]])
    return places, np.arange(len(places)) >= len(groups)


def row_lengths(view: LearnerView, pairs: np.ndarray) -> np.ndarray:
    """Tokens `[N]` of all answers of an update that this process has."""
    places, transferred = _places(view, pairs)
    return _lengths(view, tuple(places.T), transferred)


def _lengths(view: LearnerView, place: tuple, transferred: np.ndarray) -> np.ndarray:
    return np.where(transferred, view.transfer_lengths[place], view.response_lengths[place])


def _filled(
    view: LearnerView, places: np.ndarray, transferred: np.ndarray, rows: Rows, prompts: int
) -> MiniBatch:
    """The answers at `places`, as they lie in `rows`."""
    place = tuple(places.T)
    lengths = _lengths(view, place, transferred)
    own = (places[:, 0] == view.learner)[:, None]
    answers = lay_answers(
        rows, prompts, view.prompts, view.prompt_lengths, view.responses[place], lengths
    )
    fields = {
        "source": places[:, 0].astype(np.int32),
        "advantages": view.advantages[place],
        "behavior_mean_log_prob": view.behavior_mean_log_prob[place],
        "old_log_probs": view.old_log_probs[place],
        "reference_log_probs": np.where(own, view.reference_log_probs[place[1:]], 0.0),
        "transfer_weight": np.where(transferred, view.transfer_weight[place], np.float32(0)),
    }
    laid: dict[str, Any] = {name: rows.lay(x) for name, x in fields.items()}
    return MiniBatch(answers=answers, **laid)
