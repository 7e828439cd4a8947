"""Drawing a token: supports by brute force, draws by the inverse cumulative distribution."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import log_softmax

from hacpo_jax.rollout import Sampler, draw, truncate

LAST = float(np.nextafter(np.float32(1), np.float32(0)))
VOCAB = 1300  # not a multiple of the block of 512
drawn = jax.jit(draw, static_argnums=2)


def support(weights, top_k, top_p) -> set[int]:
    """The fewest likeliest tokens that top-k and then top-p keep, ties at the edge included."""
    ranked = sorted(weights, reverse=True)
    least = ranked[min(top_k or len(ranked), len(ranked)) - 1]
    kept = [w for w in ranked if w >= least]
    sums = itertools.accumulate(kept)
    least = next(w for w, s in zip(kept, sums, strict=True) if s >= top_p * sum(kept))
    return {i for i, w in enumerate(weights) if w >= least}


@settings(max_examples=150, deadline=None)
@given(
    weights=st.lists(st.integers(1, 30), min_size=9, max_size=9),
    top_k=st.none() | st.integers(1, 12),
    numerator=st.integers(0, 200),
)
def test_supports_of_top_k_and_top_p_by_brute_force(weights, top_k, numerator):
    # Half-integer masses, so that no threshold lies on a rounding error.
    top = sorted(weights, reverse=True)
    least = top[min(top_k or 9, 9) - 1]
    mass = sum(w for w in weights if w >= least)
    top_p = (numerator % mass + 0.5) / mass
    logits = jnp.log(jnp.array([weights], jnp.float32)) - 3
    kept = np.asarray(truncate(logits, Sampler(1.0, top_k, top_p)))[0]
    assert set(np.flatnonzero(np.isfinite(kept))) == support(weights, top_k, top_p)
    np.testing.assert_array_equal(kept[np.isfinite(kept)], logits[0][np.isfinite(kept)])


def test_truncated_draws_stay_in_the_support_and_keep_its_proportions():
    weights = np.array([8, 1, 4, 2, 16, 1])
    logits = jnp.log(jnp.asarray(weights, jnp.float32))
    uniform = (np.arange(2800) + 0.5) / 2800
    rows = jnp.broadcast_to(logits, (2800, 6))
    sampler = Sampler(1.0, 4, 0.92)  # top 4 are 16, 8, 4, 2 of 30; 0.92 of 30 is 27.6: 16, 8, 4
    tokens, log_probs = drawn(rows, jnp.asarray(uniform, jnp.float32), sampler)
    assert np.bincount(tokens, minlength=6).tolist() == [800, 0, 400, 0, 1600, 0]
    # Log-probs are those of the whole distribution, which the trainer scores.
    np.testing.assert_allclose(log_probs, np.log(weights / 32)[np.asarray(tokens)], rtol=1e-5)


@functools.cache
def hard_logits() -> np.ndarray:
    """Rows `[4, V]` spread over 60; impossible tokens at the ends, inside, a whole block."""
    rng = np.random.default_rng(0)
    logits = rng.uniform(-30, 30, (4, VOCAB)).astype(np.float32)
    logits[1, :600] = -np.inf
    logits[1, -200:] = -np.inf
    logits[2] = rng.normal(size=VOCAB)
    logits[2, ::3] = -np.inf
    logits[2, 512:1024] = -np.inf
    logits[3] = -np.inf
    logits[3, [1, 511, 1024]] = 0.0
    return logits


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("row", range(4))
def test_draws_invert_the_cumulative_distribution(row, temperature):
    """Against a search in the float64 cumulative sum; log-softmax of logits spread over 60."""
    logits = hard_logits()[row].astype(np.float64)
    uniform = np.concatenate([np.random.default_rng(1).random(1022), [0.0, LAST]])
    uniform = uniform.astype(np.float32)
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (1024, VOCAB))
    tokens, log_probs = map(np.asarray, drawn(rows, jnp.asarray(uniform), Sampler(temperature)))
    expected = log_softmax(logits / temperature)
    cumulative = np.cumsum(np.exp(expected))
    near = [np.searchsorted(cumulative, uniform + d, side="right") for d in (-3e-6, 3e-6)]
    assert ((near[0] <= tokens) & (tokens <= near[1])).all()
    assert (near[0] == near[1]).mean() > 0.95  # the bounds pin nearly all draws down
    assert np.isfinite(logits[tokens]).all()
    np.testing.assert_allclose(log_probs, expected[tokens], rtol=1e-6, atol=2e-5)


@settings(max_examples=100, deadline=None)
@given(
    possible=st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    steepness=st.floats(0, 80),
    uniform=st.one_of(st.sampled_from([0.0, LAST, 0.5]), st.floats(0, LAST, width=32)),
)
def test_impossible_tokens_are_never_drawn(possible, steepness, uniform):
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    for rank, token in enumerate(sorted(possible)):
        logits[0, token] = -steepness * rank
    tokens, log_probs = drawn(jnp.asarray(logits), jnp.array([uniform], jnp.float32), Sampler())
    assert int(tokens[0]) in possible
    assert math.isfinite(float(log_probs[0]))


def test_draws_at_the_borders_of_blocks_are_possible_tokens():
    """Rounding may put a draw before the first or behind the last token of a block."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(64):
        logits = rng.normal(size=3 * 512).astype(np.float32) * 4
        logits.reshape(3, 512)[:, :40] = logits.reshape(3, 512)[:, -40:] = -np.inf
        weights = np.exp(logits.astype(np.float64)).reshape(3, 512).sum(axis=1)
        for border in (np.cumsum(weights) / weights.sum())[:2].astype(np.float32):
            for ulps in range(-6, 7):
                rows.append((logits, border * (1 + ulps * np.float32(2**-24))))
    logits, uniform = (np.stack(part) for part in zip(*rows, strict=True))
    tokens, log_probs = drawn(jnp.asarray(logits), jnp.asarray(uniform, jnp.float32), Sampler())
    assert np.isfinite(logits[np.arange(len(rows)), tokens]).all()
    assert np.isfinite(log_probs).all()


