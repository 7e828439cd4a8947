"""What a learner sees of all agents' answers, in its own tokens."""

import numpy as np
import pytest
from made_step import INDICES, RATIO, TEXTS, VALID, G, P, Step, answer, run_of


def test_groups_of_the_run():
    run = run_of()
    assert [group.indices for group in run.groups] == [[0, 2], [1]]
    assert [agent.name for agent in run.agents] == ["one", "two", "three"]


def test_records_say_what_happened():
    step = Step(run_of())
    for agent, rows in TEXTS.items():
        for i, (record, (text, ended)) in enumerate(zip(step.records[agent], rows, strict=True)):
            p, g = divmod(i, G)
            values = step.log_probs[agent][i].astype(np.float64)
            body = values[:-1] if ended else values
            assert record.response == text
            assert record.tokens == tuple(step.ids[agent][i])
            assert record.finish_reason == ("stop" if ended else "length")
            assert (record.step, record.index, record.source) == (7, g, step.run.agents[agent].name)
            assert record.prompt_id == step.run.train.examples[INDICES[p]].id
            assert record.prompt == step.run.train.texts[INDICES[p]]
            assert record.reward == step.rewards[agent, p, g]
            assert record.success == (record.reward == 1 and record.valid)
            assert record.valid == VALID[agent, p, g]
            assert record.behavior_mean_log_prob == pytest.approx(values.mean(), rel=1e-5)
            without = body.mean() if len(body) else 0.0
            assert record.behavior_mean_log_prob_without_eos == pytest.approx(
                without, rel=1e-5, abs=1e-7
            )


def test_own_samples_keep_their_ids_and_peers_are_encoded_anew():
    """Ids whose text encodes to other ids; an end token exactly where the source ended."""
    step = Step(run_of())
    run = step.run
    (view,), _ = step.views(1)
    learner = run.agents[1].tokenizer
    (merged,) = learner.encode_texts(["What"])
    assert len(merged) < 4  # the tokenizer would not have written "What" letter by letter
    assert answer(view, 1, 0) == step.ids[1][0]
    for source in (0, 2):
        for i, (text, ended) in enumerate(TEXTS[source]):
            if VALID[source].flat[i]:
                expected = [*learner.encode_texts([text])[0], *[learner.eos_id] * ended]
                assert answer(view, source, i) == expected
    views, _ = step.views(0)
    characters = run.agents[0].tokenizer
    for learner_view in views:
        for i, (text, ended) in enumerate(TEXTS[1]):
            if VALID[1].flat[i]:
                expected = [*characters.encode_texts([text])[0], *[characters.eos_id] * ended]
                assert answer(learner_view, 1, i) == expected
        # Agents that share a tokenizer take each other's ids as they are.
        for source in (0, 2):
            for i, ids in enumerate(step.ids[source]):
                if VALID[source].flat[i]:
                    assert answer(learner_view, source, i) == ids


def hacpo_advantages(rewards, k: int) -> np.ndarray:
    """Equations 6, 7 and 10 of HACPO in loops over valid answers."""
    found = np.zeros((3, P, G))
    for p in range(P):
        pairs = [(j, r) for j in range(3) for r in rewards[j, p][VALID[j, p]].astype(float)]
        if len({r for _, r in pairs}) < 2:
            continue
        mean = sum(RATIO[k, j] * r for j, r in pairs) / len(pairs)
        if mean > 1:
            mean = rewards[k, p][VALID[k, p]].mean()
        deviation = np.std([r for _, r in pairs], ddof=1)
        for j in range(3):
            found[j, p] = (rewards[j, p] - mean) / (deviation + 1e-6) * RATIO[j, k]
    return np.where(VALID, found, 0)


