"""Which groups meet in which update, and the rows that they become."""

import types

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_process import whole_mini_batch

from hacpo_jax.config import parse_config
from hacpo_jax.training.batches import (
    LearnerView,
    pad_prompts,
    pad_responses,
    update_order,
)
from hacpo_jax.training.run import Run


@st.composite
def orders(draw, order: str):
    """A learner and a step whose groups fill whole mini-batches, and its updates."""
    num_agents = draw(st.integers(1, 4))
    joint = num_agents if order == "mixed" else 1
    prompts_per_update, updates = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    learner = draw(st.integers(0, num_agents - 1))
    size = prompts_per_update * joint
    pairs = update_order(
        learner,
        num_agents,
        prompts_per_update * updates,
        size,
        share=True,
        order=order,
        rng=np.random.default_rng(draw(st.integers(0, 99))),
    )
    return learner, num_agents, prompts_per_update * updates, size, pairs


def as_tuples(pairs):
    return [tuple(pair) for pair in np.concatenate(pairs).tolist()]


@pytest.mark.parametrize("order", ["own_first", "mixed"])
@given(data=st.data())
def test_every_group_is_in_exactly_one_update_of_full_size(order, data):
    _, num_agents, num_prompts, size, pairs = data.draw(orders(order))
    found = as_tuples(pairs)
    assert all(len(update) == size for update in pairs)
    assert sorted(found) == [(j, p) for j in range(num_agents) for p in range(num_prompts)]


@given(case=orders("own_first"))
def test_own_groups_come_first_and_peers_side_by_side(case):
    learner, num_agents, num_prompts, _, pairs = case
    found = as_tuples(pairs)
    assert found[:num_prompts] == [(learner, p) for p in range(num_prompts)]
    peers = [j for j in range(num_agents) if j != learner]
    assert found[num_prompts:] == [(j, p) for p in range(num_prompts) for j in peers]


@given(case=orders("mixed"))
def test_mixed_updates_hold_whole_joint_groups(case):
    _, num_agents, _, _, pairs = case
    for update in pairs:
        by_prompt = {}
        for source, prompt in update.tolist():
            by_prompt.setdefault(prompt, set()).add(source)
        assert all(sources == set(range(num_agents)) for sources in by_prompt.values())


def test_mixed_order_is_shuffled_and_seeded():
    def order(seed):
        rng = np.random.default_rng(seed)
        return as_tuples(update_order(0, 2, 32, 8, share=True, order="mixed", rng=rng))

    prompts = [p for _, p in order(1)[::2]]
    assert prompts != sorted(prompts)
    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize("order", ["own_first", "mixed"])
def test_without_sharing_only_own_groups_are_taken(order):
    rng = np.random.default_rng(0)
    pairs = update_order(1, 3, 8, 4, share=False, order=order, rng=rng)
    assert [update.tolist() for update in pairs] == [
        [[1, p] for p in range(4)],
        [[1, p] for p in range(4, 8)],
    ]


def paper_config(name: str, **algorithm):
    model = {
        "family": "llama",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
    }
    agents = [{"name": n, "model": model, "tokenizer": {"kind": "bytes"}} for n in ("a", "b")]
    return parse_config(
        {
            "run_dir": "unused",
            "task": {
                "train": {"kind": "arithmetic", "size": 128},
                "eval": {"x": {"kind": "arithmetic", "split": "held_out", "size": 1}},
            },
            "agents": agents,
            "algorithm": {"name": name, **algorithm},
            "sampling": {"max_new_tokens": 4},
            "training": {
                "steps": 3,
                "prompts_per_step": 128,
                "group_size": 8,
                "mini_batch_prompts": 64,
            },
        }
    )


@pytest.mark.parametrize(
    ("name", "order", "updates"),
    [("hacpo", "own_first", 4), ("hacpo", "mixed", 4)]
    + [(name, "own_first", 4) for name in ("naive", "prp")]
    + [(name, "own_first", 2) for name in ("gspo", "grpo", "xgrpo", "sgt")],
)
def test_the_example_of_the_paper(name, order, updates):
    """128 prompts, mini-batch 64, G = 8, A = 2: 4 updates of 512 sequences; a baseline gets 2."""
    config = paper_config(name, minibatch_order=order)
    run = types.SimpleNamespace(config=config, agents=(0, 1))
    group = types.SimpleNamespace(algorithm=config.algorithm)
    assert Run.updates_per_step(run, group) == updates  # type: ignore[arg-type]
    training, algorithm = config.training, config.algorithm
    pairs = update_order(
        0,
        2,
        training.prompts_per_step,
        training.mini_batch_prompts,
        share=algorithm.shares_answers,
        order=algorithm.minibatch_order,
        rng=np.random.default_rng(0),
    )
    assert [len(update) * training.group_size for update in pairs] == [512] * updates
    if (name, order) == ("hacpo", "own_first"):
        assert [set(update[:, 0].tolist()) for update in pairs] == [{0}, {0}, {1}, {1}]


