"""From all agents' answers to the mini-batches of one learner, in numpy."""

import dataclasses
from collections.abc import Iterable, Sequence
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
      response_lengths: `[A, P, G]`; 0 for answers that must not count.
      advantages: `[A, P, G]` of the learner.
      behavior_mean_log_prob: `[A, P, G]` of each source, over its own tokens.
      old_log_probs: `[P, G, T]` of the learner's own answers.
      reference_log_probs: `[P, G, T]` of the learner's frozen start on its own answers, or zeros.
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


def pad_responses(
    rows: Sequence[Sequence[Sequence[int]]], num_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids `[A, P, G, T]` and lengths `[A, P, G]` from A lists of P·G answers."""
    lengths = np.array([[len(row) for row in source] for source in rows], np.int32)
    tokens = np.zeros((*lengths.shape, bucket(int(lengths.max()))), np.int32)
    for a, source in enumerate(rows):
        for i, row in enumerate(source):
            tokens[a, i, : len(row)] = row
    shape = (len(rows), -1, num_samples)
    return tokens.reshape(*shape, tokens.shape[-1]), lengths.reshape(shape)


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


def mini_batch(view: LearnerView, pairs: np.ndarray, micro_batch_rows: int) -> MiniBatch:
    """Rows of the given (source, prompt) groups, `[M, R, ...]`, and filler that weighs nothing.

    Args:
      view: one learner's answers.
      pairs: `[B, 2]` from `update_order`.
      micro_batch_rows: R at most.
    """
    sources, prompts = pairs.T
    num_samples = view.responses.shape[2]
    own = (sources == view.learner)[:, None, None]

    # Host arrays stand in for device arrays until the jitted update takes them.
    def per_group(values: np.ndarray) -> Any:
        return np.repeat(values, num_samples, axis=0)  # [B * G, ...]

    def per_row(values: np.ndarray) -> Any:
        return values.reshape(-1, *values.shape[2:])  # [B, G, ...] to [B * G, ...]

    answers = Answers(
        prompts=per_group(view.prompts[prompts]),
        prompt_lengths=per_group(view.prompt_lengths[prompts]),
        responses=per_row(view.responses[sources, prompts]),
        response_lengths=per_row(view.response_lengths[sources, prompts]),
    )
    rows = MiniBatch(
        answers=answers,
        source=per_group(sources.astype(np.int32)),
        advantages=per_row(view.advantages[sources, prompts]),
        behavior_mean_log_prob=per_row(view.behavior_mean_log_prob[sources, prompts]),
        old_log_probs=per_row(np.where(own, view.old_log_probs[prompts], 0.0)),
        reference_log_probs=per_row(np.where(own, view.reference_log_probs[prompts], 0.0)),
    )
    return _cut(rows, len(pairs) * num_samples, micro_batch_rows)


def _cut(rows: MiniBatch, count: int, micro_batch_rows: int) -> MiniBatch:
    size = min(micro_batch_rows, count)
    filler = -count % size

    def cut(values: np.ndarray) -> np.ndarray:
        padding = [(0, filler)] + [(0, 0)] * (values.ndim - 1)
        return np.pad(values, padding).reshape(-1, size, *values.shape[1:])

    batch = jax.tree.map(cut, rows)
    lengths = np.maximum(batch.answers.prompt_lengths, 1)  # filler rows hold one token
    return dataclasses.replace(
        batch, answers=dataclasses.replace(batch.answers, prompt_lengths=lengths)
    )


def stack(batches: Iterable[MiniBatch]) -> MiniBatch:
    """Mini-batches of a group's learners on a leading agent axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
