"""A step's answers as the micro-batches of every process."""

from collections.abc import Iterator, Sequence

import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.parallel.shares import gather_arrays
from hacpo_jax.training.batches import (
    LearnerView,
    mini_batch,
    num_micro_batches,
    num_rows,
    update_order,
)
from hacpo_jax.training.drawn import Drawn
from hacpo_jax.training.run import Programs, Run
from hacpo_jax.training.update import MiniBatch


def updates_of(programs: Programs, group: AgentGroup, step: int) -> list[list[np.ndarray]]:
    """Of each update of a step, for each learner of a group, its `[B, 2]` from `update_order`."""
    training, algorithm = programs.config.training, group.algorithm
    orders = [
        update_order(
            learner,
            len(programs.agents),
            training.prompts_per_step,
            training.mini_batch_prompts,
            share=algorithm.shares_answers,
            order=algorithm.minibatch_order,
            rng=np.random.default_rng([programs.config.seed, step, 2]),
        )
        for learner in group.indices
    ]
    return [list(of_learners) for of_learners in zip(*orders, strict=True)]


def most_groups(of_learners: Sequence[np.ndarray], owners: np.ndarray, processes: int) -> int:
    """Groups of answers of one update, of the learner and process that have most.

    Args:
      of_learners: of each learner `[B, 2]`, source and prompt.
      owners: `[P]` the process that has each prompt.
      processes: how many there are.
    """
    counts = (np.bincount(owners[pairs[:, 1]], minlength=processes) for pairs in of_learners)
    return max(int(count.max()) for count in counts)


def cut_updates(
    run: Run,
    group: AgentGroup,
    drawn: Drawn,
    views: Sequence[LearnerView],
    updates: Sequence[Sequence[np.ndarray]],
    name: str,
) -> Iterator[MiniBatch]:
    """This process's rows of every update, `[A, M, R, ...]` each.

    All processes make the same number of micro-batches of the same size, whatever each has to
    fill them with.

    Args:
      run: the run.
      group: the learners.
      drawn: the answers.
      views: the learners' own.
      updates: of each update, for each learner `[B, 2]` from `update_order`.
      name: of the exchange between processes.
    """
    layout, samples = run.layout(group), run.config.training.group_size
    local = [[_local(pairs, drawn.mine) for pairs in of_learners] for of_learners in updates]
    groups = [most_groups(of_learners, drawn.owners, layout.processes) for of_learners in updates]
    rows = [max(map(num_rows, views, of_learners)) for of_learners in local]
    if group.algorithm.rescue_coef:  # only the process that has an answer knows its length
        parts = gather_arrays(run.hosts, name, {"rows": np.array(rows)})
        rows = np.max([part["rows"] for part in parts], axis=0).tolist()

    def batches() -> Iterator[MiniBatch]:
        for of_learners, most, needed in zip(local, groups, rows, strict=True):
            size = layout.micro_batch(run.config.training.micro_batch_rows, most * samples)
            count = num_micro_batches(most * samples, max(needed, most * samples), size)
            yield mini_batch(views, of_learners, size, count)

    return batches()


def _local(pairs: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Those pairs whose prompt this process has, with its place among them."""
    here = pairs[np.isin(pairs[:, 1], mine)]
    return np.column_stack([here[:, 0], np.searchsorted(mine, here[:, 1])])
