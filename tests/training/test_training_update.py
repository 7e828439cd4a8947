"""One optimizer update against the same update worked out from whole logits in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import llama_params, random_params, stacked
from training_cases import POLICY
from update_cases import (
    COEF,
    LEARNER,
    OPTIMIZER,
    assert_as_expected,
    assert_same,
    batch_of,
    expected,
    rescue_nll,
    updated,
)

from hacpo_jax.training.update import MiniBatch, init_state

pytestmark = pytest.mark.usefixtures("compile_quickly")


def test_an_hacpo_update_by_hand():
    """Own and cross terms, KL to a perturbed reference, entropy bonus, clipping, AdamW.

    Filler rows weigh nothing.
    """
    state, metrics = updated()
    assert_as_expected("hacpo", state, metrics)
    found = {name: metrics[name][0] for name in metrics}
    assert found["count/0"] == 2
    assert found["count/1"] == found["count/own"] == 3
    assert found["count/2"] == 1
    assert found["ratio/0"] == pytest.approx((0.93 + 1.4) / 2, rel=1e-4)
    assert found["ratio/2"] == pytest.approx(0.3, rel=1e-4)
    # Above the bound with A > 0 and below it with A < 0; the advantage of the third is 0.
    assert found["clip_fraction/1"] == pytest.approx(2 / 3)
    assert found["clip_fraction/0"] == pytest.approx(1 / 2)
    assert found["clip_fraction/2"] == 1
    assert found["cross_gradient_fraction"] == pytest.approx(1 / 3)


def test_padding_and_micro_batches_change_nothing():
    """Lengths 1 to 4, micro-batch 1 against 8: same loss and gradient; also under more padding.

    What stands outside of answers is never read, even where it is NaN.
    """
    state, metrics = updated(batch=batch_of(longest=6, garbage=np.nan), rows=1)
    assert_as_expected("hacpo", state, metrics)


@pytest.mark.parametrize("name", ["grpo", "naive"])
def test_other_updates_by_hand_in_three_micro_batches(name):
    """The mean over tokens, or over all sequences, is that of the whole mini-batch."""
    state, metrics = updated(name, rows=3)
    assert_as_expected(name, state, metrics)
    if name == "naive":  # only one row is above 1.3 with A > 0
        assert metrics["clip_fraction/0"][0] == pytest.approx(1 / 2)
        assert metrics["clip_fraction/2"][0] == 0
        assert metrics["cross_gradient_fraction"][0] == pytest.approx(2 / 3)


def two_agents(batch: MiniBatch) -> MiniBatch:
    return jax.tree.map(lambda x: jnp.concatenate([x, x]), batch)


def test_two_agents_of_a_group_are_two_agents_alone():
    other = random_params(POLICY.model, 5)
    learners = (LEARNER, 0)
    together, metrics = updated(
        batch=two_agents(batch_of()),
        params=stacked(llama_params(), other),
        learners=learners,
    )
    for member, params in enumerate((llama_params(), other)):
        alone, alone_metrics = updated(params=stacked(params), learners=(learners[member],))
        one = jax.tree.map(lambda x, m=member: x[m : m + 1], together)
        assert_same(one.params, alone.params, atol=1e-5)
        for name, value in alone_metrics.items():
            assert metrics[name][member] == pytest.approx(value[0], rel=1e-3, abs=1e-5), name


def test_a_gradient_that_is_not_finite_skips_the_update_of_that_agent_alone():
    """One NaN gradient: step skipped and counted, state kept bit for bit."""
    good = batch_of()
    bad = dataclasses.replace(good, advantages=good.advantages.at[0, 0, 1].set(jnp.nan))
    batch = jax.tree.map(lambda *x: jnp.concatenate(x), bad, good)
    params = stacked(llama_params(), llama_params())
    before = jax.device_get(init_state(params, OPTIMIZER, 10))
    state, metrics = updated(batch=batch, params=params, learners=(LEARNER, LEARNER))
    assert np.isnan(metrics["grad_norm"][0])
    assert state.skipped.tolist() == [1, 0]
    assert state.updates.tolist() == [0, 1]
    pairs = zip(
        jax.tree.leaves((state.params, state.opt_state)),
        jax.tree.leaves((before.params, before.opt_state)),
        strict=True,
    )
    for new, old in pairs:
        np.testing.assert_array_equal(new[0], old[0])
        assert not np.array_equal(new[1], old[1])
    assert_same(jax.tree.map(lambda x: x[1], state.params), expected("hacpo")[2], atol=2e-5)


def test_a_mini_batch_without_a_single_token_changes_only_by_weight_decay():
    """Every answer invalid: loss 0, zero gradient finite under clipping."""
    batch = batch_of(garbage=np.nan)
    empty = dataclasses.replace(
        batch.answers, response_lengths=jnp.zeros_like(batch.answers.response_lengths)
    )
    state, metrics = updated(batch=dataclasses.replace(batch, answers=empty))
    assert metrics["loss"][0] == 0
    assert metrics["grad_norm"][0] == 0
    assert all(np.isfinite(value).all() for value in metrics.values())
    assert state.updates.tolist() == [1]
    shrunk = 1 - OPTIMIZER.learning_rate * OPTIMIZER.weight_decay

    def decayed(path, param):
        return param if path[-1].key.endswith("norm") else param * shrunk

    params = jax.tree_util.tree_map_with_path(decayed, llama_params())
    assert_same(jax.tree.map(lambda x: x[0], state.params), params, rtol=1e-6)


@pytest.mark.parametrize("name", ["sgt", "hacpo"])
@pytest.mark.parametrize(("rows", "longest"), [(12, 4), (3, 6)])
def test_an_update_with_rescued_prompts_by_hand(name, rows, longest):
    """Policy loss plus coef times the mean over gated prompts, however it is cut and padded.

    Of the rows to be transferred neither advantage nor behaviour is read: they hold NaN.
    """
    batch = batch_of(longest, garbage=np.nan, count=12)
    state, metrics = updated(name, batch, rows=rows, coef=COEF)
    assert_as_expected(name, state, metrics, COEF)
    assert metrics["rescue/nll"][0] == pytest.approx(rescue_nll(), rel=1e-4)
    assert metrics["rescue/prompts"][0] == 2
    assert metrics["rescue/sequences"][0] == 3
    assert metrics["count/own"][0] == 3


def test_a_rescue_without_gated_prompts_adds_nothing():
    state, metrics = updated("sgt", rows=4, coef=COEF)
    assert_as_expected("sgt", state, metrics)
    assert metrics["rescue/nll"][0] == metrics["rescue/prompts"][0] == 0
    assert metrics["rescue/sequences"][0] == 0


def test_a_mini_batch_of_rescues_alone_learns_from_them():
    """Every answer of its own is invalid: the policy loss has no rows, and no NaN."""
    batch = batch_of(count=12, garbage=np.nan)
    lengths = jnp.where(batch.transfer_weight > 0, batch.answers.response_lengths, 0)
    answers = dataclasses.replace(batch.answers, response_lengths=lengths)
    _, metrics = updated("sgt", dataclasses.replace(batch, answers=answers), rows=12, coef=COEF)
    assert metrics["loss"][0] == pytest.approx(COEF * rescue_nll(), rel=1e-4)
    assert metrics["grad_norm"][0] > 0.1
