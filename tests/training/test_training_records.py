"""What learners are told of their peers: the records that they declare, and no more."""

import numpy as np
import pytest
from made_step import TEXTS, VALID, P, Step, answer, run_of, standardised, transferred

from hacpo_jax.exchange import Exchange, Outcome, Rollout, Scalar, Trace
from hacpo_jax.training.publish import publish

SGT = {"name": "sgt"}
THL = {"name": "prp", "prp": {"denominator": "thl_peer"}}

# Agent 0 has no right answer to either prompt, agent 1 none to the second.
REWARDS = np.array(
    [[[0, 0, 0], [0, 0, 1]], [[1, 1, 0], [0, 0, 0]], [[0, 1, 0], [0, 0, 1]]], np.float32
)


@pytest.fixture
def collected(monkeypatch):
    """Every call of `Exchange.collect`: learner, type asked for, and what came."""
    calls, collect = [], Exchange.collect

    def spy(self, record_type, *, learner, own):
        assert not own
        found = collect(self, record_type, learner=learner, own=own)
        calls.append((learner, record_type, found))
        return found

    monkeypatch.setattr(Exchange, "collect", spy)
    return calls


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"name": "gspo"}, None),
        ({"name": "grpo"}, None),
        ({"name": "xgrpo"}, Scalar),
        (SGT, Outcome),
        ({"name": "gspo", "rescue": {"coef": 1}}, Outcome),
        ({"name": "hacpo"}, Rollout),
        ({"name": "naive"}, Rollout),
        ({"name": "prp"}, Rollout),
        (THL, Trace),
    ],
)
def test_a_learner_collects_its_peers_records_of_the_declared_type(collected, algorithm, expected):
    """Traces are published, since agent three needs them, and everybody else gets less."""
    step = Step(run_of(agents=("one", ("two", algorithm), ("three", THL))), REWARDS)
    assert {type(record) for own in step.records for record in own} == {Trace}
    g, _ = step.run.place(step.run.agents[1])
    step.views(g)
    if expected is None:
        assert collected == []
        return
    ((learner, record_type, records),) = collected
    assert (learner, record_type) == ("two", expected)
    assert {type(record) for record in records} == {expected}
    assert [record.source for record in records] == ["one"] * 6 + ["three"] * 6


def test_without_a_learner_that_takes_traces_none_are_published():
    step = Step(run_of(agents=("one", ("two", SGT), ("three", {"name": "prp"}))), REWARDS)
    assert {type(record) for own in step.records for record in own} == {Rollout}


def test_published_are_the_answers_that_are_learned_from():
    """The second problem alone, of the two that were answered."""
    step = Step(run_of(), REWARDS)
    exchange = publish(step.run, step.records, np.array([1]))
    for agent, records in zip(step.run.agents, step.records, strict=True):
        assert exchange.own(agent.name) == tuple(records[3:])


def test_traces_place_every_token_in_the_text():
    """Made-up answers have a token per byte; an end token stands for nothing at the end."""
    step = Step(run_of(agents=("one", "two", ("three", THL))), REWARDS)
    for agent, rows in TEXTS.items():
        for i, (text, ended) in enumerate(rows):
            record = step.records[agent][i]
            assert isinstance(record, Trace)
            size = len(text)
            expected = [(n, n + 1) for n in range(size)] + [(size, size)] * ended
            assert list(record.spans) == expected
            assert list(record.log_probs) == step.log_probs[agent][i].tolist()


def test_the_advantage_in_a_record_is_that_among_the_source_s_own_answers():
    """With the scale of the source's own settings."""
    unscaled = {"name": "grpo", "grpo": {"scale": "none"}}
    step = Step(run_of(agents=("one", ("two", unscaled), "three")), REWARDS)
    found = np.array([[r.group_advantage for r in own] for own in step.records]).reshape(3, P, -1)
    for agent in (0, 2):
        for p in range(P):
            expected = standardised(REWARDS[agent, p], VALID[agent, p])
            np.testing.assert_allclose(found[agent, p], expected, rtol=1e-5)
    # Its right answer is the only valid one that is right: 1, (invalid), 0.
    np.testing.assert_allclose(found[1, 0], [0.5, 0, -0.5])
    np.testing.assert_allclose(found[1, 1], [0, 0, 0])


@pytest.mark.parametrize("learner", [0, 1])
def test_no_token_of_a_peer_reaches_an_xgrpo_learner(learner):
    """Its advantages are pooled over everybody's rewards all the same."""
    step = Step(run_of(name="xgrpo"), REWARDS)
    view = step.view(learner)
    others = [source for source in range(3) if source != learner]
    for name in ("responses", "response_lengths", "old_log_probs", "transfer_lengths"):
        assert not getattr(view, name)[others].any()
    assert not view.behavior_mean_log_prob[others].any()
    assert not view.transfer_weight.any()
    for p in range(P):
        expected = standardised(REWARDS[:, p], VALID[:, p])
        np.testing.assert_allclose(view.advantages[:, p], expected, rtol=1e-5)
    for i, ids in enumerate(step.ids[learner]):
        assert answer(view, learner, i) == (ids if VALID[learner].flat[i] else [])


def test_an_sgt_learner_takes_right_answers_to_gated_prompts_alone():
    step = Step(run_of(name="sgt"), REWARDS)
    wanted = {0: {(1, 0), (2, 1), (2, 5)}, 1: {(2, 5)}, 2: set()}
    for learner, answers in wanted.items():
        view = step.view(learner)
        for source in range(3):
            if source != learner:
                for i in range(6):
                    taken = (source, i) in answers
                    ids = step.encoded(learner, source, i) if taken else []
                    assert transferred(view, source, i) == ids
                assert not view.old_log_probs[source].any()
                assert not view.behavior_mean_log_prob[source].any()
