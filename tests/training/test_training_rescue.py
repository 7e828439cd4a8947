"""Which right answers of peers an agent is shown, in which rows, and what is counted of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_step import Step, answer, run_of, transferred
from one_process import whole_mini_batch

from hacpo_jax.training.batches import update_order
from hacpo_jax.training.rescue import transfer_weights

# With `made_step.VALID`: agent 0 fails both prompts (its only right answer is invalid), agent 1
# fails the second, agent 2 none.
REWARDS = np.array(
    [[[0, 0, 0], [0, 0, 1]], [[1, 1, 0], [0, 0, 0]], [[0, 1, 0], [0, 0, 1]]], np.float32
)
RESCUE = {"coef": 0.5, "pick": "all"}


def rngs(count, seed=0):
    return [np.random.default_rng([seed, p]) for p in range(count)]


@st.composite
def cases(draw):
    """Candidates `[A, P, G]` and lengths with many ties."""
    shape = tuple(draw(st.integers(1, 3)) for _ in range(3))
    values = np.random.default_rng(draw(st.integers(0, 999)))
    candidates = values.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.9]))
    return candidates, values.integers(1, 4, shape)


@pytest.mark.parametrize("pick", ["random", "shortest", "all"])
@given(case=cases(), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_the_weights_of_a_prompt_are_on_its_candidates_and_add_up_to_1(pick, case, seed):
    candidates, lengths = case
    weights = transfer_weights(candidates, lengths, pick, rngs(lengths.shape[1], seed))
    assert weights.shape == candidates.shape and weights.dtype == np.float32
    for p in range(candidates.shape[1]):
        places = [(a, g) for a, g in np.ndindex(weights[:, p].shape) if candidates[a, p, g]]
        found = {place: weights[place[0], p, place[1]] for place in places}
        total = float(bool(places))
        assert weights[:, p].sum() == pytest.approx(total)
        assert sum(found.values()) == pytest.approx(total)
        chosen = [place for place in places if found[place]]
        if pick == "all":
            assert all(found[place] == np.float32(1 / len(places)) for place in places)
        elif places:
            assert len(chosen) == 1
            if pick == "shortest":  # of several, the first
                assert chosen[0] == min(places, key=lambda at: (lengths[at[0], p, at[1]], at))


def test_a_random_pick_is_seeded_and_takes_every_candidate_equally_often():
    """Three candidates of six: a third of 6000 prompts each, within four deviations."""
    candidates = np.zeros((2, 6000, 3), bool)
    candidates[0, :, 2] = candidates[1, :, 0] = candidates[1, :, 1] = True
    lengths = np.ones(candidates.shape, int)
    weights = transfer_weights(candidates, lengths, "random", rngs(6000, 1))
    again, other = (
        transfer_weights(candidates, lengths, "random", rngs(6000, seed)) for seed in (1, 2)
    )
    np.testing.assert_array_equal(weights, again)
    assert (weights != other).any()
    counts = weights.sum(axis=1)
    assert not counts[~candidates[:, 0]].any()
    deviation = np.sqrt(6000 * 1 / 3 * 2 / 3)
    np.testing.assert_allclose(counts[candidates[:, 0]], 2000, atol=4 * deviation)


# What each learner is shown of `REWARDS`, by learner: (source, number of the answer): weight.
SHOWN = {0: {(1, 0): 0.5, (2, 1): 0.5, (2, 5): 1.0}, 1: {(2, 5): 1.0}, 2: {}}


@pytest.mark.parametrize("name", ["sgt", "gspo", "xgrpo", "hacpo"])
@pytest.mark.parametrize("learner", [0, 1, 2])
def test_right_answers_of_peers_are_shown_where_the_learner_has_none(name, learner):
    """An answer that the verifier could not judge is right for nobody."""
    step = Step(run_of(name=name, rescue=RESCUE), REWARDS)
    view = step.view(learner)
    weights = {(j, i): view.transfer_weight[j].flat[i] for j in range(3) for i in range(6)}
    assert {place: weight for place, weight in weights.items() if weight} == SHOWN[learner]
    for source, i in SHOWN[learner]:
        assert transferred(view, source, i) == step.encoded(learner, source, i)
    for source in range(3):
        if source != learner and name != "hacpo":
            for i in range(6):
                if (source, i) not in SHOWN[learner]:
                    assert transferred(view, source, i) == []


def test_of_several_the_shortest_in_the_learner_s_tokens_can_be_picked():
    """ "What" has four characters, and "1" two with its end token."""
    step = Step(run_of(name="sgt", rescue={"pick": "shortest"}), REWARDS)
    weights = step.view(0).transfer_weight
    assert weights.sum() == 2
    assert weights[2, 0, 1] == weights[2, 1, 2] == 1


def test_a_random_pick_depends_on_step_and_learner_alone():
    step = Step(run_of(name="sgt"), REWARDS)
    picks = [step.views(0, number)[0][0].transfer_weight for number in range(12)]
    again = [step.views(0, number)[0][0].transfer_weight for number in range(12)]
    np.testing.assert_array_equal(picks, again)
    first = [bool(weights[1, 0, 0]) for weights in picks]
    assert set(first) == {True, False}
    assert all(weights[1, 0, 0] + weights[2, 0, 1] == 1 for weights in picks)


@pytest.mark.parametrize(("longest", "dropped"), [(3, 1 / 3), (1, 1)])
def test_a_peer_s_answer_that_is_too_long_is_dropped_and_counted(longest, dropped):
    """Of "What" and two digits with an end token, the one is too long, or all are."""
    step = Step(run_of(name="sgt", rescue=RESCUE, max_peer_tokens=longest), REWARDS)
    (view, _), (report, none) = step.views(0)
    assert report["peer/dropped"] == pytest.approx(dropped)
    assert report["peer/length_ratio"] == 1  # characters to characters, and bytes to characters
    assert none == {"peer/dropped": 0, "peer/length_ratio": None}
    assert view.transfer_weight.sum() == (2 if longest == 3 else 0)
    assert view.transfer_weight[1].sum() == 0
    assert transferred(view, 1, 0) == []
    assert transferred(view, 2, 5) == (step.ids[2][5] if longest == 3 else [])


def test_a_transferred_answer_keeps_the_end_token_that_cross_ratios_leave_out():
    """Whoever is shown an answer is shown where it ends."""
    step = Step(run_of(name="hacpo", rescue=RESCUE, eos_in_ratio=False), REWARDS)
    view = step.view(1)
    ids = step.encoded(1, 2, 5)
    assert ids[-1] == step.run.agents[1].tokenizer.eos_id
    assert answer(view, 2, 5) == ids[:-1]
    assert transferred(view, 2, 5) == ids
    batch = whole_mini_batch([view], [np.array([[1, 1], [2, 1]])])
    rows = batch.answers.response_lengths[0].reshape(-1)
    weights = batch.transfer_weight[0].reshape(-1)
    assert rows[weights > 0].tolist() == [len(ids)]


@pytest.mark.parametrize("name", ["gspo", "sgt"])
def test_without_a_gated_prompt_the_rows_are_those_of_no_rescue(name):
    """Agent 2 has a right answer to both prompts: not a row, not a number more."""
    step = Step(run_of(name=name, rescue=RESCUE), REWARDS)
    plain = Step(run_of(name="gspo" if name == "gspo" else "grpo"), REWARDS)
    pairs = [np.array([[2, 0], [2, 1]])]
    with_rescue = whole_mini_batch([step.view(2)], pairs)
    without = whole_mini_batch([plain.view(2)], pairs)
    assert not with_rescue.transfer_weight.any()
    np.testing.assert_array_equal(with_rescue.answers.mask, without.answers.mask)
    for field in ("advantages", "behavior_mean_log_prob", "source"):
        np.testing.assert_array_equal(getattr(with_rescue, field), getattr(without, field))


@pytest.mark.parametrize("order", ["own_first", "mixed"])
@pytest.mark.parametrize("learner", [0, 1])
def test_what_is_transferred_rides_with_the_learner_s_own_answers_to_its_prompt(order, learner):
    """Each is in exactly one update of the step, and shares the prompt of that update's groups."""
    step = Step(run_of(name="naive", rescue=RESCUE), REWARDS)
    view = step.view(learner)
    size = 3 if order == "mixed" else 1
    pairs = update_order(learner, 3, 2, size, share=True, order=order, rng=rngs(1)[0])
    seen = []
    for chosen in pairs:
        batch = whole_mini_batch([view], [chosen])
        weights, sources = batch.transfer_weight[0, 0], batch.source[0, 0]
        answers, lengths = batch.answers.responses[0, 0], batch.answers.response_lengths[0, 0]
        prompts = batch.answers.prompts[0, 0][batch.answers.prompt_of[0, 0]]
        own = {int(p) for j, p in chosen if j == learner}
        expected = {at: w for at, w in SHOWN[learner].items() if at[1] // 3 in own}
        rows = np.flatnonzero(weights)
        assert len(rows) == len(expected)
        assert batch.answers.prompts.shape[2] == len({int(p) for _, p in chosen})
        for row, ((source, i), weight) in zip(rows, sorted(expected.items()), strict=True):
            assert weights[row] == weight and sources[row] == source
            assert answers[row][: lengths[row]].tolist() == step.encoded(learner, source, i)
            np.testing.assert_array_equal(prompts[row], view.prompts[i // 3])
            seen.append((source, i))
        # After them there is only filler, of which there are few sizes.
        assert not lengths[3 * len(chosen) + len(rows) :].any()
        extra = batch.source.shape[2] - 3 * len(chosen)
        assert extra in (0, 1, 2, 4)
        assert extra < 2 * max(len(rows), 1)
    assert sorted(seen) == sorted(SHOWN[learner])


def test_learners_of_a_group_are_filled_up_to_the_same_number_of_rows():
    """The one is shown three answers, the other none."""
    step = Step(run_of(name="sgt", rescue=RESCUE), REWARDS)
    views, _ = step.views(0)
    batch = whole_mini_batch(views, [np.array([[k, 0], [k, 1]]) for k in (0, 2)])
    assert batch.transfer_weight.shape == (2, 1, 6 + 4)
    assert (batch.transfer_weight > 0).sum(axis=(1, 2)).tolist() == [3, 0]
    assert not batch.answers.response_lengths[1, 0, 6:].any()
