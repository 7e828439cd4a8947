"""The norm's gradient against the one that JAX derives, in float64 and in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hacpo_jax.models.norm import rms_norm

EPS = 1e-6


def plain(x, weight):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("shape", [(5,), (2, 3, 8), (2, 3, 4, 8)])
def test_gradients_of_all_shapes(shape):
    rng = np.random.default_rng(0)
    x, cotangent = rng.normal(size=(2, *shape))
    x[..., :2] = 0.0
    weight = rng.normal(size=shape[-1:])
    with jax.enable_x64(True):
        expected, pull = jax.vjp(plain, jnp.asarray(x), jnp.asarray(weight))
        gradients = pull(jnp.asarray(cotangent))
    f32 = jnp.float32
    got, pull = jax.vjp(
        lambda x, w: rms_norm(x, w, EPS), jnp.asarray(x, f32), jnp.asarray(weight, f32)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    for found, wanted in zip(pull(jnp.asarray(cotangent, f32)), gradients, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_row_of_zeros_has_a_gradient():
    zeros, weight = jnp.zeros((1, 4)), jnp.arange(1.0, 5.0)
    d_x, d_weight = jax.grad(lambda x, w: rms_norm(x, w, EPS).sum(), argnums=(0, 1))(zeros, weight)
    np.testing.assert_allclose(d_x[0], weight * 1000.0, rtol=1e-5)  # 1 / sqrt(1e-6)
    assert not d_weight.any()


def test_mapped_and_in_bfloat16():
    """Statistics are float32 whatever the activations are; agents are mapped over."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(3, 2, 4, 16)), jnp.bfloat16)
    weight = jnp.asarray(rng.normal(size=(3, 16)), jnp.float32)

    def loss(function):
        return lambda x, w: (function(x, w).astype(jnp.float32) ** 2).sum()

    found = jax.vmap(jax.grad(loss(lambda x, w: rms_norm(x, w, EPS)), argnums=(0, 1)))(x, weight)
    wide = jax.vmap(jax.grad(loss(plain), argnums=(0, 1)))(x.astype(jnp.float32), weight)
    assert found[0].dtype == jnp.bfloat16 and found[1].dtype == jnp.float32
    for got, expected in zip(found, wide, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got.astype(jnp.float32), expected, atol=0.03 * scale)
