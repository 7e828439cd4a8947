"""What a learner sees of all agents' answers, in its own tokens."""

import dataclasses

import numpy as np
import pytest
from tiny_runs import tiny_config

from hacpo_jax.exchange import Exchange
from hacpo_jax.rollout import Rollouts
from hacpo_jax.training.gather import Feedback, answer_texts, learner_views, make_records
from hacpo_jax.training.run import Run, prepare

P, G, C = 2, 3, 4
INDICES = np.array([5, 1])


def run_of(**algorithm) -> Run:
    return prepare(tiny_config("unused", algorithm={"name": "hacpo", **algorithm}))


def tokens_of(run: Run, agent: int, text: str, *, ended: bool) -> list[int]:
    """One token per byte or character, which is not how a text would be encoded."""
    tokenizer = run.agents[agent].tokenizer
    ids = [token for character in text for (token,) in tokenizer.encode_texts([character])]
    return [*ids, tokenizer.eos_id] if ended else ids


# Per agent, P * G answers: text and whether the agent ended it.
TEXTS = {
    0: [("12", True), ("8", True), ("1234", False), ("", True), ("7", True), ("99", True)],
    1: [("What", False), ("5", True), ("Wh", True), ("12", True), ("", True), ("3?", True)],
    2: [("0", True), ("1", True), ("2", True), ("3", True), ("4444", False), ("5", True)],
}
VALID = np.ones((3, P, G), bool)
VALID[1, 0, 1] = VALID[0, 1, 2] = False


@dataclasses.dataclass
class Step:
    """A step's answers with distinct made-up log-probs, rewards and advantages."""

    run: Run

    def __post_init__(self):
        run, rng = self.run, np.random.default_rng(0)
        self.ids = {
            a: [tokens_of(run, a, text, ended=ended) for text, ended in rows]
            for a, rows in TEXTS.items()
        }
        self.log_probs = {
            a: [-rng.random(len(row)).astype(np.float32) for row in rows]
            for a, rows in self.ids.items()
        }
        self.rewards = rng.integers(0, 2, (3, P, G)).astype(np.float32)
        self.advantages = rng.normal(size=(3, 3, P, G)).astype(np.float32)
        self.feedback = Feedback(self.rewards, VALID, self.advantages)
        self.rollouts = [self._rollouts(group.indices) for group in run.groups]
        self.exchange = Exchange([agent.name for agent in run.agents])
        self.records = {}
        for group, rollouts in zip(run.groups, self.rollouts, strict=True):
            for member, agent in enumerate(group.agents):
                texts = answer_texts(group, rollouts, member)
                self.records[agent.index] = make_records(
                    run, group, member, rollouts, texts, self.feedback, INDICES, 7
                )
                self.exchange.publish(agent.name, self.records[agent.index])

    def _rollouts(self, agents) -> Rollouts:
        tokens = np.zeros((len(agents), P * G, C), np.int32)
        log_probs = np.zeros(tokens.shape, np.float32)
        lengths = np.zeros(tokens.shape[:2], np.int32)
        for member, agent in enumerate(agents):
            for i, (ids, values) in enumerate(
                zip(self.ids[agent], self.log_probs[agent], strict=True)
            ):
                tokens[member, i, : len(ids)] = ids
                log_probs[member, i, : len(ids)] = values
                lengths[member, i] = len(ids)
        stopped = np.array([[ended for _, ended in TEXTS[agent]] for agent in agents])
        shape = (len(agents), P, G)
        return Rollouts(
            tokens=tokens.reshape(*shape, C),
            log_probs=log_probs.reshape(*shape, C),
            lengths=lengths.reshape(shape),
            stopped=stopped.reshape(shape),
        )

    def views(self, group: int):
        return learner_views(
            self.run,
            self.run.groups[group],
            self.rollouts[group],
            None,
            self.exchange,
            self.feedback,
            INDICES,
        )


def answer(view, agent: int, number: int) -> list[int]:
    """Ids of one answer as a learner trains on it."""
    place = (agent, *divmod(number, G))
    return view.responses[place][: view.response_lengths[place]].tolist()


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
            assert record.success == (record.reward == 1)
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


def test_prompts_advantages_and_behaviour_belong_to_learner_and_source():
    step = Step(run_of())
    for group in (0, 1):
        views, _ = step.views(group)
        assert [view.learner for view in views] == step.run.groups[group].indices
        for view in views:
            prompts = step.run.train.prompts(view.learner, INDICES.tolist())
            for row, length, ids in zip(view.prompts, view.prompt_lengths, prompts, strict=True):
                assert row[len(row) - length :].tolist() == list(ids)
            np.testing.assert_array_equal(view.advantages, step.advantages[view.learner])
            for source in range(3):
                means = [values.mean() for values in step.log_probs[source]]
                np.testing.assert_allclose(
                    view.behavior_mean_log_prob[source].reshape(-1), means, rtol=1e-5
                )
            own = view.old_log_probs.reshape(P * G, -1)
            for row, values in zip(own, step.log_probs[view.learner], strict=True):
                assert row[: len(values)].tolist() == values.tolist()
                assert not row[len(values) :].any()
            assert view.old_log_probs.shape == view.reference_log_probs.shape
            assert view.old_log_probs.shape[-1] == view.responses.shape[-1]
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


def test_too_long_answers_of_peers_are_left_out_and_counted():
    step = Step(run_of(max_peer_tokens=3))
    views, report = step.views(0)
    # "What" in four characters; own answers and those of the group may be as long.
    assert answer(views[0], 1, 0) == []
    assert answer(views[0], 0, 2) == step.ids[0][2]
    assert answer(views[1], 0, 2) == step.ids[0][2]
    assert report["peer/dropped"] == pytest.approx(1 / 6)
    characters = [len(text) + ended for text, ended in TEXTS[1]]
    assert report["peer/length_ratio"] == sum(characters) / sum(map(len, step.ids[1]))
    (view,), report = step.views(1)
    digits = [len(text) + ended for source in (0, 2) for text, ended in TEXTS[source]]
    assert report["peer/dropped"] == pytest.approx(sum(n > 3 for n in digits) / 12)
    assert answer(view, 0, 2) == answer(view, 2, 4) == []


def test_without_sharing_no_answer_of_another_group_is_taken():
    step = Step(run_of(name="gspo"))
    (view,), report = step.views(1)
    assert not view.response_lengths[[0, 2]].any()
    assert answer(view, 1, 0) == step.ids[1][0]
    assert report == {"peer/dropped": 0, "peer/length_ratio": 0}
