"""The decoder against transformers, and its cached decoding against one full forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models_reference import (
    NAMES,
    SOURCES,
    assert_cached_equals_full,
    expected_logits,
    forward,
    greedy,
    logits_of,
    model,
    positions_of,
    row_logits,
    stored,
)
from tokenizers import Tokenizer

from hacpo_jax.models import RopeScaling, bind, load_model
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.hf_layout import entries
from hacpo_jax.models.rope import inverse_frequencies
from hacpo_jax.rollout import DecodeSpec, Sampler, answer, answer_keys


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name, source):
    tokens, valid, expected = expected_logits(name, source)
    got = logits_of(*model(name), tokens, valid)
    np.testing.assert_allclose(got[valid], expected[valid], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_pads_do_not_change_logits(name):
    """Fault kind: the same prompt with 0 and with 3 pads on the left (and 64 on the right)."""
    held = stored(name)
    padded = logits_of(*model(name), held["tokens"], held["valid"])[1, 3:]
    alone = row_logits(*model(name), held["tokens"][1, 3:], held["valid"][1, 3:])
    np.testing.assert_allclose(padded, alone, atol=2e-5)
    np.testing.assert_allclose(alone, held["logits_alone"], atol=1e-4)


@pytest.mark.parametrize(("name", "remat"), [*((name, False) for name in NAMES), ("qwen3", True)])
def test_gradients_equal_transformers(name, remat):
    config, params = model(name)
    held = stored(name)
    tokens, valid = held["tokens"], held["valid"]

    def mean_loss(params):
        decoder = bind(config, params)
        hidden = decoder(tokens, positions_of(valid), valid, dtype=jnp.float32, remat=remat)
        log_probs = jax.nn.log_softmax(hidden @ decoder.unembedding().T)[:, :-1]
        chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]
        mask = valid[:, 1:] & valid[:, :-1]
        return -jnp.sum(chosen * mask) / jnp.sum(mask)

    gradients = jax.jit(jax.grad(mean_loss))(params)
    compared = set()
    for entry in entries(config):
        array = np.asarray(functools.reduce(dict.__getitem__, entry.path, gradients))
        first = entry.to_hf(array[0] if entry.stacked else array)
        expected = held[f"grad/{entry.names[0]}"][entry.rows]
        np.testing.assert_allclose(first, expected, atol=1e-5, rtol=1e-3)
        compared.add(f"grad/{entry.names[0]}")
    assert compared == {key for key in held if key.startswith("grad/")}


@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuation_equals_transformers(name):
    held = stored(name)
    assert greedy(*model(name), held["tokens"][1, 3:], 64) == held["greedy"].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_sampler_at_temperature_zero_equals_transformers(name):
    """By cached decoding, the prompt padded on the left to its bucket, beside a longer prompt."""
    config, params = model(name)
    prompt = stored(name)["tokens"][1, 3:].tolist()
    spec = DecodeSpec(config, Sampler(0.0), 64, (), config.vocab_size, jnp.dtype("float32"))
    keys = answer_keys(0, [0], 0, [0, 1], 1)
    stacked = jax.tree.map(lambda x: x[None], params)
    rollouts = answer(stacked, [prompt, prompt[:1] * 43], keys, spec, max_rows=2)
    assert rollouts.tokens[0, 0, 0].tolist() == stored(name)["greedy"].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_cached_decoding_equals_full_forward(name):
    """Fault kind: cached decoding against one full forward pass, tight in float32."""
    held = stored(name)
    new_tokens = np.random.default_rng(3).integers(3, 48, (2, 2, 5))
    assert_cached_equals_full(*model(name), held["tokens"], held["valid"], new_tokens)


def test_row_without_a_valid_token_is_finite():
    """Fault kind: a row with no valid token gives finite values and gradients everywhere."""
    config, params = model("qwen3")
    tokens = np.full((2, 6), 5)
    valid = np.array([[True] * 6, [False] * 6])

    def loss(params):
        return jnp.sum(forward(config, params, tokens, positions_of(valid), valid) ** 2)

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_bfloat16_activations_stay_near_float32():
    config, params = model("llama")
    held = stored("llama")
    valid = held["valid"]
    decoder = bind(config, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    run = jax.jit(functools.partial(decoder, dtype=jnp.bfloat16))
    hidden = run(held["tokens"], positions_of(valid), valid)
    assert hidden.dtype == jnp.bfloat16
    got = np.asarray(hidden.astype(jnp.float32) @ decoder.unembedding().T.astype(jnp.float32))
    # bfloat16 keeps 8 bits: errors of a few 2^-8 of the largest logit, 8, in a model of 2 layers.
    assert np.abs(got - held["logits"])[valid].mean() < 8 * 2**-8


def _config(scaling: RopeScaling | None) -> ModelConfig:
    shape = dict.fromkeys(["vocab_size", "hidden_size", "intermediate_size"], 8)
    return ModelConfig(
        **shape,
        model_type="llama",
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        rope_theta=10_000.0,
        rope_scaling=scaling,
    )


def test_rope_frequencies_by_hand():
    """theta = 10^4 and head_dim = 8 give 10^0, 10^-1, 10^-2, 10^-3."""
    plain = [1.0, 0.1, 0.01, 0.001]
    np.testing.assert_allclose(inverse_frequencies(_config(None)), plain, rtol=1e-6)
    linear = inverse_frequencies(_config(RopeScaling("linear", 4.0)))
    np.testing.assert_allclose(linear, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-6)
    # In 8192 tokens they turn 1303.8, 130.38, 13.038 and 1.3038 times. With bounds of 4 and 1
    # turns the first three are kept; the last keeps a share (1.3038 - 1) / 3 = 0.10126 and is
    # divided by 8 in the rest: 0.001 * (0.10126 + 0.89874 / 8) = 2.1360e-4.
    llama3 = inverse_frequencies(_config(RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)))
    np.testing.assert_allclose(llama3, [1.0, 0.1, 0.01, 2.1360e-4], rtol=1e-4)


def test_tells_the_published_story(shared_dir):
    """Greedy text of a real model, where it is at hand; beside it a tiny one with HF's ids."""
    assert greedy(*model("qwen2"), stored("qwen2")["tokens"][1, 3:], 8) == (
        stored("qwen2")["greedy"][:8].tolist()
    )
    directory = shared_dir / "models" / "stories260k"
    if directory.is_dir():
        ids = greedy(*load_model(directory, "stories"), np.array([1]), 60)
        text = Tokenizer.from_file(str(directory / "tokenizer.json")).decode(ids)
        assert text.strip().startswith("Once upon a time, there was a little girl named Lily.")
        assert "She loved to play outside in the park." in text
