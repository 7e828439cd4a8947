"""Random queries, keys and values with padding on both sides, and what to compare of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from tiny import random_params, stacked

from hacpo_jax.models import ModelConfig, bind
from hacpo_jax.models.attention import causal_attention

MODEL = ModelConfig(
    model_type="mistral",
    vocab_size=32,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=512,
)
# Layers that see 20 tokens, that see everything, and one more kind: three branches.
MIXED = dataclasses.replace(MODEL, num_layers=4, windows=(20, None, 20, 7))


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows `[B, T]` with their queries, keys, values and the cotangent of the result."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    cotangent: jax.Array
    positions: jax.Array
    valid: jax.Array

    def outcomes(self, attend) -> dict[str, np.ndarray]:
        """Result and gradients of `attend(q, k, v)`, with nothing asked of padding."""
        real = self.valid[..., None, None]

        def scalar(q, k, v):
            out = attend(q, k, v)
            wide = jnp.where(real, out, 0).astype(jnp.float32)
            return (wide * self.cotangent).sum(), (out, wide)

        run = jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2), has_aux=True))
        (_, (out, wide)), gradients = run(self.q, self.k, self.v)
        assert np.isfinite(np.asarray(out, np.float32)).all()
        named = {"out": wide, **dict(zip("qkv", gradients, strict=True))}
        return {name: np.asarray(array, np.float32) for name, array in named.items()}

    def plain(self, window: int | None) -> dict[str, np.ndarray]:
        """The same of the plain path."""
        return self.outcomes(
            lambda q, k, v: causal_attention(q, k, v, self.positions, self.valid, window)
        )


def rows(length: int, batch: int, *, left: bool = True) -> tuple[jax.Array, jax.Array]:
    """Positions and validity `[B, T]`: full, then padded on the right, the left and both sides."""
    places = np.arange(length)
    starts = np.array([0, 0, length // 3, length // 2])[:batch, None] * left
    ends = np.array([length, length - 4, length, length // 2 + 1])[:batch, None]
    valid = (places >= starts) & (places < ends)
    return jnp.asarray(np.maximum(places - starts, 0)), jnp.asarray(valid)


def make_case(
    length: int, heads: int, kv_heads: int, size: int, *, dtype=jnp.float32, batch=3, left=True
) -> Case:
    rng = np.random.default_rng(length + heads)

    def normal(heads: int, dtype) -> jax.Array:
        return jnp.asarray(rng.normal(size=(batch, length, heads, size)), dtype)

    q, k, v = (normal(n, dtype) for n in (heads, kv_heads, kv_heads))
    return Case(q, k, v, normal(heads, jnp.float32), *rows(length, batch, left=left))


def assert_close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], share: float):
    """No element is off by more than this share of the largest, or of 1, the size of the inputs."""
    for name, array in expected.items():
        limit = share * max(1, np.abs(array).max())
        np.testing.assert_allclose(got[name], array, rtol=0, atol=limit, err_msg=name)


def model_params(config: ModelConfig, *seeds: int):
    """Stacked parameters of agents, small enough that layers do not blow rounding up."""
    return jax.tree.map(
        lambda x: 0.3 * x, stacked(*(random_params(config, seed) for seed in seeds))
    )


def hidden_and_gradients(config, params, batch, attention: str, *, remat=False):
    """Hidden states at valid tokens, and the gradient of a sum over them, of every agent.

    Args:
      config: the model's shape.
      params: of the agents, `[A, ...]`.
      batch: tokens, positions and validity, `[A, B, T]` each.
      attention: the implementation.
      remat: as in the decoder.
    """

    def scalar(params, tokens, positions, valid):
        hidden = bind(config, params)(
            tokens, positions, valid, dtype=jnp.float32, remat=remat, attention=attention
        )
        hidden = jnp.where(valid[..., None], hidden, 0)
        return jnp.sin(hidden).sum(), hidden

    over_agents = jax.vmap(jax.grad(scalar, has_aux=True), spmd_axis_name="agent")
    gradients, hidden = jax.jit(over_agents)(params, *batch)
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path((hidden, gradients))
    }


def model_batch(length: int, num_agents: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and validity of 4 rows of each agent, `[A, 4, T]` each."""
    positions, valid = (jnp.stack([x] * num_agents) for x in rows(length, 4))
    tokens = np.random.default_rng(0).integers(0, MODEL.vocab_size, valid.shape)
    return jnp.asarray(tokens), positions, valid


@functools.cache
def plain_hidden_and_gradients(config, length: int, num_agents: int):
    """What the plain path makes of `model_params` and `model_batch`."""
    params = model_params(config, *range(num_agents))
    return hidden_and_gradients(config, params, model_batch(length, num_agents), "xla")
