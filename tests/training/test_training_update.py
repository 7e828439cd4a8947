"""One optimizer update against the same update worked out from whole logits in numpy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import llama_params, random_params, stacked
from training_cases import POLICY, answers_of, plain_log_probs, plain_rows

from hacpo_jax.config import Algorithm, OptimizerConfig
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.update import LearnerState, MiniBatch, UpdateSpec, init_state, update

# A large eps keeps Adam's first step from being a mere sign, which would hide the gradient's size.
OPTIMIZER = OptimizerConfig(
    learning_rate=0.01, eps=0.05, beta1=0.8, beta2=0.9, weight_decay=0.1, max_grad_norm=0.5
)
KL, ENTROPY, LEARNER, INDEX = 0.3, 0.02, 1, 2
PROMPTS = [[5, 9, 3], [5, 9, 3], [11], [11], [7, 2, 2, 8], [7, 2, 2, 8], [0], [0]]
RESPONSES = [[1, 2, 3, 4], [9], [4, 4, 0], [30, 2], [6, 5], [8, 8, 8, 2], [], []]
SOURCES = np.array([1, 0, 1, 1, 2, 0, 0, 1])  # the last two are filler
ADVANTAGES = np.array([0.7, 0.9, -1.1, 0.0, 0.6, 0.8, 5.0, -5.0])
# What each sequence ratio shall be: own ones near 1 on both sides of both clips, peers' inside
# the interval, below and above it.
RATIOS = np.array([1.0009, 0.93, 0.9991, 1.0, 0.3, 1.4, 1.0, 1.0])


def algorithm(name: str) -> Algorithm:
    return Algorithm.model_validate(
        {
            "name": name,
            "kl_coef": KL,
            "entropy_coef": ENTROPY,
            "hacpo": {"alpha": 2.0, "clip_low": 0.5, "clip_step": 0.1},
            "gspo": {"eps_low": 0.2, "eps_high": 0.3},
        }
    )


def spec_of(name: str) -> UpdateSpec:
    return UpdateSpec(
        policy=POLICY,
        objective=make_objective(algorithm(name), 3),
        optimizer=OPTIMIZER,
        total_updates=10,
        kl_coef=KL,
        entropy_coef=ENTROPY,
        rescue_coef=0.0,
    )


@functools.cache
def plain():
    """Log-probs and entropies `[N, 4]` of the cases, and their gradient as a function."""
    rows = plain_rows(PROMPTS, RESPONSES, 4)
    values, pull = jax.vjp(lambda params: plain_log_probs(params, *rows), llama_params())
    return *(np.asarray(v, np.float64) for v in values), jax.jit(pull)


MASK = np.arange(4) < np.array([len(response) for response in RESPONSES])[:, None]
LENGTHS = np.maximum(MASK.sum(axis=1), 1)
OLD_NOISE = np.random.default_rng(3).normal(size=MASK.shape) * 0.1
REFERENCE_NOISE = np.random.default_rng(4).normal(size=MASK.shape) * 0.3


def means(values: np.ndarray) -> np.ndarray:
    return (values * MASK).sum(axis=1) / LENGTHS


def batch_of(longest: int = 4, rows: int = 8, *, garbage: float = 0.0) -> MiniBatch:
    """`[1, 8 / rows, rows, ...]`; `garbage` stands wherever nothing may count."""
    log_probs, _, _ = plain()

    def tokens(values: np.ndarray) -> np.ndarray:
        return np.pad(np.where(MASK, values, garbage), ((0, 0), (0, longest - 4)))

    filler = ~MASK.any(axis=1)
    batch = MiniBatch(
        answers=answers_of(PROMPTS, RESPONSES, 4 + longest // 2, longest),
        source=SOURCES,
        advantages=np.where(filler, garbage, ADVANTAGES),
        behavior_mean_log_prob=np.where(filler, garbage, means(log_probs) - np.log(RATIOS)),
        old_log_probs=tokens(log_probs + OLD_NOISE),
        reference_log_probs=tokens(log_probs + REFERENCE_NOISE),
        transfer_weight=np.zeros(8),
    )  # type: ignore[arg-type]
    return jax.tree.map(
        lambda x: jnp.asarray(x.astype(np.float32) if x.dtype == np.float64 else x).reshape(
            1, 8 // rows, rows, *x.shape[1:]
        ),
        batch,
    )


def updated(name="hacpo", batch=None, *, params=None, learners=(LEARNER,)):
    state = init_state(params or stacked(llama_params()), OPTIMIZER, 10)
    batch = batch_of() if batch is None else batch
    state, metrics = update(state, batch, np.array(learners), np.int32(INDEX), spec=spec_of(name))
    return jax.device_get(state), jax.device_get(metrics)


def policy_terms(name: str, log_probs, ratio):
    """Loss without penalties, and its slope by each row's ratio or by each log-prob, by hand.

    Slopes are those of the loss by the log-probs `[N, T]`.
    """
    own, rows = SOURCES == LEARNER, MASK.any(axis=1)
    share = MASK / LENGTHS[:, None]  # slope of a mean log-prob by each log-prob
    loss, slope = 0.0, np.zeros(8)
    if name == "grpo":
        ratio = np.exp(log_probs - (log_probs + OLD_NOISE))
        per_token = ADVANTAGES[:, None] * MASK
        clipped = np.clip(ratio, 0.8, 1.28)
        pessimistic = np.minimum(ratio * per_token, clipped * per_token)
        passes = (ratio * per_token <= clipped * per_token) * ratio * per_token
        return -pessimistic.sum() / MASK.sum(), -passes / MASK.sum()
    for i in np.flatnonzero(rows):
        s, a = ratio[i], ADVANTAGES[i]
        if name == "naive":
            weight, bounds = 1 / rows.sum(), (0.8, 1.3)
        else:
            weight, bounds = 1 / (rows & (SOURCES[i] == SOURCES)).sum(), (1 - 3e-4, 1 + 4e-4)
        if own[i] or name == "naive":
            clipped = min(max(s, bounds[0]), bounds[1])
            loss -= weight * min(s * a, clipped * a)
            slope[i] = -weight * a * s if s * a <= clipped * a else 0
        else:
            low = 0.5 + INDEX * 0.1
            c = min(max(s, low), 1.0)
            loss -= weight * c * c**2 * a
            slope[i] = -weight * c**2 * a * s if low <= s <= 1 else 0
    return loss, slope[:, None] * share


def expected(name: str):
    """Loss, gradient norm and new parameters, by hand from plain log-probs."""
    log_probs, entropy, pull = plain()
    loss, by_log_prob = policy_terms(name, log_probs, RATIOS)
    own = MASK & (SOURCES == LEARNER)[:, None]
    count = own.any(axis=1).sum()
    share = own / LENGTHS[:, None] / count
    kl = (share * (np.exp(REFERENCE_NOISE) - REFERENCE_NOISE - 1)).sum()
    loss += KL * kl - ENTROPY * (share * entropy).sum()
    by_log_prob = by_log_prob + KL * share * (1 - np.exp(REFERENCE_NOISE))
    (gradients,) = pull(
        (jnp.asarray(by_log_prob, jnp.float32), jnp.asarray(-ENTROPY * share, jnp.float32))
    )
    norm = np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(gradients)))

    def adamw(path, param, gradient):
        param, gradient = np.asarray(param, np.float64), np.asarray(gradient, np.float64)
        gradient = gradient * min(1, OPTIMIZER.max_grad_norm / norm)
        # Bias correction makes the first moments the gradient and its square.
        step = gradient / (np.abs(gradient) + OPTIMIZER.eps)
        decay = 0 if path[-1].key.endswith("norm") else OPTIMIZER.weight_decay
        return param - OPTIMIZER.learning_rate * (step + decay * param)

    params = jax.tree_util.tree_map_with_path(adamw, llama_params(), gradients)
    return loss, norm, params, kl, (share * entropy).sum()


def assert_same(found, wanted, **tolerances):
    for path, value in jax.tree_util.tree_leaves_with_path(wanted):
        other = functools.reduce(lambda tree, key: tree[key.key], path, found)
        np.testing.assert_allclose(other, value, err_msg=str(path), **tolerances)


def assert_as_expected(name, state: LearnerState, metrics):
    loss, norm, params, kl, entropy = expected(name)
    assert norm > OPTIMIZER.max_grad_norm / 10
    assert metrics["loss"][0] == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert metrics["grad_norm"][0] == pytest.approx(norm, rel=1e-4)
    assert metrics["kl"][0] == pytest.approx(kl, rel=1e-3)
    assert metrics["entropy"][0] == pytest.approx(entropy, rel=1e-4)
    assert_same(jax.tree.map(lambda x: x[0], state.params), params, atol=2e-5)
    assert state.updates.tolist() == [1]
    assert state.skipped.tolist() == [0]


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
    state, metrics = updated(batch=batch_of(longest=6, rows=1, garbage=np.nan))
    assert_as_expected("hacpo", state, metrics)


@pytest.mark.parametrize("name", ["grpo", "naive"])
def test_other_updates_by_hand_in_two_micro_batches(name):
    """The mean over tokens, or over all sequences, is that of the whole mini-batch."""
    state, metrics = updated(name, batch_of(rows=4))
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
