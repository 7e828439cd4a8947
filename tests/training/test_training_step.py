"""Whole steps of tiny agents."""

import functools
import json

import jax
import numpy as np
import pytest
from moody_verifier import mood
from tiny_runs import tiny_config
from whole_steps import copied, start_of

from hacpo_jax.rollout import answer, answer_keys
from hacpo_jax.tasks.problems import step_indices
from hacpo_jax.training.run import prepare
from hacpo_jax.training.step import Frozen, train_step

pytestmark = pytest.mark.usefixtures("compile_quickly")

METRICS = {
    "step",
    "agent",
    "reward/mean",
    "reward/std",
    "capability",
    "ratio/own",
    "clip_fraction/own",
    "kl",
    "entropy",
    "grad_norm",
    "loss",
    "response_length/mean",
    "truncated",
    "time/rollout",
    "time/verify",
    "time/update",
    "tokens_per_second",
}


# Alike in all runs here, so that each decode is compiled once.
DRAWS = {
    "sampling": {"max_new_tokens": 4, "temperature": 0.6},
    "training": {"group_size": 4, "micro_batch_tokens": 100},
}


@functools.cache
def hacpo_steps():
    """Two steps of three agents in two groups under a verifier with moods."""
    config = tiny_config(
        "unused",
        task={"verifier": {"name": "moody_verifier:grade", "timeout": 1.5}},
        algorithm={"name": "hacpo", "kl_coef": 0.01, "entropy_coef": 0.001},
        **DRAWS,
    )
    run = prepare(config)
    state = start_of(run)
    frozen = [
        Frozen(reference=jax.tree.map(np.array, learner.params)) for learner in state.learners
    ]
    params, results = [copied(state.learners)], []
    try:
        for _ in range(2):
            state, result = train_step(run, state, frozen)
            params.append(copied(state.learners))
            results.append(result)
    finally:
        run.verifier.close()
    return run, state, params, results


def metrics_of(results, name):
    """That agent's metrics of each step."""
    return [next(row for row in r.metrics if row["agent"] == name) for r in results]


def test_every_metric_is_there_and_can_be_written():
    run, _, _, results = hacpo_steps()
    for step, result in enumerate(results, start=1):
        assert [row["agent"] for row in result.metrics] == ["one", "two", "three"]
        for row in result.metrics:
            peers = {agent.name for agent in run.agents} - {row["agent"]}
            per_peer = {f"{m}/{p}" for m in ("omega", "ratio", "clip_fraction") for p in peers}
            assert METRICS | per_peer <= row.keys()
            assert row["step"] == step
            assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_updates_are_counted_and_move_every_agent():
    """Own-first HACPO: 3 agents x 2 prompts in mini-batches of 2 groups are 3 updates a step."""
    run, state, params, _ = hacpo_steps()
    assert [run.updates_per_step(group) for group in run.groups] == [3, 3]
    assert (state.step, state.blocks) == (2, 2)
    for learner in state.learners:
        assert set(learner.updates.tolist()) == {6}
        assert set(learner.skipped.tolist()) == {0}
    for group, before in enumerate(params[0]):
        for member in range(before["embedding"].shape[0]):
            after = params[1][group]["embedding"][member]
            assert not np.array_equal(after, before["embedding"][member])


def test_answers_on_which_the_verifier_hangs_or_raises_are_invalid_and_the_step_goes_on():
    """Never a silent 0 for the rest: rewards are the verifier's own, invalid ones are counted."""
    run, _, _, results = hacpo_steps()
    seen = set()
    for result in results:
        for agent, row in zip(run.agents, result.metrics, strict=True):
            records = [r for r in result.records if r.source == agent.name]
            assert len(records) == 8
            moods = [mood(record.response) for record in records]
            assert [r.valid for r in records] == [m in ("right", "wrong") for m in moods]
            assert [r.reward for r in records] == [float(m == "right") for m in moods]
            rewards = [r.reward for r in records if r.valid]
            assert row["invalid"] == 8 - len(rewards)
            assert row["reward/mean"] == pytest.approx(np.mean(rewards))
            assert row["reward/std"] == pytest.approx(np.std(rewards))
            seen |= set(moods)
    assert seen == {"hangs", "raises", "right", "wrong"}


