"""What a step's answers and an update's rows are where one process has them all."""

from collections.abc import Sequence

import numpy as np

from hacpo_jax.training.batches import (
    LearnerView,
    lay_views,
    mini_batch,
    num_rows,
    row_size,
)
from hacpo_jax.training.drawn import Drawn
from hacpo_jax.training.update import MiniBatch


def whole_mini_batch(
    views: Sequence[LearnerView], pairs: Sequence[np.ndarray], rows: int = 1
) -> MiniBatch:
    """All answers of an update, in so many rows."""
    groups = len(pairs[0]) * views[0].responses.shape[2]
    size = row_size(groups, max(map(num_rows, views, pairs)), rows)
    laid = lay_views(views, pairs, rows, size)
    return mini_batch(views, pairs, laid, max(int(each.prompt_of.max()) for each in laid) + 1)


def drawn_alone(indices: np.ndarray, rewards: np.ndarray, valid: np.ndarray, **given) -> Drawn:
    """Answers of which nothing is known but what is given."""
    nothing = np.zeros(rewards.shape, np.int32)
    fields = {
        "rollouts": (),
        "texts": (),
        "lengths": nothing,
        "stopped": nothing > 0,
        "sampled": nothing.astype(np.float32),
        "drift": np.zeros(len(rewards)),
        "gaps": None,
        **given,
    }
    owners = np.zeros(len(indices), int)
    return Drawn(indices, owners, 0, rewards=rewards, valid=valid, **fields)