def view_of(num_agents=2, num_prompts=3, samples=2, width=5, learner=1, weight=None) -> LearnerView:
    """Every number tells its own place."""
    shape = (num_agents, num_prompts, samples)
    place = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tokens = (100 * place[..., None] + np.arange(width)).astype(np.int32)
    return LearnerView(
        learner=learner,
        prompts=np.arange(num_prompts * 4, dtype=np.int32).reshape(num_prompts, 4),
        prompt_lengths=np.array([1, 4, 2], np.int32)[:num_prompts],
        responses=tokens,
        response_lengths=(1 + place % width).astype(np.int32),
        advantages=place / 10,
        behavior_mean_log_prob=-place,
        old_log_probs=-tokens.astype(np.float32) - 0.5,
        reference_log_probs=-tokens[learner].astype(np.float32) - 0.25,
        transfer_weight=np.zeros(shape, np.float32) if weight is None else weight,
        transfer_lengths=(1 + (place + 1) % width).astype(np.int32),
    )


@pytest.mark.parametrize("rows", [1, 4])
def test_answers_of_a_mini_batch_are_those_of_its_groups(rows):
    """Side by side with the others to their prompt; of 6 in 4 rows two are filler."""
    view = view_of()
    pairs = np.array([[1, 2], [0, 0], [1, 1]])
    batch = whole_mini_batch([view], [pairs], rows)
    answers, size = batch.answers, -(-6 // rows)
    assert batch.source.shape == (1, rows, size)
    order = [(j, p, g) for j, p in ([0, 0], [1, 1], [1, 2]) for g in range(2)]
    shares = np.array_split(np.arange(6), rows)
    for r, share in enumerate(shares):
        for n, i in enumerate(share):
            j, p, g = order[i]
            at = (0, r, n)
            shared = (0, r, answers.prompt_of[at])
            np.testing.assert_array_equal(answers.prompts[shared], view.prompts[p])
            assert answers.prompt_lengths[shared] == view.prompt_lengths[p]
            np.testing.assert_array_equal(answers.responses[at], view.responses[j, p, g])
            assert answers.response_lengths[at] == view.response_lengths[j, p, g]
            assert batch.source[at] == j
            assert batch.advantages[at] == view.advantages[j, p, g]
            assert batch.behavior_mean_log_prob[at] == view.behavior_mean_log_prob[j, p, g]
            np.testing.assert_array_equal(batch.old_log_probs[at], view.old_log_probs[j, p, g])
            own = view.reference_log_probs[p, g] if j == view.learner else np.zeros(5)
            np.testing.assert_array_equal(batch.reference_log_probs[at], own)
            assert batch.transfer_weight[at] == 0
        # What fills up a row has no token, and prompts of one token or more.
        assert not answers.response_lengths[0, r, len(share) :].any()
    assert (answers.prompt_lengths > 0).all()


@pytest.mark.parametrize(
    ("shown", "extra"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 4), (8, 4), (9, 8), (16, 8)]
)
def test_sizes_of_rows_are_few_whatever_is_transferred(shown, extra):
    """18 answers of groups in two rows; the rest in none more of each, or in a power of two."""
    weight = np.zeros((2, 3, 6), np.float32)
    weight[0].flat[:shown] = 0.1
    view = view_of(samples=6, weight=weight)
    batch = whole_mini_batch([view], [np.array([[1, 0], [1, 1], [1, 2]])], 2)
    assert batch.source.shape == (1, 2, 9 + extra)
    assert (batch.transfer_weight > 0).sum() == shown


def test_learners_of_a_group_are_stacked():
    pairs = np.array([[0, 1], [1, 0]])
    views = [view_of(learner=k) for k in (0, 1)]
    alone = [
        whole_mini_batch([view], [pairs[::step]], 2)
        for view, step in zip(views, (1, -1), strict=True)
    ]
    both = whole_mini_batch(views, [pairs, pairs[::-1]], 2)
    for k, one in enumerate(alone):
        for mine, its in zip(jax.tree.leaves(both), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(mine[k], its[0])


def test_padding_of_prompts_and_answers():
    tokens, lengths = pad_prompts([(1, 2, 3, 4, 5), (6,)])
    assert tokens.tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 6]]
    assert lengths.tolist() == [5, 1]
    answers, sizes = pad_responses([[[1], [], [2, 3], [4]], [[5, 6, 7, 8, 9], [1], [], []]], 2)
    assert answers.shape == (2, 2, 2, 6)
    assert sizes.tolist() == [[[1, 0], [2, 1]], [[5, 1], [0, 0]]]
    assert answers[1, 0, 0].tolist() == [5, 6, 7, 8, 9, 0]
    assert answers[0, 1, 0].tolist() == [2, 3, 0, 0, 0, 0]


def test_a_step_in_which_nobody_answers_still_has_a_shape():
    answers, sizes = pad_responses([[[], []]], 2)
    assert answers.shape == (1, 1, 2, 4)
    assert not sizes.any()
