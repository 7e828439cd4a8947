"""The decoder as a pure function of a dict of arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from models_reference import NAMES, forward, logits_of, model, positions_of, stored

from hacpo_jax.models import abstract_params, init_params, logical_axes


@pytest.mark.parametrize("name", NAMES)
def test_declarations_agree_with_the_arrays(name):
    config, params = model(name)
    declared, axes = abstract_params(config), logical_axes(config)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), declared
    )
    names = jax.tree.map(lambda x, a: len(a) == x.ndim, declared, axes)
    assert all(jax.tree.leaves(names))
    sizes = {
        "layers": config.num_layers,
        "embed": config.hidden_size,
        "vocab": config.vocab_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "mlp": config.intermediate_size,
    }
    sized = jax.tree.map(lambda x, a: x.shape == tuple(sizes[n] for n in a), declared, axes)
    assert all(jax.tree.leaves(sized))


def test_initial_parameters_follow_the_key():
    config, _ = model("qwen2")
    first = init_params(config, jax.random.key(1))
    again = init_params(config, jax.random.key(1))
    other = init_params(config, jax.random.key(2))
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, abstract_params(config))
    np.testing.assert_array_equal(first["embedding"], again["embedding"])
    assert not np.array_equal(first["embedding"], other["embedding"])
    assert np.std(first["embedding"]) == pytest.approx(config.hidden_size**-0.5, rel=0.1)
    assert not np.any(first["layers"]["attention"]["q_bias"])
    np.testing.assert_array_equal(first["final_norm"], np.ones(config.hidden_size))


def test_callers_cannot_spoil_the_declaration():
    config, _ = model("llama")
    abstract_params(config)["layers"].clear()
    logical_axes(config)["layers"].clear()
    assert abstract_params(config)["layers"] and logical_axes(config)["layers"]


def test_vmap_over_agents_equals_each_alone():
    config, params = model("qwen3")
    held = stored("qwen3")
    tokens, valid = held["tokens"], held["valid"]
    halved = jax.tree.map(lambda x: 0.5 * x, params)
    both = jax.tree.map(lambda *x: jnp.stack(x), params, halved)  # [A, ...]
    run = jax.vmap(functools.partial(forward, config), in_axes=(0, None, None, None))
    got = run(both, tokens, positions_of(valid), valid)
    for agent, alone in enumerate((params, halved)):
        expected = logits_of(config, alone, tokens, valid)
        np.testing.assert_allclose(got[agent][valid], expected[valid], atol=2e-5)


def test_sharded_heads_give_the_same_logits():
    """Fault kind: reshapes keep a valid sharding when the head axis is sharded."""
    config, params = model("qwen3")
    held = stored("qwen3")
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
    sharded_axes = ("heads", "kv_heads", "mlp", "vocab")

    def place(x, axes):
        spec = PartitionSpec(*("tensor" if axis in sharded_axes else None for axis in axes))
        return jax.device_put(x, NamedSharding(mesh, spec))

    placed = jax.tree.map(place, params, logical_axes(config))
    assert placed["layers"]["attention"]["k"].sharding.shard_shape((2, 1, 2, 8)) == (2, 1, 1, 8)
    got = logits_of(config, placed, held["tokens"], held["valid"])
    np.testing.assert_allclose(got[held["valid"]], held["logits"][held["valid"]], atol=1e-4)
