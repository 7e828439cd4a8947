"""Attention windows and the two contexts of longrope: by hand, and sampler against trainer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models_reference import (
    FIXTURES,
    LONGEST,
    assert_cached_equals_full,
    expected_logits,
    forward,
    logits_of,
    model,
    positions_of,
    row_logits,
    stored,
)

from hacpo_jax.models import KeyValues, bind, load_model
from hacpo_jax.models.attention import causal_attention, layer_windows, shared_prompt_attention

HEADS, KV_HEADS, SIZE = 4, 2, 3


def slow_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One query `[heads, D]` over just the keys `[N, kv_heads, D]` that it sees."""
    out = np.empty_like(q)
    for head, query in enumerate(q):
        kv = head * KV_HEADS // HEADS
        weights = np.exp(keys[:, kv] @ query / np.sqrt(SIZE))
        out[head] = weights @ values[:, kv] / weights.sum()
    return out


@settings(deadline=None, max_examples=20)
@given(
    window=st.integers(1, 9) | st.none(),
    pads=st.integers(0, 3),
    tail=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_whole_sequences_see_the_newest_tokens(window, pads, tail, seed):
    rng, length = np.random.default_rng(seed), 8
    q = rng.normal(size=(1, length, HEADS, SIZE)).astype(np.float32)
    k, v = rng.normal(size=(2, 1, length, KV_HEADS, SIZE)).astype(np.float32)
    valid = np.pad(np.ones((1, length - pads - tail), bool), ((0, 0), (pads, tail)))
    limit = None if window is None else jnp.array(window)
    got = causal_attention(q, k, v, positions_of(valid), valid, limit)
    for t in range(pads, length - tail):
        seen = slice(pads if window is None else max(pads, t + 1 - window), t + 1)
        expected = slow_attention(q[0, t], k[0, seen], v[0, seen])
        np.testing.assert_allclose(got[0, t], expected, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(
    window=st.integers(1, 13) | st.none(),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    filled=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    written=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_new_tokens_see_the_newest_of_prompt_and_answer(window, lengths, filled, written, seed):
    """Windows that end in the prompt, in the answer, or at the new token itself; answers to two
    prompts that began at different times, in places that are taken in turn."""
    rng, room, answers = np.random.default_rng(seed), 6, 2

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    q, (k, v) = normal(2, answers, HEADS, SIZE), normal(2, 2, answers, KV_HEADS, SIZE)
    prompt = KeyValues(*normal(2, 2, KV_HEADS, 5, SIZE))
    generated = KeyValues(*normal(2, 2, answers, KV_HEADS, room, SIZE))
    valid = np.arange(5) >= 5 - np.array(lengths)[:, None]
    positions = np.array(lengths)[:, None] + np.broadcast_to(
        np.array(filled)[:, None], (2, answers)
    )
    limit = None if window is None else jnp.array(window)
    # The place `written` was written last, the one before it before that.
    ages = np.array([(written - place) % room for place in range(room)])
    rows = KeyValues(
        *(x.reshape(2 * answers, *x.shape[2:]) for x in (generated.keys, generated.values))
    )
    got = shared_prompt_attention(
        q, k, v, positions, prompt, valid, rows, ages, np.array(filled), limit
    )
    for p, g in np.ndindex(2, answers):

        def row(shared, own, new, p=p, g=g):
            places = [(written - age) % room for age in reversed(range(filled[p]))]
            parts = shared[p][:, valid[p]], own[p, g][:, places], new[p, g][:, None]
            whole = np.concatenate(parts, axis=1).swapaxes(0, 1)
            return whole if window is None else whole[-window:]

        keys, values = row(prompt.keys, generated.keys, k), row(prompt.values, generated.values, v)
        np.testing.assert_allclose(got[p, g], slow_attention(q[p, g], keys, values), atol=1e-5)


@pytest.mark.parametrize("name", ["mistral-window", "ministral", "qwen2-window", "phi3"])
def test_windows_matter_in_the_fixtures(name):
    """Otherwise the parity tests would pass without them."""
    config, params = model(name)
    tokens, valid, _ = expected_logits(name, "stored")
    windowed = logits_of(config, params, tokens, valid)
    blind = logits_of(dataclasses.replace(config, windows=()), params, tokens, valid)
    difference = np.abs(windowed - blind).max(axis=-1)
    widest = min(window for window in config.windows if window)
    np.testing.assert_allclose(difference[0, :widest], 0.0, atol=1e-5)
    assert difference[0, widest:].max() > 0.1


@pytest.mark.parametrize("name", ["mistral-window", "ministral", "qwen2-window"])
def test_answers_longer_than_the_window(name):
    """Fault kind: cached decoding against one full pass, where the prompt drops out of sight."""
    tokens, valid = stored(name)["tokens"], stored(name)["valid"]
    new_tokens = np.random.default_rng(4).integers(3, 48, (2, 1, 24))
    assert_cached_equals_full(*model(name), tokens, valid, new_tokens)


def test_windows_that_hide_nothing_cost_nothing():
    """A window as long as the sequences at hand compiles to the program without one."""
    assert layer_windows((), 8) is None
    assert layer_windows((None, 8), 8) is None
    assert layer_windows((None, 7), 8).tolist() == [8, 7]
    config, params = model("mistral")
    tokens = np.ones((1, 16), int)
    valid = np.ones((1, 16), bool)

    def program(windows):
        held = dataclasses.replace(config, windows=windows)
        decoder = bind(held, params)
        args = (tokens, positions_of(valid), valid)
        return str(jax.make_jaxpr(lambda: decoder(*args, dtype=jnp.float32))())

    assert program((16, 20)) == program(())
    assert program((15, 20)) != program(())


def test_longrope_within_the_original_context_equals_transformers():
    """The same file as beyond it (`phi4-mini-long` in the parity tests), with the other factors."""
    config, params = load_model(FIXTURES / "phi4-mini-long", "m")
    assert config.max_position_embeddings == 32
    tokens = stored("phi4-mini-long")["tokens"][0, :32]
    expected = stored("phi4-mini-long")["logits_short"]
    got = row_logits(config, params, tokens, np.ones(32, bool))
    np.testing.assert_allclose(got, expected, atol=1e-4)
    beyond = row_logits(*model("phi4-mini-long"), tokens, np.ones(32, bool))
    assert np.abs(beyond - expected).max() > 0.1


def test_longrope_answers_that_cross_the_original_context():
    """Fault kind: cached decoding against one full pass, from 20 tokens to 44, past 32."""
    config, params = model("phi4-mini-long")
    assert config.max_position_embeddings == 128
    tokens = stored("phi4-mini-long")["tokens"][:, 3:23]
    new_tokens = np.random.default_rng(5).integers(3, 48, (2, 2, 24))
    assert_cached_equals_full(config, params, tokens, np.ones((2, 20), bool), new_tokens)


def test_longrope_rows_do_not_depend_on_what_follows_or_on_their_batch():
    config, params = model("phi4-mini-long")
    tokens = stored("phi4-mini-long")["tokens"]
    whole = logits_of(config, params, tokens, np.ones_like(tokens, bool))
    cut = np.arange(tokens.shape[1]) < np.array([[20], [43]])
    np.testing.assert_allclose(
        logits_of(config, params, tokens, cut)[0, :20], whole[0, :20], atol=2e-5
    )
    alone = row_logits(config, params, tokens[0, :20], np.ones(20, bool))
    np.testing.assert_allclose(alone, whole[0, :20], atol=2e-5)


def test_longest_matters_to_longrope_alone():
    for name in ("mistral-window", "qwen3", "phi3"):
        config, _ = load_model(FIXTURES / name, "m", longest=8)
        assert config == load_model(FIXTURES / name, "m", longest=LONGEST)[0]


def test_gradients_through_windows_are_finite_at_padding():
    config, params = model("ministral")
    tokens = np.full((2, 20), 5)
    valid = np.array([[True] * 20, [False] * 20])

    def loss(params):
        return jnp.sum(forward(config, params, tokens, positions_of(valid), valid) ** 2)

    gradients = jax.jit(jax.grad(loss))(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