def test_capabilities_are_means_over_the_window_and_omega_their_ratio():
    run, state, _, results = hacpo_steps()
    means = np.array([[row["reward/mean"] for row in result.metrics] for result in results])
    np.testing.assert_allclose(state.history[-2:], means, rtol=1e-6)
    assert np.isnan(state.history[:-2]).all()
    for step, result in enumerate(results):
        windowed = means[: step + 1].mean(axis=0)
        for agent, row in zip(run.agents, result.metrics, strict=True):
            assert row["capability"] == pytest.approx(windowed[agent.index])
            for peer in run.agents:
                if peer.index != agent.index:
                    omega = windowed[agent.index] / windowed[peer.index]
                    assert row[f"omega/{peer.name}"] == pytest.approx(np.clip(omega, 0.1, 10))


def test_the_first_update_meets_the_sampler_s_own_probabilities():
    """Temperature 0.6, first update: new and old log-probs both tempered, ratio near 1."""
    _, _, _, results = hacpo_steps()
    for row in (row for result in results for row in result.metrics):
        assert 0 < row["sampler_gap"] < 1e-4
        assert row["ratio/own"] == pytest.approx(1, abs=1e-5)
        assert row["clip_fraction/own"] == 0
        assert row["entropy"] == pytest.approx(row["entropy/sampled"], abs=1)


def test_kl_is_zero_at_the_frozen_start_and_grows_from_there():
    """Reference log-probs are tempered like the others."""
    _, _, _, results = hacpo_steps()
    for first, second in (metrics_of(results, name) for name in ("one", "two", "three")):
        # Own answers are all in the first of three updates, before any parameter has moved.
        assert 0 <= first["kl"] < 1e-8
        assert second["kl"] > 1e-5


def drawn(run, group, weights, step: int) -> list[list[tuple[int, ...]]]:
    """Ids of every answer of every agent of a group, by a decode of its own."""
    indices = step_indices(run.config.seed, len(run.train), 2, step)
    keys = answer_keys(run.config.seed, group.indices, step, indices, 4)
    prompts = run.train.prompts(group.indices[0], indices.tolist())
    found = answer(weights, prompts, keys, run.sampling_spec(group), max_rows=64)
    tokens, lengths = found.tokens.reshape(len(keys), 8, -1), found.lengths.reshape(len(keys), 8)
    return [
        [tuple(row[:n].tolist()) for row, n in zip(*of_agent, strict=True)]
        for of_agent in zip(tokens, lengths, strict=True)
    ]


@pytest.mark.parametrize("step", [0, 1])
def test_answers_are_drawn_from_the_current_weights(step):
    """Three updates at a high learning rate: the next answers come from the new parameters."""
    run, _, params, results = hacpo_steps()
    for g, group in enumerate(run.groups):
        recorded = [
            [r.tokens for r in results[step].records if r.source == agent.name]
            for agent in group.agents
        ]
        assert recorded == drawn(run, group, params[step][g], step)
        assert recorded != drawn(run, group, params[1 - step][g], step)


def test_lengths_and_cut_off_shares_are_those_of_the_records():
    run, _, _, results = hacpo_steps()
    for result in results:
        for agent, row in zip(run.agents, result.metrics, strict=True):
            records = [r for r in result.records if r.source == agent.name]
            assert row["response_length/mean"] == np.mean([len(r.tokens) for r in records])
            assert row["truncated"] == np.mean([r.finish_reason == "length" for r in records])
            for record in records:
                stops = [t in agent.tokenizer.stop_ids for t in record.tokens]
                assert not any(stops[:-1])
                assert stops[-1] == (record.finish_reason == "stop")
                assert record.finish_reason == "stop" or len(record.tokens) == 4


@pytest.mark.parametrize(("name", "updates"), [("naive", 2), ("gspo", 1), ("grpo", 1)])
def test_a_step_of_every_baseline(name, updates):
    """Two agents of one tokenizer and shape: one group, one program."""
    agents = ("one", "three")
    run = prepare(tiny_config("unused", agents=agents, algorithm={"name": name}, **DRAWS))
    assert len(run.groups) == 1
    state, result = train_step(run, start_of(run), [Frozen()])
    assert state.learners[0].updates.tolist() == [updates, updates]
    assert [row["agent"] for row in result.metrics] == ["one", "three"]
    for row in result.metrics:
        assert row.keys() >= METRICS
        assert row["kl"] is None
        assert row["ratio/own"] == pytest.approx(1, abs=1e-5)
        # No tiny model with random weights can add: the rewards of every group are equal.
        assert row["reward/equal_groups"] == 1
        assert row["loss"] == row["grad_norm"] == 0
        (peer,) = set(agents) - {row["agent"]}
        assert (f"ratio/{peer}" in row) == (name == "naive")
        assert json.dumps(row, allow_nan=False)
