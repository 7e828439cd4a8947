"""A step's answers as the mini-batches of its updates."""

import jax
import numpy as np
from made_step import P, Step, run_of

from hacpo_jax.training.cut import cut_updates, updates_of


def test_own_and_peers_updates_are_arrays_of_one_shape():
    """So that one program serves: two own groups have two prompts, those of two peers have one."""
    step = Step(run_of())
    run, group = step.run, step.run.groups[0]
    (views, _), updates = step.views(0), updates_of(run, group, 0)
    assert [len(set(pairs[0][:, 1].tolist())) for pairs in updates] == [P, 1, 1]
    found = list(cut_updates(run, group, step.drawn, views, updates, "step 0"))
    assert len(found) == 3
    shapes = [jax.tree.map(np.shape, batch) for batch, _ in found]
    assert shapes[0] == shapes[1] == shapes[2]
    for batch, cuts in found:
        np.testing.assert_array_equal(
            sum((cut.answers < batch.source.shape[-1]).sum() for cut in cuts),
            (batch.answers.response_lengths > 0).sum(),
        )
