"""A step's metrics from those of its updates, by hand."""

import json
import types

import numpy as np
import pytest
from made_step import RATIO, Step, run_of

from hacpo_jax.config import Algorithm
from hacpo_jax.training.metrics import own_metrics, update_metrics


def found_by(updates: list[dict], name="hacpo", **algorithm):
    """Of agent a, the second of its group."""
    settings = Algorithm.model_validate({"name": name, **algorithm})
    agents = tuple(
        types.SimpleNamespace(name=n, index=i, algorithm=settings) for i, n in enumerate(("a", "b"))
    )
    run = types.SimpleNamespace(agents=agents)
    return update_metrics(updates, 1, agents[0], run)  # type: ignore[arg-type]


def update_of(own: float, cross: float, *, grad_norm=1.0, **other):
    """Metrics of one update with `own` sequences of agent 0 and `cross` of agent 1."""
    values = {
        "count/0": own,
        "count/1": cross,
        "count/own": own,
        "ratio/0": 1.0,
        "ratio/1": 0.0,
        "clip_fraction/0": 0.0,
        "clip_fraction/1": 0.0,
        "capped_fraction/0": 0.0,
        "capped_fraction/1": 0.0,
        "cross_gradient_fraction": 0.0,
        "entropy": 0.0,
        "grad_norm": grad_norm,
        "loss": 0.5,
        "sampler_gap": 0.25,
    } | other
    return {name: np.array([np.nan, value], np.float32) for name, value in values.items()}


def test_means_are_weighted_by_what_each_update_held():
    """Own answers in the first update, peers' in the second, both in the third."""
    updates = [
        update_of(6, 0, grad_norm=2, entropy=1, **{"clip_fraction/0": 0.5, "ratio/0": 1.2}),
        update_of(0, 3, sampler_gap=9, loss=2, **{"ratio/1": 0.7, "cross_gradient_fraction": 1}),
        update_of(2, 9, entropy=5, **{"ratio/1": 0.9, "cross_gradient_fraction": 0.5}),
    ]
    found = found_by(updates)
    assert found["ratio/own"] == pytest.approx((6 * 1.2 + 2 * 1) / 8)
    assert found["clip_fraction/own"] == pytest.approx(3 / 8)
    assert found["ratio/b"] == pytest.approx((3 * 0.7 + 9 * 0.9) / 12)
    assert found["cross_gradient_fraction"] == pytest.approx((3 + 9 * 0.5) / 12)
    assert found["entropy"] == pytest.approx((6 * 1 + 2 * 5) / 8)
    assert found["grad_norm"] == pytest.approx((2 + 1 + 1) / 3)
    assert found["loss"] == pytest.approx((0.5 + 2 + 0.5) / 3)
    assert (
        found["sampler_gap"] == 0.25
    )  # only before the first update are the weights the sampler's
    assert found["kl"] is None


def test_without_sharing_there_are_no_peers():
    found = found_by([update_of(4, 0)], "gspo")
    assert "ratio/own" in found
    assert not {"ratio/b", "clip_fraction/b", "cross_gradient_fraction"} & found.keys()


def test_rescued_answers_add_up_and_their_nll_is_a_mean_over_prompts():
    """Two prompts in the first update, none in the second, one in the third."""
    rows = [(2, 5, 3.0), (0, 0, 0.0), (1, 1, 6.0)]
    updates = [
        update_of(4, 0, **{"rescue/prompts": n, "rescue/sequences": m, "rescue/nll": nll})
        for n, m, nll in rows
    ]
    found = found_by(updates, "sgt")
    assert found["rescue/sequences"] == 6
    assert found["rescue/nll"] == pytest.approx((2 * 3 + 6) / 3)
    assert found_by([updates[1]], "gspo", rescue={"coef": 1})["rescue/nll"] is None
    assert not {"ratio/b", "cross_gradient_fraction"} & found.keys()


@pytest.mark.parametrize("name", ["gspo", "hacpo", "xgrpo"])
def test_without_a_rescue_nothing_is_said_of_it(name):
    found = found_by([update_of(4, 0)], name)
    assert not [key for key in found if key.startswith("rescue/")]


def test_gated_prompts_are_the_share_that_peers_alone_solve():
    """`made_step.VALID`: of two prompts agent 0 fails both, agent 1 one, agent 2 none."""
    rewards = np.zeros((3, 2, 3), np.float32)
    rewards[0, 1, 2] = 1  # not valid
    rewards[1, 0, :2] = rewards[2, 0, 1] = rewards[2, 1, 2] = 1
    step = Step(run_of(name="sgt"), rewards)
    history = np.full((2, 3), 0.5, np.float32)
    shares = [
        own_metrics(step.run, agent, step.drawn, history, RATIO)["gated_prompts"]
        for agent in step.run.agents
    ]
    assert shares == [1, 0.5, 0]


def test_what_was_not_there_or_not_finite_is_null():
    """One NaN gradient: the row must still be JSON for every reader."""
    bad = update_of(0, 4, grad_norm=np.nan, loss=np.inf, **{"ratio/1": np.nan})
    found = found_by([update_of(0, 0, **{"ratio/1": np.nan}), bad])
    assert found["grad_norm"] is found["loss"] is found["ratio/b"] is found["ratio/own"] is None
    json.dumps(found, allow_nan=False)
