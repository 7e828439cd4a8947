"""PRP: what token ratios on peers' answers start from, and what those answers are worth."""

import functools
import itertools

import jax
import numpy as np
import pytest
from made_step import INDICES, TEXTS, VALID, G, P, Step, run_of, standardised
from tiny import full_log_probs

THL = {"denominator": "thl_peer"}


@functools.cache
def step_of(denominator: str, granularity="word") -> Step:
    prp = {"denominator": denominator, "granularity": granularity}
    return Step(run_of(name="prp", prp=prp))


def member_params(step: Step, learner: int):
    g, member = step.run.place(step.run.agents[learner])
    return jax.tree.map(lambda x: x[member], step.params[g])


@pytest.mark.parametrize("learner", [0, 1, 2])
def test_a_snapshot_is_the_learner_s_own_forward_pass_over_the_encoded_answer(learner):
    """Tempered like the samples; zero after the end and for answers that do not count."""
    step = step_of("learner_snapshot")
    view, agent = step.view(learner), step.run.agents[learner]
    params, size = member_params(step, learner), agent.tokenizer.size
    prompts = step.run.train.prompts(learner, INDICES.tolist())
    for source in range(3):
        if source == learner:
            continue
        for i in range(P * G):
            p, g = divmod(i, G)
            found = view.old_log_probs[source, p, g]
            ids = step.encoded(learner, source, i) if VALID[source, p, g] else []
            assert not found[len(ids) :].any()
            if ids:
                expected = full_log_probs(
                    agent.model, params, prompts[p], ids, temperature=0.7, num_tokens=size
                )
                np.testing.assert_allclose(found[: len(ids)], expected, atol=2e-4)


@pytest.mark.parametrize("denominator", ["learner_snapshot", "thl_peer"])
@pytest.mark.parametrize("learner", [0, 1, 2])
def test_own_ratios_start_from_the_sampler_s_log_probs(learner, denominator):
    step = step_of(denominator)
    found = step.view(learner).old_log_probs[learner].reshape(P * G, -1)
    for row, values in zip(found, step.log_probs[learner], strict=True):
        assert row[: len(values)].tolist() == values.tolist()
        assert not row[len(values) :].any()


def shares(step: Step, learner: int, source: int, number: int, granularity: str) -> list[float]:
    """By hand: every text is one word, and its source has one token per character.

    At "word" the word's tokens share its log-probability evenly, at "token" each takes that of its
    own characters; the end token keeps its own.
    """
    text, ended = TEXTS[source][number]
    values = step.log_probs[source][number].astype(np.float64)
    tokenizer = step.run.agents[learner].tokenizer
    ids = step.encoded(learner, source, number)
    body, end = (ids[:-1], [values[-1]]) if ended else (ids, [])
    sizes = [len(tokenizer.decode_batch([[token]])[0]) for token in body]
    assert sum(sizes) == len(text)
    if granularity == "word":
        return [values[: len(text)].sum() / max(len(body), 1)] * len(body) + end
    cuts = np.cumsum([0, *sizes])
    return [values[a:b].sum() for a, b in itertools.pairwise(cuts)] + end


@pytest.mark.parametrize("granularity", ["word", "token"])
@pytest.mark.parametrize("learner", [0, 1, 2])
def test_a_peer_s_trace_is_shared_out_to_the_learner_s_tokens(learner, granularity):
    step = step_of("thl_peer", granularity)
    g, member = step.run.place(step.run.agents[learner])
    views, reports = step.views(g)
    tokens = segments = 0
    for source in range(3):
        if source == learner:
            continue
        for i, (text, ended) in enumerate(TEXTS[source]):
            found = views[member].old_log_probs[source].reshape(P * G, -1)[i]
            expected = shares(step, learner, source, i, granularity)
            np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-5)
            assert not found[len(expected) :].any()
            # The mass is the source's, whatever the tokens.
            assert found.sum() == pytest.approx(step.log_probs[source][i].sum(), rel=1e-5)
            tokens += len(expected)
            segments += len(expected) if granularity == "token" else bool(text) + ended
    assert reports[member]["peer/several_words"] == 0
    assert reports[member]["peer/tokens_per_segment"] == pytest.approx(tokens / segments)


def test_equal_tokenizers_keep_the_trace_token_by_token():
    step = step_of("thl_peer", "token")
    found = step.view(0).old_log_probs[2].reshape(P * G, -1)
    for row, values in zip(found, step.log_probs[2], strict=True):
        np.testing.assert_array_equal(row[: len(values)], values)


@pytest.mark.parametrize("denominator", ["learner_snapshot", "thl_peer"])
def test_pooled_advantages_are_those_of_the_joint_group(denominator):
    step = step_of(denominator)
    for learner in range(3):
        found = step.view(learner).advantages
        for p in range(P):
            expected = standardised(step.rewards[:, p], VALID[:, p])
            np.testing.assert_allclose(found[:, p], expected, rtol=1e-5)


def test_carried_advantages_are_those_among_the_source_s_own_answers():
    """Agent two does not scale its own, and its peers take them as they are."""
    carried = {"advantage": "carried", **THL}
    unscaled = {"grpo": {"scale": "none"}}
    step = Step(run_of(agents=("one", ("two", unscaled), "three"), name="prp", prp=carried))
    for learner in range(3):
        found = step.view(learner).advantages
        for source in range(3):
            for p in range(P):
                rewards, valid = step.rewards[source, p], VALID[source, p]
                expected = standardised(rewards, valid)
                if source == 1:
                    expected = np.where(valid, rewards - rewards[valid].mean(), 0)
                np.testing.assert_allclose(found[source, p], expected, rtol=1e-5, atol=1e-7)


def test_the_end_token_can_be_left_out_of_cross_ratios():
    """It then weighs nothing in the loss, and the other log-probs are what they were."""
    kept = step_of("thl_peer").view(1)
    left = Step(run_of(name="prp", prp=THL, eos_in_ratio=False)).view(1)
    for source in (0, 2):
        for i, (_, ended) in enumerate(TEXTS[source]):
            place = (source, *divmod(i, G))
            if VALID[place]:
                size = left.response_lengths[place]
                assert size == kept.response_lengths[place] - ended
                np.testing.assert_array_equal(
                    left.old_log_probs[place][:size], kept.old_log_probs[place][:size]
                )