def test_prompts_advantages_and_behaviour_belong_to_learner_and_source():
    step = Step(run_of())
    for group in (0, 1):
        views, _ = step.views(group)
        assert [view.learner for view in views] == step.run.groups[group].indices
        for view in views:
            prompts = step.run.train.prompts(view.learner, INDICES.tolist())
            for row, length, ids in zip(view.prompts, view.prompt_lengths, prompts, strict=True):
                assert row[len(row) - length :].tolist() == list(ids)
            expected = hacpo_advantages(step.rewards, view.learner)
            np.testing.assert_allclose(view.advantages, expected, rtol=1e-4, atol=1e-5)
            for source in range(3):
                means = [values.mean() for values in step.log_probs[source]]
                np.testing.assert_allclose(
                    view.behavior_mean_log_prob[source].reshape(-1), means, rtol=1e-5
                )
            own = view.old_log_probs[view.learner].reshape(P * G, -1)
            for row, values in zip(own, step.log_probs[view.learner], strict=True):
                assert row[: len(values)].tolist() == values.tolist()
                assert not row[len(values) :].any()
            # Sequence ratios need no token of a peer's behaviour.
            assert not np.delete(view.old_log_probs, view.learner, axis=0).any()
            assert view.old_log_probs.shape == view.responses.shape
            assert view.reference_log_probs.shape == view.responses.shape[1:]
            assert not view.reference_log_probs.any()


def test_invalid_answers_have_no_tokens_for_anybody():
    """One of several answers rejected: it leaves every learner's mini-batch."""
    step = Step(run_of())
    for group in (0, 1):
        for view in step.views(group)[0]:
            assert ((view.response_lengths == 0) == ~VALID).all()


def test_the_end_token_can_be_left_out_of_cross_ratios_on_both_sides():
    """The second released version; own answers keep theirs."""
    step = Step(run_of(eos_in_ratio=False))
    (view,), _ = step.views(1)
    learner = step.run.agents[1].tokenizer
    for source in (0, 2):
        for i, (text, _) in enumerate(TEXTS[source]):
            if VALID[source].flat[i]:
                assert answer(view, source, i) == learner.encode_texts([text])[0]
                values = step.log_probs[source][i].astype(np.float64)
                body = values[:-1] if TEXTS[source][i][1] else values
                found = view.behavior_mean_log_prob[source].flat[i]
                assert found == pytest.approx(body.mean() if len(body) else 0, rel=1e-5, abs=1e-6)
    assert answer(view, 1, 2) == step.ids[1][2]
    assert view.behavior_mean_log_prob[1, 0, 2] == pytest.approx(step.log_probs[1][2].mean())


@pytest.mark.parametrize("learner", [0, 1, 2])
def test_too_long_answers_of_peers_are_left_out_and_counted(learner):
    """Own answers may be as long as they are."""
    step = Step(run_of(max_peer_tokens=3))
    g, member = step.run.place(step.run.agents[learner])
    views, reports = step.views(g)
    peers = [source for source in range(3) if source != learner]
    ours = {j: [step.encoded(learner, j, i) for i in range(P * G)] for j in peers}
    for j in peers:
        for i, ids in enumerate(ours[j]):
            kept = ids if len(ids) <= 3 and VALID[j].flat[i] else []
            assert answer(views[member], j, i) == kept
    for i, ids in enumerate(step.ids[learner]):
        assert answer(views[member], learner, i) == (ids if VALID[learner].flat[i] else [])
    lengths = [len(ids) for j in peers for ids in ours[j]]
    assert 0 < sum(n > 3 for n in lengths) < 12
    found = reports[member]
    assert found["peer/dropped"] == pytest.approx(sum(n > 3 for n in lengths) / 12)
    theirs = sum(len(ids) for j in peers for ids in step.ids[j])
    assert found["peer/length_ratio"] == pytest.approx(sum(lengths) / theirs)
    assert len(found) == 2


def test_without_sharing_no_answer_of_another_group_is_taken():
    step = Step(run_of(name="gspo"))
    (view,), (report,) = step.views(1)
    assert not view.response_lengths[[0, 2]].any()
    assert answer(view, 1, 0) == step.ids[1][0]
    assert report == {"peer/dropped": 0, "peer/length_ratio": None}
