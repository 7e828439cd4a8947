"""Tiny models with random weights, and a full forward pass to compare with."""

import dataclasses
import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.models import ModelConfig, abstract_params, bind
from hacpo_jax.rollout import DecodeSpec, Sampler

VOCAB = 40
LLAMA = ModelConfig(
    model_type="llama",
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
QWEN2 = dataclasses.replace(LLAMA, model_type="qwen2", qkv_bias=True, tie_word_embeddings=True)
LONGEST = 32

# The decode that most tests run, so that it is compiled once.
DECODE = DecodeSpec(
    model=LLAMA,
    sampler=Sampler(1.0),
    max_new_tokens=7,
    stop_ids=(0, 2, 17, 21, 33),
    num_tokens=VOCAB,
    dtype=jnp.dtype("float32"),
)
# Prompts that hold stop ids, the filler 0 among them.
PROMPTS = [[5, 9, 3, 30, 7], [11, 2], [2, 8, 0, 4, 2, 0]]


def random_params(config: ModelConfig, seed: int):
    """Float32 parameters drawn with numpy, none of them a constant; no compilation."""

    def draw(path, like):
        name = "/".join(key.key for key in path)
        noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(size=like.shape)
        if name.endswith("norm"):
            return jnp.asarray(1 + 0.3 * noise, jnp.float32)
        return jnp.asarray(noise * 0.4, jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, abstract_params(config))


@functools.cache
def llama_params():
    """Those of one `LLAMA`."""
    return random_params(LLAMA, 0)


def stacked(*members):
    """Parameters with a leading agent axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


@functools.partial(jax.jit, static_argnums=0)
def _logits(config: ModelConfig, params, tokens, length):
    decoder = bind(config, params)
    places = jnp.arange(tokens.shape[1])
    hidden = decoder(tokens, places[None], places[None] < length, dtype=jnp.float32)
    return (hidden @ decoder.unembedding().T)[0]


def full_logits(config: ModelConfig, params, tokens) -> np.ndarray:
    """Logits `[T, V]` float64 of one sequence, by a full forward pass in a batch of its own."""
    padded = np.full((1, LONGEST), 7, np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(_logits(config, params, padded, len(tokens)), np.float64)[: len(tokens)]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def full_log_probs(
    config: ModelConfig,
    params,
    prompt,
    response,
    *,
    temperature=1.0,
    num_tokens=VOCAB,
    missing_ids=(),
) -> np.ndarray:
    """Log-prob `[T]` of each response token, by one full forward pass."""
    logits = full_logits(config, params, [*prompt, *response])[len(prompt) - 1 : -1, :num_tokens]
    logits[:, list(missing_ids)] = -np.inf
    return log_softmax(logits / temperature)[np.arange(len(response)), list(response)]
