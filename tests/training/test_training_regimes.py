"""Whole steps of every way to share, alone and side by side in one run."""

import json
import math

import jax
import numpy as np
import pytest
from made_step import standardised
from whole_steps import copied, lucky_run, start_of, steps_of

pytestmark = pytest.mark.usefixtures("compile_quickly")

RESCUE = {"rescue": {"coef": 0.3}}
PAIRS = [  # hacpo, naive, gspo and grpo alone: test_training_quickstart
    {"name": "hacpo", **RESCUE},
    {"name": "gspo", **RESCUE},
    {"name": "xgrpo", **RESCUE},
    *[
        {"name": "prp", "prp": {"denominator": denominator, "advantage": advantage}}
        for denominator, advantage in (
            ("learner_snapshot", "carried"),
            ("thl_peer", "pooled"),
            ("thl_peer", "carried"),
        )
    ],
]
THREE = [{"name": "xgrpo"}, {"name": "sgt"}, {"name": "prp"}]


@pytest.mark.parametrize(
    ("algorithm", "agents"),
    [(a, ("one", "two")) for a in PAIRS] + [(a, ("one", "two", "three")) for a in THREE],
    ids=lambda value: value if isinstance(value, tuple) else json.dumps(value),
)
def test_two_steps_of_every_algorithm(algorithm, agents):
    """Agents of two tokenizers: finite numbers, moved weights, metrics for any JSON reader."""
    run = lucky_run(agents, **algorithm)
    assert len(run.groups) == 2
    start = start_of(run)
    before = copied(start.learners)
    state, results = steps_of(run, 2, start)
    shares = algorithm["name"] in ("hacpo", "naive", "prp")
    updates = 2 * (len(agents) if shares else 1)
    for learner, old in zip(state.learners, before, strict=True):
        assert set(learner.updates.tolist()) == {updates}
        assert set(learner.skipped.tolist()) == {0}
        for member in range(len(learner.updates)):
            new = np.asarray(learner.params["embedding"][member])
            assert np.isfinite(new).all()
            assert not np.array_equal(new, old["embedding"][member])
    assert all(row["grad_norm"] > 0 for row in results[0].metrics)
    for row in (row for result in results for row in result.metrics):
        assert json.loads(json.dumps(row, allow_nan=False)) == row
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(map(math.isfinite, numbers))
        assert row["loss"] is not None and row["invalid"] == 0
        peers = [name for name in agents if name != row["agent"]]
        assert all((f"ratio/{peer}" in row) == shares for peer in peers)
        assert ("rescue/nll" in row) == (algorithm["name"] == "sgt" or "rescue" in algorithm)
        assert ("peer/several_words" in row) == ("thl_peer" in json.dumps(algorithm))
        assert row["ratio/own"] == pytest.approx(1, abs=1e-4)


MIXED = (
    ("one", {"name": "hacpo"}),
    ("two", {"name": "sgt"}),
    ("three", {"name": "gspo", "rescue": {"coef": 0.2, "pick": "all"}}),
)


def test_agents_may_learn_in_different_ways_from_the_same_answers():
    """One and three are alike but for the algorithm, so that they are no group."""
    run = lucky_run(MIXED)
    assert [group.indices for group in run.groups] == [[0], [1], [2]]
    # Own and two peers' answers to two problems in mini-batches of two groups; or own ones.
    assert [run.updates_per_step(group) for group in run.groups] == [3, 1, 1]
    assert [run.total_updates(group) for group in run.groups] == [6, 2, 2]
    state, results = steps_of(run, 2)
    assert [learner.updates.tolist() for learner in state.learners] == [[6], [2], [2]]
    for result in results:
        one, two, three = result.metrics
        assert {"ratio/two", "ratio/three", "cross_gradient_fraction"} <= one.keys()
        assert not {"rescue/nll", "ratio/one"} & one.keys()
        for row in (two, three):
            assert {"rescue/nll", "rescue/sequences", "gated_prompts"} <= row.keys()
            assert not {"ratio/one", "cross_gradient_fraction"} & row.keys()


def solved(records, name: str) -> np.ndarray:
    """`[P, G]`, which of an agent's answers are right."""
    return np.reshape([r.reward == 1 for r in records if r.source == name], (2, 3))


def test_gated_prompts_and_what_is_shown_of_them_are_counted():
    run = lucky_run(MIXED)
    _, results = steps_of(run, 4)
    seen = 0
    for result in results:
        right = {name: solved(result.records, name) for name in ("one", "two", "three")}
        for row in result.metrics:
            own = right[row["agent"]].any(axis=1)
            peers = sum(right[name].sum(axis=1) for name in right if name != row["agent"])
            gate = ~own & (peers > 0)
            assert row["gated_prompts"] == gate.mean()
            if row["agent"] == "two":  # one answer for each gated prompt
                assert row["rescue/sequences"] <= gate.sum()
            if row["agent"] == "three":  # all of them
                assert row["rescue/sequences"] <= peers[gate].sum()
            if row["agent"] != "one":
                # Some may be too long in the learner's tokens, which the row tells too.
                if row["peer/dropped"] == 0:
                    shown = gate.sum() if row["agent"] == "two" else peers[gate].sum()
                    assert row["rescue/sequences"] == shown
                    seen += shown
                assert (row["rescue/nll"] is None) == (row["rescue/sequences"] == 0)
                assert row["rescue/nll"] is None or row["rescue/nll"] > 0
    assert seen > 0


def test_what_a_gspo_agent_learns_does_not_depend_on_how_its_peers_learn():
    """Bit for bit, though peers share, are rescued, or need traces and snapshots of others."""
    found = []
    for peer in ({"name": "grpo"}, {"name": "hacpo"}, {"name": "prp"}, {"name": "sgt"}):
        state, results = steps_of(lucky_run((("one", {"name": "gspo"}), ("two", peer))), 1)
        found.append((copied(state.learners)[0], results[0].metrics[0]))
    first, row = found[0]
    assert row["grad_norm"] > 0
    for params, other in found[1:]:
        for mine, its in zip(jax.tree.leaves(params), jax.tree.leaves(first), strict=True):
            np.testing.assert_array_equal(mine, its)
        for name in ("loss", "grad_norm", "reward/mean", "entropy"):
            assert other[name] == row[name]


def test_an_xgrpo_learner_follows_rewards_of_everybody():
    """A prompt that its own answers all fail, or all solve, has a gradient if others differ."""
    run = lucky_run(("one", "two"), name="xgrpo")
    _, results = steps_of(run, 4)
    differing = 0
    for result in results:
        rewards = np.array([solved(result.records, name) for name in ("one", "two")], float)
        for k, row in enumerate(result.metrics):
            advantages = np.array([standardised(rewards[:, p])[k] for p in range(2)])
            assert (row["grad_norm"] > 0) == advantages.any()
            alone = np.array([standardised(rewards[k, p]) for p in range(2)])
            differing += bool(advantages.any() and not alone.any())
    assert differing > 0
