"""The tiny checkpoints of tests/fixtures, and what transformers computes on them."""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from hacpo_jax.models import KeyValues, ModelConfig, bind, load_model

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
NAMES = (
    *("llama", "llama3-rope", "llama-bias", "qwen2", "qwen3"),
    *("mistral", "mistral-window", "ministral", "qwen2-window"),
    *("phi3", "phi4-mini", "phi4-mini-long"),
)
# Beside the stored outputs, transformers itself where torch is there, on other inputs.
SOURCES = ("stored", "live") if importlib.util.find_spec("torch") else ("stored",)
LONGEST = 104  # the longest sequence, prompt and continuation together


@functools.cache
def model(name: str):
    """Config and float32 parameters of one tiny checkpoint."""
    return load_model(FIXTURES / name, name, longest=LONGEST)


@functools.cache
def stored(name: str) -> dict[str, np.ndarray]:
    return load_file(FIXTURES / name / "reference.safetensors")


def expected_logits(name: str, source: str, directory: Path | None = None):
    """Tokens `[2, 43]`, validity `[2, 43]` and logits `[2, 43, V]` as transformers has them.

    `directory` holds the same model again: what is loaded when `source` is `live`.
    """
    held = stored(name)
    tokens, valid = held["tokens"], held["valid"]
    if source == "stored":
        return tokens, valid, held["logits"]
    tokens = np.random.default_rng(7).permuted(tokens, axis=1)
    return tokens, valid, huggingface_logits(directory or FIXTURES / name, tokens, valid)


def huggingface_logits(directory: Path, tokens: np.ndarray, valid: np.ndarray) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return reference(
            torch.tensor(tokens),
            attention_mask=torch.tensor(valid).long(),
            position_ids=torch.tensor(positions_of(valid)),
        ).logits.numpy()


def positions_of(valid: np.ndarray) -> np.ndarray:
    return np.maximum(np.cumsum(valid, axis=-1) - 1, 0)


@functools.partial(jax.jit, static_argnums=0)
def forward(config: ModelConfig, params, tokens, positions, valid) -> jax.Array:
    """Float32 logits `[B, T, V]` of whole sequences."""
    decoder = bind(config, params)
    return decoder(tokens, positions, valid, dtype=jnp.float32) @ decoder.unembedding().T


def logits_of(config: ModelConfig, params, tokens: np.ndarray, valid: np.ndarray) -> np.ndarray:
    return np.asarray(forward(config, params, tokens, positions_of(valid), valid))


def row_logits(config: ModelConfig, params, tokens: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Logits `[T, V]` of one sequence `[T]`, padded on the right to one compiled length."""
    pads = (0, LONGEST - len(tokens))
    padded, real = np.pad(tokens, pads, constant_values=9)[None], np.pad(valid, pads)[None]
    return logits_of(config, params, padded, real)[0, : len(tokens)]


def cached_logits(
    config: ModelConfig, params, tokens: np.ndarray, valid: np.ndarray, new_tokens: np.ndarray
) -> np.ndarray:
    """Logits `[P, G, C, V]` after each of `new_tokens` `[P, G, C]`, decoded one by one.

    The prompts are `tokens` `[P, S]`, padded on the left.
    """
    prompts, responses, steps = new_tokens.shape
    # One position of the cache is never filled, and what it holds must not be seen.
    rows = prompts * responses
    shape = (config.num_layers, rows, config.num_kv_heads, steps + 1, config.head_dim)

    @jax.jit
    def decode_all(params):
        decoder = bind(config, params)
        _, prompt = decoder.prefill(tokens, positions_of(valid), valid, dtype=jnp.float32)
        start = jnp.broadcast_to(valid.sum(-1)[:, None], (prompts, responses))

        def decode_one(cache, at):
            step, newest = at
            ages, filled = (step - 1 - jnp.arange(steps + 1)) % (steps + 1), jnp.full(prompts, step)
            hidden, new = decoder.decode(
                newest, start + step, prompt, valid, cache, ages, filled, dtype=jnp.float32
            )
            cache = jax.tree.map(lambda old, add: old.at[..., step, :].set(add), cache, new)
            return cache, hidden @ decoder.unembedding().T

        cache = KeyValues(jnp.full(shape, 99.0), jnp.full(shape, 99.0))
        at = (jnp.arange(steps), np.moveaxis(new_tokens, 2, 0))
        return jax.lax.scan(decode_one, cache, at)[1]

    return np.moveaxis(np.asarray(decode_all(params)), 0, 2)


def assert_cached_equals_full(config: ModelConfig, params, tokens, valid, new_tokens) -> None:
    """Cached decoding against one full forward pass, as tight as float32 allows."""
    prompts, responses, steps = new_tokens.shape
    got = cached_logits(config, params, tokens, valid, new_tokens)
    for p in range(prompts):
        for g in range(responses):
            whole = np.concatenate([tokens[p], new_tokens[p, g]])
            whole_valid = np.pad(valid[p], (0, steps), constant_values=True)
            expected = row_logits(config, params, whole, whole_valid)[-steps:]
            # Of logits up to 11, float32 leaves transformers itself 1.7e-5 from float64; here two
            # float32 passes are compared.
            bound = 4e-6 * np.abs(expected).max()
            np.testing.assert_allclose(got[p, g], expected, rtol=0, atol=bound)


def greedy(config: ModelConfig, params, prompt: np.ndarray, count: int) -> list[int]:
    """The likeliest continuation, by a full forward pass for each token."""
    tokens = prompt
    for _ in range(count):
        logits = row_logits(config, params, tokens, np.ones(len(tokens), bool))
        tokens = np.append(tokens, logits[-1].argmax())
    return tokens[len(prompt) :].tolist()
