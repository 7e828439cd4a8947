"""Prompts computed once for several answers, against every answer in a row of its own."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import MIXED, MODEL
from tiny import random_params

from hacpo_jax.models import Answers, Lora, ModelConfig, bind
from hacpo_jax.models import flash_attention as kernels
from hacpo_jax.models.attention import causal_attention

R, P, S, N, T = 2, 3, 10, 5, 8
# Windows that end in the answer, and in the prompt whatever the answer's length.
WINDOWED = dataclasses.replace(MIXED, windows=(3, None, 12, 3))
ADAPTED = dataclasses.replace(MODEL, lora=Lora(3, 6.0, ("q", "v", "down")))


@functools.cache
def rows() -> Answers:
    """Prompts of 1 to 10 tokens, one of them without an answer; answers of 0 to 8."""
    rng = np.random.default_rng(0)
    return Answers(
        prompts=rng.integers(0, 32, (R, P, S)),
        prompt_lengths=np.array([[10, 1, 4], [7, 9, 10]]),
        responses=rng.integers(0, 32, (R, N, T)),
        response_lengths=np.array([[8, 0, 3, 1, 5], [2, 8, 8, 6, 4]]),
        prompt_of=np.array([[0, 0, 1, 2, 2], [2, 0, 0, 0, 2]]),
    )  # type: ignore[arg-type]


def in_rows_of_their_own() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and validity `[R * N, S + T]`, and where each answer begins."""
    answers = rows()
    tokens, ends, starts = np.zeros((R * N, S + T), int), [], []
    for i, (r, n) in enumerate(np.ndindex(R, N)):
        p = answers.prompt_of[r, n]
        prompt = answers.prompts[r, p][S - answers.prompt_lengths[r, p] :]
        answer = answers.responses[r, n][: answers.response_lengths[r, n]]
        tokens[i, : len(prompt) + len(answer)] = [*prompt, *answer]
        starts.append(len(prompt))
        ends.append(len(prompt) + len(answer))
    places = np.broadcast_to(np.arange(S + T), tokens.shape)
    return tokens, places, places < np.array(ends)[:, None], np.array(starts)


def outcome(config: ModelConfig, states):
    """States where there are tokens, and the gradient of a weighted sum of them."""
    mask = np.asarray(rows().mask)[..., None]
    weights = np.random.default_rng(1).normal(size=(R, N, T, config.hidden_size)) * mask

    def loss(params):
        found = states(bind(config, params))
        return jnp.where(mask, found * weights, 0).sum(), jnp.where(mask, found, 0)

    params = random_params(config, 0)
    gradient, found = jax.jit(jax.grad(loss, has_aux=True))(params)
    return np.asarray(found), gradient


@functools.cache
def plain(config: ModelConfig):
    tokens, places, valid, starts = in_rows_of_their_own()

    def states(model):
        hidden = model(tokens, places, valid, dtype=jnp.float32)
        at = np.minimum(starts[:, None] - 1 + np.arange(T), S + T - 1)
        return jnp.take_along_axis(hidden, at[..., None], axis=1).reshape(R, N, T, -1)

    return outcome(config, states)


def shared(config: ModelConfig, **how):
    return outcome(config, lambda m: m.before_answers(rows(), dtype=jnp.float32, **how)[0])


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], atol=2e-5)
    pairs = zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True)
    for mine, its in pairs:
        np.testing.assert_allclose(mine, its, atol=1e-4 * max(abs(np.asarray(its)).max(), 1e-3))


@pytest.mark.parametrize("config", [MODEL, WINDOWED, ADAPTED], ids=["plain", "windows", "lora"])
@pytest.mark.parametrize("remat", [False, True])
def test_states_and_gradients_are_those_of_rows_apart(config, remat):
    assert_same(shared(config, remat=remat), plain(config))


@pytest.mark.parametrize("kind", ["cudnn", "splash"])
def test_kernels_see_the_same(kind, monkeypatch):
    """In place of a kernel the plain attention, which takes what a kernel does: places in a row as
    positions, and for cuDNN lengths only, of rows that begin with their first token."""

    def kernel(q, k, v, valid, window=None):
        places = jnp.broadcast_to(jnp.arange(q.shape[1]), valid.shape)
        if kind == "cudnn":
            valid = places < valid.sum(axis=1)[:, None]
        return causal_attention(q, k, v, places, valid, window)

    monkeypatch.setattr(kernels, f"{kind}_attention", kernel)
    assert_same(shared(WINDOWED, attention=kind), plain(WINDOWED))


def test_windows_of_the_cases_matter():
    blind = dataclasses.replace(WINDOWED, windows=())
    assert np.abs(plain(WINDOWED)[0] - plain(blind)[0]).max() > 0.1


def test_an_embedding_s_gradient_is_added_to_what_is_there():
    config = dataclasses.replace(MODEL, tie_word_embeddings=True)
    params, table = random_params(config, 0), (config.vocab_size, config.hidden_size)
    total = jnp.asarray(np.random.default_rng(2).normal(size=table), jnp.float32)

    def loss(params, total):
        found, total = bind(config, params).before_answers(rows(), dtype=jnp.float32, total=total)
        return jnp.where(rows().mask[..., None], found, 0).sum(), total

    value, pull = jax.vjp(loss, params, total)
    of_params, found = pull((jnp.ones_like(value[0]), total))
    alone = jax.grad(lambda params: loss(params, None)[0])(params)
    assert not np.asarray(of_params["embedding"]).any()
    np.testing.assert_allclose(found - total, alone["embedding"], atol=1e-4)
    np.testing.assert_allclose(of_params["final_norm"], alone["final_norm"], atol=1e-4)
