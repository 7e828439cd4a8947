"""A step's answers as the micro-batches of every process."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.models import Answers
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.shares import gather_arrays
from hacpo_jax.training.batches import (
    LearnerView,
    lay_views,
    mini_batch,
    num_rows,
    row_lengths,
    row_size,
    update_order,
)
from hacpo_jax.training.cuts import count_prompts, make_cuts
from hacpo_jax.training.drawn import Drawn
from hacpo_jax.training.run import Programs, Run
from hacpo_jax.training.scoring import Cut
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
) -> Iterator[tuple[MiniBatch, list[Cut]]]:
    """This process's answers of every update, `[A, R, N, ...]` each, and their micro-batches.

    All processes make arrays and micro-batches of the same sizes, whatever each has to fill them
    with.

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
    needed = [max(map(num_rows, views, of_learners)) for of_learners in local]
    if group.algorithm.rescue_coef:  # only the process that has an answer knows what it adds
        parts = gather_arrays(run.hosts, f"{name}: counts", {"needed": np.array(needed)})
        needed = np.max([part["needed"] for part in parts], axis=0).tolist()
    laid, mine = [], {}
    for u, (of_learners, most, count) in enumerate(zip(local, groups, needed, strict=True)):
        size = row_size(most * samples, max(count, most * samples), layout.local_rows)
        laid.append(lay_views(views, of_learners, layout.local_rows, size))
        given = zip(views, of_learners, laid[u], strict=True)
        lengths = [lie.lay(row_lengths(view, pairs)) for view, pairs, lie in given]
        mine[f"lengths/{u}"] = np.stack(lengths)
        mine[f"prompt_of/{u}"] = np.stack([lie.prompt_of for lie in laid[u]])
    parts = gather_arrays(run.hosts, f"{name}: lengths", mine)

    lengths, prompt_of = (
        [np.concatenate([part[f"{key}/{u}"] for part in parts], axis=1) for u in range(len(laid))]
        for key in ("lengths", "prompt_of")
    )
    # The same for all updates, though those of several peers' answers to a prompt have fewer.
    prompts = max(map(count_prompts, prompt_of))

    def batches() -> Iterator[tuple[MiniBatch, list[Cut]]]:
        for pairs, rows, known, places in zip(local, laid, lengths, prompt_of, strict=True):
            batch = mini_batch(views, pairs, rows, prompts)
            yield batch, cut_answers(run, group, batch.answers, known, places)

    return batches()


def cut_answers(
    run: Run, group: AgentGroup, answers: Answers, lengths: np.ndarray, prompt_of: np.ndarray
) -> list[Cut]:
    """This process's part of the micro-batches of answers.

    Args:
      run: the run.
      group: whose answers they are.
      answers: those of this process, `[A, R, N, ...]`.
      lengths: `[A, all R, N]` of the answers of all processes.
      prompt_of: likewise which of its row's prompts each is to.
    """
    layout, (*_, count, prompt_width) = run.layout(group), answers.prompts.shape
    cuts = make_cuts(
        lengths,
        prompt_of,
        prompts=(count, prompt_width),
        tokens=row_tokens(run.config.training.micro_batch_tokens, layout),
        widest=answers.responses.shape[-1],
    )
    first = run.hosts.index * layout.local_rows if layout.processes > 1 else 0
    return [jax.tree.map(lambda x: x[:, first : first + layout.local_rows], cut) for cut in cuts]


def row_tokens(tokens: int, layout: Layout) -> int:
    """Of a micro-batch of so many tokens in all, those of each row."""
    return max(tokens // layout.rows, 1)


def _local(pairs: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Those pairs whose prompt this process has, with its place among them."""
    here = pairs[np.isin(pairs[:, 1], mine)]
    return np.column_stack([here[:, 0], np.searchsorted(mine, here[:, 1])])
