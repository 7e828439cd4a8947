"""From all agents' answers to the mini-batches of one learner, in numpy."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hacpo_jax.rollout import bucket, pad_left
from hacpo_jax.training.scoring import Answers
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


def mini_batch(
    views: Sequence[LearnerView], pairs: Sequence[np.ndarray], size: int, micro_batches: int
) -> MiniBatch:
    """One update's rows for all learners of a group that this process has, `[A, M, R, ...]`.

    Every given group of answers, then what is to be transferred for the learner's own prompts
    among them, then filler that weighs nothing.

    Args:
      views: the learners' answers.
      pairs: of each learner, `[B, 2]` from `update_order`, prompts by their place in its view.
      size: R.
      micro_batches: M, enough for all rows; see `num_micro_batches`.
    """
    batches = []
    for view, chosen in zip(views, pairs, strict=True):
        rows = _rows(view, _places(view, chosen), len(chosen) * view.responses.shape[2])
        batches.append(_cut(rows, micro_batches, size))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def num_rows(view: LearnerView, pairs: np.ndarray) -> int:
    """Rows of an update that this process has, what is to be transferred among them."""
    return len(_places(view, pairs))


def num_micro_batches(groups: int, rows: int, size: int) -> int:
    """Micro-batches of an update: those of the groups plus 0 or a power of two, so that few shapes
    are compiled.

    Args:
      groups: rows of the groups of answers, of the process that has most.
      rows: all rows, of the process that has most.
      size: R of a process.
    """
    least = -(-groups // size)
    extra = -(-rows // size) - least
    return least + (1 << (extra - 1).bit_length() if extra > 0 else 0)


def _places(view: LearnerView, pairs: np.ndarray) -> np.ndarray:
    """`[N, 3]` source, prompt and sample of every row: groups first, then transfers."""
    num_samples = view.responses.shape[2]
    samples = np.tile(np.arange(num_samples), len(pairs))
    groups = np.column_stack([np.repeat(pairs, num_samples, axis=0), samples])
    own_prompts = pairs[pairs[:, 0] == view.learner, 1]
    chosen = np.argwhere(view.transfer_weight > 0)
    return np.concatenate([groups, chosen[np.isin(chosen[:, 1], own_prompts)]])


def _rows(view: LearnerView, places: np.ndarray, count: int) -> MiniBatch:
    """The rows at `places`, of which the first `count` are for the policy loss."""
    place, prompts = tuple(places.T), places[:, 1]
    transferred = np.arange(len(places)) >= count
    lengths = np.where(transferred, view.transfer_lengths[place], view.response_lengths[place])
    own = (places[:, 0] == view.learner)[:, None]
    # Host arrays stand in for device arrays until the jitted update takes them.
    rows: dict[str, Any] = {
        "source": places[:, 0].astype(np.int32),
        "advantages": view.advantages[place],
        "behavior_mean_log_prob": view.behavior_mean_log_prob[place],
        "old_log_probs": view.old_log_probs[place],
        "reference_log_probs": np.where(own, view.reference_log_probs[place[1:]], 0.0),
        "transfer_weight": np.where(transferred, view.transfer_weight[place], np.float32(0)),
    }
    answers: dict[str, Any] = {
        "prompts": view.prompts[prompts],
        "prompt_lengths": view.prompt_lengths[prompts],
        "responses": view.responses[place],
        "response_lengths": lengths,
    }
    return MiniBatch(answers=Answers(**answers), **rows)


def _cut(rows: MiniBatch, micro_batches: int, size: int) -> MiniBatch:
    def cut(values: np.ndarray) -> np.ndarray:
        padding = [(0, micro_batches * size - len(values))] + [(0, 0)] * (values.ndim - 1)
        return np.pad(values, padding).reshape(micro_batches, size, *values.shape[1:])

    batch = jax.tree.map(cut, rows)
    lengths = np.maximum(batch.answers.prompt_lengths, 1)  # filler rows hold one token
    return dataclasses.replace(
        batch, answers=dataclasses.replace(batch.answers, prompt_lengths=lengths)
    )
