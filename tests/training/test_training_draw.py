"""Which problems a step is drawn from, and which of them are learned from."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_step import Step, run_of
from one_process import drawn_alone
from whole_steps import lucky_run, start_of, steps_of

from hacpo_jax.tasks.problems import step_indices
from hacpo_jax.training import step as step_module
from hacpo_jax.training.checkpoint import Checkpoints
from hacpo_jax.training.draw import choose_prompts, teaches
from hacpo_jax.training.drawn import join
from hacpo_jax.training.trainer import abstract_state

pytestmark = pytest.mark.usefixtures("compile_quickly")


@st.composite
def draws(draw):
    """Problems of several rounds, some of them again, and how many are to be chosen."""
    indices = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    wanted = draw(st.lists(st.booleans(), min_size=len(indices), max_size=len(indices)))
    return np.array(indices), np.array(wanted), draw(st.integers(1, len(set(indices))))


@given(case=draws())
@settings(deadline=None)
def test_wanted_problems_are_chosen_first_and_in_order(case):
    """Against a loop: first all that are wanted, then as many others as are missing."""
    indices, wanted, count = case
    places, found = choose_prompts(indices, wanted, count)
    firsts = [i for i in range(len(indices)) if indices[i] not in indices[:i]]
    chosen = [i for i in firsts if wanted[i]][:count]
    assert found == len(chosen)
    chosen += [i for i in firsts if not wanted[i]][: count - len(chosen)]
    assert places.tolist() == sorted(chosen)
    assert len(set(indices[places].tolist())) == len(places) == count


# Two agents' two answers to six problems, and one answer that could not be graded.
REWARDS = np.zeros((2, 6, 2), np.float32)
REWARDS[:, 0] = 1  # all are right
REWARDS[0, 1] = 1  # one agent solves it always, the other never
REWARDS[1, 2] = 1
REWARDS[0, 3, 1] = 1  # the one solves it sometimes
REWARDS[1, 4, 0] = 1
REWARDS[0, 5, 1] = 1  # the only right answer is not valid
VALID = np.ones(REWARDS.shape, bool)
VALID[0, 5, 1] = False


def algorithm(name: str, **section) -> dict:
    return {"name": name, **section}


RESCUE = {"coef": 0.1}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Own answers must differ among each other, for one agent at least.
        (algorithm("gspo"), algorithm("grpo"), [3, 4]),
        # Pooled ones differ where the agents do.
        (algorithm("xgrpo"), algorithm("gspo"), [1, 2, 3, 4]),
        (algorithm("grpo"), algorithm("prp"), [1, 2, 3, 4]),
        (algorithm("naive"), algorithm("naive"), [1, 2, 3, 4]),
        (algorithm("hacpo"), algorithm("grpo"), [1, 2, 3, 4]),
        (algorithm("prp", prp={"advantage": "carried"}), algorithm("grpo"), [3, 4]),
        # A rescue teaches who solved nothing.
        (algorithm("sgt"), algorithm("grpo"), [2, 3, 4]),
        (algorithm("grpo"), algorithm("sgt"), [1, 3, 4]),
        (algorithm("gspo", rescue=RESCUE), algorithm("gspo", rescue=RESCUE), [1, 2, 3, 4]),
    ],
    ids=str,
)
def test_problems_that_teach_by_algorithm(first, second, expected):
    run = run_of(agents=(("one", first), ("two", second)))
    drawn = drawn_alone(np.arange(6), REWARDS, VALID)
    assert np.flatnonzero(teaches(run, drawn)).tolist() == expected


def test_advantages_of_peers_teach_only_who_learns_from_their_answers():
    """Agent one is exactly average: pooled, only its peers would have something to learn."""
    rewards = np.array([[[0.5, 0.5]], [[1, 1]], [[0, 0]]], np.float32)
    drawn = drawn_alone(np.arange(1), rewards, np.ones(rewards.shape, bool))
    others = (("two", algorithm("gspo")), ("three", algorithm("gspo")))
    for name, expected in (("xgrpo", False), ("prp", True)):
        run = run_of(agents=(("one", algorithm(name)), *others))
        assert teaches(run, drawn).tolist() == [expected]


def test_what_counts_as_solved_follows_the_largest_reward():
    """More than half of it: 3 of 5, but not 2."""
    rewards = np.array([[[0, 0], [0, 0], [0, 0]], [[2, 2], [3, 3], [3, 3]]], np.float32)
    valid = np.ones(rewards.shape, bool)
    valid[1, 2] = False
    drawn = drawn_alone(np.arange(3), rewards, valid)
    assert drawn.successes(5)[1].tolist() == [[False, False], [True, True], [False, False]]


def test_answers_to_some_problems_are_taken_whole():
    """The second problem alone; and both parts joined are the step again."""
    drawn = Step(run_of()).drawn
    parts = [drawn.take(np.array([p])) for p in (1, 0)]
    assert parts[0].indices.tolist() == [drawn.indices[1]]
    for a in range(3):
        assert parts[0].texts[a] == drawn.texts[a][3:]
    for whole, part in zip(drawn.rollouts, parts[0].rollouts, strict=True):
        for name, values in vars(whole).items():
            np.testing.assert_array_equal(getattr(part, name), values[:, 1:])
    for name in ("rewards", "valid", "lengths", "stopped", "sampled"):
        np.testing.assert_array_equal(getattr(parts[0], name), getattr(drawn, name)[:, 1:])
    again = join(parts).take(np.array([1, 0]))
    for mine, its in zip(jax.tree.leaves(vars(again)), jax.tree.leaves(vars(drawn)), strict=True):
        if dataclasses.is_dataclass(its):
            for name, values in vars(its).items():
                np.testing.assert_array_equal(getattr(mine, name), values)
        else:
            np.testing.assert_array_equal(mine, its)


def test_gaps_of_several_rounds_are_the_largest():
    drawn = Step(run_of()).drawn
    rounds = [dataclasses.replace(drawn, gaps=np.array(g)) for g in ([1.0, 5, 0], [2.0, 3, 0])]
    assert join(rounds).gaps.tolist() == [2, 5, 0]  # type: ignore[union-attr]
    assert join([drawn, drawn]).gaps is None


@pytest.fixture
def learned_from(monkeypatch):
    """Problems of which views were made, once per call and group."""
    seen, views = [], step_module.learner_views

    def spy(run, group, drawn, *others):
        seen.append(drawn.indices.tolist())
        return views(run, group, drawn, *others)

    monkeypatch.setattr(step_module, "learner_views", spy)
    return seen


def test_a_step_draws_until_enough_problems_teach(learned_from):
    """The step by hand from its own records: which blocks were drawn, and what was left out."""
    run = lucky_run(
        agents=(("one", {"name": "gspo"}), ("two", {"name": "sgt"})), training={"prompt_rounds": 3}
    )
    state, results = steps_of(run, 4)
    block, left_out = 0, []
    for number, result in enumerate(results):
        pairs, chosen = [], []
        for _ in range(3):
            pairs += step_indices(0, len(run.train), 2, block).tolist()
            block += 1
            chosen = wanted_problems(run, result.records, pairs)
            if len(chosen) >= 2:
                break
        others = [i for i in dict.fromkeys(pairs) if i not in chosen]
        kept = (chosen + others)[:2]
        kept.sort(key=pairs.index)
        assert learned_from[2 * number] == learned_from[2 * number + 1] == kept
        # Whatever was drawn is in the records, three answers of either agent to each problem.
        ids = [run.train.examples[i].id for i in pairs for _ in range(3)]
        assert [r.prompt_id for r in result.records] == 2 * ids
        for row in result.metrics:
            assert row["prompts_left_out"] == len(pairs) - 2
        left_out.append(len(pairs) - 2)
        rewards = [r.reward for r in result.records if r.source == "one"]
        assert result.metrics[0]["reward/mean"] == pytest.approx(np.mean(rewards))
    assert state.blocks == block
    # Some steps needed further problems, and some did not.
    assert 0 in left_out and max(left_out) > 0


def wanted_problems(run, records, drawn: list[int]) -> list[int]:
    """Those whose answers differ for one agent, or that agent two alone did not solve."""
    names = {example.id: i for i, example in enumerate(run.train.examples)}
    rewards = {}
    for r in records:
        rewards.setdefault((r.source, names[r.prompt_id]), []).append(r.reward)

    def wanted(i: int) -> bool:
        one, two = rewards["one", i], rewards["two", i]
        return len(set(one)) > 1 or len(set(two)) > 1 or (any(one) and not any(two))

    return [i for i in dict.fromkeys(drawn) if wanted(i)]


def test_a_resumed_run_goes_on_with_the_same_problems_and_numbers(tmp_path):
    """An sgt and a prp learner with dynamic sampling, through a checkpoint, bit for bit."""
    thl = {"denominator": "thl_peer"}
    run = lucky_run(
        agents=(("one", {"name": "sgt"}), ("two", {"name": "prp", "prp": thl})),
        odds=8,
        training={"prompt_rounds": 2},
    )
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    start = start_of(run)
    start = dataclasses.replace(start, learners=jax.device_put(start.learners, device))
    middle, _ = steps_of(run, 2, start)
    checkpoints = Checkpoints(tmp_path / "run", 2)
    checkpoints.save(middle)
    checkpoints.close()
    blocks = middle.blocks
    assert blocks > 2  # more than one a step, which the step count alone would not tell
    whole, (expected,) = steps_of(run, 1, middle)

    again = Checkpoints(tmp_path / "run", 2)
    restored = again.restore(abstract_state(run), 2)
    again.close()
    assert (restored.step, restored.blocks) == (2, blocks)
    resumed, (found,) = steps_of(run, 1, restored)
    assert found.records == expected.records
    assert (resumed.step, resumed.blocks) == (whole.step, whole.blocks)
    np.testing.assert_array_equal(resumed.history, whole.history)
    leaves = (jax.tree.leaves(state.learners) for state in (resumed, whole))
    for mine, its in zip(*leaves, strict=True):
        np.testing.assert_array_equal(mine, its)
    for mine, its in zip(found.metrics, expected.metrics, strict=True):
        for name, value in its.items():
            of_time = name.startswith(("time/", "started/", "tokens_per_second"))
            assert of_time or mine[name] == value