def test_each_token_owns_its_interval_with_the_left_end():
    uniform = jnp.array([0, 0.25, 0.5, 0.75, 0.249, 0.749], jnp.float32)
    tokens, _ = drawn(jnp.zeros((6, 4)), uniform, Sampler())
    assert tokens.tolist() == [0, 1, 2, 3, 0, 2]


def test_draws_at_the_ends_of_the_unit_interval():
    logits = jnp.asarray(np.broadcast_to(hard_logits()[3], (2, VOCAB)))
    tokens, _ = drawn(logits, jnp.array([0.0, LAST], jnp.float32), Sampler())
    assert tokens.tolist() == [1, 1024]


def test_greedy_takes_the_likeliest_and_scores_it_at_temperature_1():
    logits = hard_logits()
    tokens, log_probs = drawn(jnp.asarray(logits), jnp.full(4, LAST), Sampler(0.0))
    assert tokens.tolist() == logits.argmax(axis=1).tolist()
    expected = log_softmax(logits.astype(np.float64))
    np.testing.assert_allclose(log_probs, expected[np.arange(4), tokens], atol=2e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"top_k": 0}, "top_k = 0"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_p": 1.1}, "top_p = 1.1"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampler(**arguments)


@pytest.mark.parametrize("sampler", [Sampler(0.0), Sampler(0.7), Sampler(1.0, 5, 0.8)], ids=str)
def test_the_vocabulary_may_come_first(sampler):
    """Where all tests above have it last."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(17, VOCAB)).astype(np.float32) * 3
    logits[:, 40:90] = -np.inf
    uniform = rng.uniform(size=17).astype(np.float32)
    tokens, log_probs = drawn(logits, uniform, sampler)
    turned, again = draw(jnp.asarray(logits.T), jnp.asarray(uniform), sampler, axis=0)
    assert turned.tolist() == tokens.tolist()
    np.testing.assert_allclose(again, log_probs, rtol=1e-6, atol=1e-6)
