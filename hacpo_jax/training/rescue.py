"""Which right answers of peers a learner is shown where it has none (SGT, arXiv 2605.07244)."""

from collections.abc import Sequence

import numpy as np


def transfer_weights(
    candidates: np.ndarray,
    lengths: np.ndarray,
    pick: str,
    rngs: Sequence[np.random.Generator],
) -> np.ndarray:
    """Weights of the rescue term; those of a prompt with a candidate add up to 1.

    Args:
      candidates: bool `[A, P, G]`, peers' right answers to gated prompts.
      lengths: `[A, P, G]` tokens of the learner.
      pick: `random`, `shortest` (the first of several), or `all` in equal shares.
      rngs: one for each prompt, picks at random.

    Returns:
      float32 `[A, P, G]`, 0 where nothing is transferred.
    """
    agents, prompts, samples = candidates.shape

    def by_prompt(values: np.ndarray) -> np.ndarray:
        return values.swapaxes(0, 1).reshape(prompts, agents * samples)

    found = by_prompt(candidates)
    if pick == "all":
        weights = found / np.maximum(found.sum(axis=1, keepdims=True), 1)
    else:
        order = by_prompt(lengths) if pick == "shortest" else _random(rngs, found.shape)
        first = np.where(found, order, np.inf).argmin(axis=1)
        weights = found & (np.arange(found.shape[1]) == first[:, None])
    return weights.astype(np.float32).reshape(prompts, agents, samples).swapaxes(0, 1)


def _random(rngs: Sequence[np.random.Generator], shape: tuple[int, int]) -> np.ndarray:
    """`[P, N]`, each row from a generator of its own."""
    return np.array([rng.random(shape[1]) for rng in rngs]).reshape(shape)
