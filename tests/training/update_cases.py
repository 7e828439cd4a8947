"""Rows of an update, and the same update worked out from whole logits in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import llama_params, stacked
from training_cases import POLICY, answers_of, cuts_of, plain_log_probs, plain_rows

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
SOURCES = [1, 0, 1, 1, 2, 0, 0, 1]  # the last two are filler
ADVANTAGES = [0.7, 0.9, -1.1, 0.0, 0.6, 0.8, 5.0, -5.0]
# What each sequence ratio shall be: own ones near 1 on both sides of both clips, peers' inside
# the interval, below and above it.
RATIOS = [1.0009, 0.93, 0.9991, 1.0, 0.3, 1.4, 1.0, 1.0]
ROWS = 8

# Further rows for the rescue term: two answers share one prompt, another prompt has one, and the
# last is filler. Nothing but their tokens and weights may count.
PROMPTS += [[5, 9, 3], [5, 9, 3], [11], [0]]
RESPONSES += [[7, 7, 1], [2], [3, 3, 3, 6], []]
SOURCES = np.array([*SOURCES, 0, 2, 0, 1])
ADVANTAGES = np.array([*ADVANTAGES, 9.0, -9.0, 9.0, 9.0])
RATIOS = np.array([*RATIOS, 2.0, 0.1, 1.0, 1.0])
WEIGHTS = np.array([0.0] * ROWS + [0.5, 0.5, 1.0, 0.0])
COEF = 0.6


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


def spec_of(name: str, coef: float = 0.0) -> UpdateSpec:
    return UpdateSpec(
        policy=POLICY,
        objective=make_objective(algorithm(name), 3),
        optimizer=OPTIMIZER,
        total_updates=10,
        kl_coef=KL,
        entropy_coef=ENTROPY,
        rescue_coef=coef,
    )


@functools.cache
def plain():
    """Log-probs and entropies `[N, 4]` of the cases, and their gradient as a function."""
    rows = plain_rows(PROMPTS, RESPONSES, 4)
    values, pull = jax.vjp(lambda params: plain_log_probs(params, *rows), llama_params())
    return *(np.asarray(v, np.float64) for v in values), jax.jit(pull)


MASK = np.arange(4) < np.array([len(response) for response in RESPONSES])[:, None]
LENGTHS = np.maximum(MASK.sum(axis=1), 1)
SHARE = MASK / LENGTHS[:, None]  # slope of a mean log-prob by each log-prob
IN_POLICY = MASK & (WEIGHTS == 0)[:, None]
OLD_NOISE = np.random.default_rng(3).normal(size=MASK.shape) * 0.1
REFERENCE_NOISE = np.random.default_rng(4).normal(size=MASK.shape) * 0.3


def means(values: np.ndarray) -> np.ndarray:
    return (values * MASK).sum(axis=1) / LENGTHS


def batch_of(longest: int = 4, *, garbage: float = 0.0, count: int = ROWS) -> MiniBatch:
    """`[1, 1, count, ...]`; `garbage` stands wherever nothing may count.

    The first 8 rows are those of the policy loss, all 12 have those of a rescue.
    """
    log_probs, _, _ = plain()

    def tokens(values: np.ndarray) -> np.ndarray:
        return np.pad(np.where(IN_POLICY, values, garbage), ((0, 0), (0, longest - 4)))

    filler = ~IN_POLICY.any(axis=1)
    fields = {
        "source": SOURCES,
        "advantages": np.where(filler, garbage, ADVANTAGES),
        "behavior_mean_log_prob": np.where(filler, garbage, means(log_probs) - np.log(RATIOS)),
        "old_log_probs": tokens(log_probs + OLD_NOISE),
        "reference_log_probs": tokens(log_probs + REFERENCE_NOISE),
        "transfer_weight": WEIGHTS,
    }
    answers = answers_of(PROMPTS[:count], RESPONSES[:count], 4 + longest // 2, longest)
    batch = MiniBatch(answers=answers, **{name: x[None, :count] for name, x in fields.items()})
    return jax.tree.map(
        lambda x: jnp.asarray(x.astype(np.float32) if x.dtype == np.float64 else x)[None], batch
    )


def updated(name="hacpo", batch=None, *, rows=ROWS, params=None, learners=(LEARNER,), coef=0.0):
    """An update in micro-batches of so many answers."""
    state = init_state(params or stacked(llama_params()), OPTIMIZER, 10)
    batch = batch_of() if batch is None else batch
    spec, cuts = spec_of(name, coef), cuts_of(batch.answers, rows)
    state, metrics = update(state, batch, cuts, np.array(learners), np.int32(INDEX), spec=spec)
    return jax.device_get(state), jax.device_get(metrics)


def policy_terms(name: str, log_probs, ratio):
    """Loss without penalties, and its slope by each row's ratio or by each log-prob, by hand.

    Slopes are those of the loss by the log-probs `[N, T]`.
    """
    own, rows = SOURCES == LEARNER, IN_POLICY.any(axis=1)
    loss, slope = 0.0, np.zeros(len(SOURCES))
    if name in ("grpo", "prp", "sgt", "xgrpo"):
        ratio = np.exp(log_probs - (log_probs + OLD_NOISE))
        per_token = ADVANTAGES[:, None] * IN_POLICY
        clipped = np.clip(ratio, 0.8, 1.28)
        pessimistic = np.minimum(ratio * per_token, clipped * per_token)
        passes = (ratio * per_token <= clipped * per_token) * ratio * per_token
        return -pessimistic.sum() / IN_POLICY.sum(), -passes / IN_POLICY.sum()
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
    return loss, slope[:, None] * SHARE


def rescue_nll() -> np.ndarray:
    """Mean over gated prompts of the token-mean negative log-prob of each one's answers."""
    log_probs, _, _ = plain()
    mean = [log_probs[i, :n].mean() for i, n in ((8, 3), (9, 1), (10, 4))]
    return -((mean[0] + mean[1]) / 2 + mean[2]) / 2


def expected(name: str, coef: float = 0.0):
    """Loss, gradient norm and new parameters, by hand from plain log-probs.

    With a coefficient, those of the policy loss plus as much of the rescue term.
    """
    log_probs, entropy, pull = plain()
    loss, by_log_prob = policy_terms(name, log_probs, RATIOS)
    own = IN_POLICY & (SOURCES == LEARNER)[:, None]
    count = own.any(axis=1).sum()
    share = own / LENGTHS[:, None] / count
    kl = (share * (np.exp(REFERENCE_NOISE) - REFERENCE_NOISE - 1)).sum()
    loss += KL * kl - ENTROPY * (share * entropy).sum()
    by_log_prob = by_log_prob + KL * share * (1 - np.exp(REFERENCE_NOISE))
    loss += coef * rescue_nll()
    by_log_prob = by_log_prob - coef * WEIGHTS[:, None] * SHARE / 2  # two gated prompts
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


def assert_as_expected(name, state: LearnerState, metrics, coef: float = 0.0):
    loss, norm, params, kl, entropy = expected(name, coef)
    assert norm > OPTIMIZER.max_grad_norm / 10
    assert metrics["loss"][0] == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert metrics["grad_norm"][0] == pytest.approx(norm, rel=1e-4)
    assert metrics["kl"][0] == pytest.approx(kl, rel=1e-3)
    assert metrics["entropy"][0] == pytest.approx(entropy, rel=1e-4)
    assert_same(jax.tree.map(lambda x: x[0], state.params), params, atol=2e-5)
    assert state.updates.tolist() == [1]
    assert state.skipped.tolist() == [0]
