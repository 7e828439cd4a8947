"""Adapters against merged weights, worked out with numpy, and their gradients by the chain rule."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models_reference import model, positions_of, stored

from hacpo_jax.models import Adapted, Lora, abstract_params, abstract_trained, bind, init_adapters
from hacpo_jax.models.lora import agent_axes, member, merge, split, whole

LORA = Lora(rank=3, alpha=6.0, targets=("q", "o", "up", "down"))
PARENTS = {"q": "attention", "o": "attention", "up": "mlp", "down": "mlp"}
NUM_INPUTS = {"q": 1, "o": 2, "up": 1, "down": 1}


def adapted(seed: int):
    """The tiny Qwen3 with adapters that change something."""
    config, base = model("qwen3")
    config = dataclasses.replace(config, lora=LORA)
    rng = np.random.default_rng(seed)
    fresh = init_adapters(config, jax.random.key(seed))
    adapters = jax.tree.map(lambda x: x + 0.2 * rng.normal(size=x.shape).astype(np.float32), fresh)
    return config, Adapted(adapters, base), fresh


def merged_by_hand(params: Adapted):
    """Each layer's weight plus alpha / rank times the product of its two adapters."""
    layers = jax.tree.map(np.array, params.base["layers"])
    for name, parent in PARENTS.items():
        down = np.asarray(params.adapters["layers"][parent][f"{name}_lora_down"], np.float64)
        up = np.asarray(params.adapters["layers"][parent][f"{name}_lora_up"], np.float64)
        weight = layers[parent][name]
        for layer in range(weight.shape[0]):
            ins = down[layer].reshape(-1, 3)
            outs = up[layer].reshape(3, -1)
            weight[layer] += (6.0 / 3) * (ins @ outs).reshape(weight[layer].shape)
    return params.base | {"layers": layers}


def hidden(config, params):
    held = stored("qwen3")
    decoder = bind(config, params)
    valid = held["valid"]
    return jnp.where(
        valid[..., None],
        decoder(held["tokens"], positions_of(valid), valid, dtype=jnp.float32),
        0.0,
    )


def _leaves(tree):
    return [(path[-1].key, np.asarray(x)) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def test_only_the_chosen_weights_have_adapters():
    config, params, _ = adapted(0)
    found = {
        (parent, name)
        for parent, weights in abstract_trained(config)["layers"].items()
        for name in weights
    }
    expected = {(p, f"{n}_lora_{end}") for n, p in PARENTS.items() for end in ("down", "up")}
    assert found == expected
    assert jax.tree.map(jnp.shape, whole(params)) == jax.tree.map(
        jnp.shape, abstract_params(config)
    )


def test_fresh_adapters_change_nothing():
    config, params, fresh = adapted(0)
    plain, base = model("qwen3")
    ups = [x for name, x in _leaves(fresh) if name.endswith("_lora_up")]
    assert len(ups) == len(PARENTS) and not any(x.any() for x in ups)
    # Two programs, so equal up to rounding.
    got = hidden(config, Adapted(fresh, params.base))
    np.testing.assert_allclose(got, hidden(plain, base), atol=1e-5)


def test_adapters_compute_what_merged_weights_compute():
    config, params, _ = adapted(1)
    plain, base = model("qwen3")
    by_hand = hidden(plain, merged_by_hand(params))
    assert np.abs(by_hand - hidden(plain, base)).max() > 0.1
    np.testing.assert_allclose(hidden(config, params), by_hand, atol=2e-5)
    ours = jax.tree.map(np.asarray, merge(config, whole(params)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, merged_by_hand(params)
    )


def test_gradients_follow_the_chain_rule():
    """With W' = W + s·A·B, the gradients are dA = s·dW'·B^T and dB = s·A^T·dW'."""
    config, params, _ = adapted(2)
    plain, _ = model("qwen3")
    target = np.random.default_rng(0).normal(size=hidden(config, params).shape)

    def loss(config, params):
        return jnp.mean(hidden(config, params) * target)

    by_weight = jax.grad(lambda p: loss(plain, p))(merged_by_hand(params))["layers"]
    found = jax.grad(lambda a: loss(config, Adapted(a, params.base)))(params.adapters)["layers"]
    for name, parent in PARENTS.items():
        slope = np.asarray(by_weight[parent][name], np.float64)
        down = np.asarray(params.adapters["layers"][parent][f"{name}_lora_down"], np.float64)
        up = np.asarray(params.adapters["layers"][parent][f"{name}_lora_up"], np.float64)
        for layer in range(slope.shape[0]):
            a, b = down[layer].reshape(-1, 3), up[layer].reshape(3, -1)
            d_weight = slope[layer].reshape(a.shape[0], b.shape[1])
            for end, expected in (("down", 2 * d_weight @ b.T), ("up", 2 * a.T @ d_weight)):
                got = np.asarray(found[parent][f"{name}_lora_{end}"][layer])
                np.testing.assert_allclose(
                    got.reshape(expected.shape), expected, atol=1e-6, rtol=1e-3
                )


def test_agents_of_a_group_share_one_base():
    config, one, _ = adapted(3)
    _, two, _ = adapted(4)
    both = Adapted(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), one.adapters, two.adapters), one.base
    )
    run = jax.vmap(lambda p: hidden(config, p), in_axes=(agent_axes(both),))
    got = run(both)
    for i, alone in enumerate((one, two)):
        np.testing.assert_allclose(got[i], hidden(config, alone), atol=2e-5)
        np.testing.assert_array_equal(
            member(both, i).adapters["layers"]["mlp"]["up_lora_up"],
            alone.adapters["layers"]["mlp"]["up_lora_up"],
        )
        assert member(both, i).base is one.base


def test_splitting_takes_nothing_away():
    _, params, _ = adapted(5)
    again = split(whole(params))
    assert jax.tree.structure(again) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True))


@pytest.mark.parametrize("alpha", [1.0, 32.0])
def test_alpha_over_rank_scales_the_product(alpha):
    assert Lora(rank=8, alpha=alpha, targets=("q",)).scale == alpha / 8
