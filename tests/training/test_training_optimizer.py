"""AdamW with its schedules, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import QWEN2, random_params

from hacpo_jax.config import OptimizerConfig
from hacpo_jax.training.optimizer import make_optimizer
from hacpo_jax.training.update import LearnerState, apply_gradients


def step_sizes(config: OptimizerConfig, total_updates: int) -> list[float]:
    """Learning rates of all updates: under a constant gradient Adam's direction is its sign."""
    optimizer = make_optimizer(config, total_updates)
    params = {"weight": jnp.zeros(1)}

    def one(state, _):
        steps, state = optimizer.update({"weight": jnp.ones(1)}, state, params)
        return state, -steps["weight"][0]

    return jax.lax.scan(one, optimizer.init(params), length=total_updates)[1].tolist()


@pytest.mark.parametrize(
    ("schedule", "warmup", "total", "expected"),
    [
        ("constant", 0, 3, [1, 1, 1]),
        ("constant", 3, 5, [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        ("linear", 0, 4, [1, 3 / 4, 2 / 4, 1 / 4]),
        ("linear", 2, 6, [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4]),
        ("cosine", 0, 4, [1, (1 + 0.5**0.5) / 2, 1 / 2, (1 - 0.5**0.5) / 2]),
        ("cosine", 1, 3, [1 / 2, 1, 1 / 2]),
        ("linear", 5, 3, [1 / 6, 2 / 6, 3 / 6]),  # a warm-up that outlasts the run
    ],
)
def test_schedules(schedule, warmup, total, expected):
    config = OptimizerConfig(
        learning_rate=0.02, schedule=schedule, warmup_updates=warmup, eps=1e-30
    )
    assert step_sizes(config, total) == pytest.approx([0.02 * x for x in expected], rel=1e-4)


@functools.cache
def agent():
    """A model with stacked norms and biases, and its optimizer."""
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    optimizer, params = make_optimizer(config, 1), random_params(QWEN2, 0)
    zero = jnp.zeros((), jnp.int32)
    return optimizer, LearnerState(params, jax.jit(optimizer.init)(params), zero, zero)


@jax.jit
def applied(state, gradients):
    return apply_gradients(state, gradients, agent()[0])


def test_weight_decay_leaves_norms_and_biases_alone():
    """Layers are stacked, so a norm has two axes and a bias three: only names tell them apart."""
    _, state = agent()
    new, norm = applied(state, jax.tree.map(jnp.zeros_like, state.params))
    assert norm == 0
    shrunk, kept = set(), set()
    for path, value in jax.tree_util.tree_leaves_with_path(new.params):
        names = [key.key for key in path]
        old = functools.reduce(lambda tree, name: tree[name], names, state.params)
        whole = names[-1] in ("attention_norm", "mlp_norm", "final_norm") or "bias" in names[-1]
        np.testing.assert_allclose(value, old if whole else old * 0.95, rtol=1e-6)
        (kept if whole else shrunk).add(names[-1])
    assert kept == {"attention_norm", "mlp_norm", "final_norm", "q_bias", "k_bias", "v_bias"}
    assert shrunk == {"embedding", "q", "k", "v", "o", "gate", "up", "down"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_among_the_gradients_skips_the_update(bad):
    """The next good update is the one that would have come without it."""
    _, state = agent()
    ones = jax.tree.map(jnp.ones_like, state.params)
    spoiled = ones | {"final_norm": ones["final_norm"].at[3].set(bad)}
    skipped, norm = applied(state, spoiled)
    assert not np.isfinite(norm)
    assert int(skipped.skipped) == 1
    assert int(skipped.updates) == 0
    after, _ = applied(skipped, ones)
    straight, norm = applied(state, ones)
    size = sum(leaf.size for leaf in jax.tree.leaves(ones))
    assert norm == pytest.approx(size**0.5)
    assert int(after.updates) == int(straight.updates) == 1
    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(straight.params), strict=True):
        np.testing.assert_array_equal(a, b)
    a, b = (optax.tree.get(state.opt_state, "mu") for state in (after, straight))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)
