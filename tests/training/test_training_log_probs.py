"""Log-probs without logits, against `jax.nn.log_softmax` over the whole vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from hacpo_jax.training.log_probs import token_log_probs

N, H, V = 11, 6, 37


@functools.cache
def inputs():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(N, H)).astype(np.float32)
    table = rng.normal(size=(V, H)).astype(np.float32)
    hidden[0] *= 15  # logits spread over 60
    targets = rng.integers(0, 30, N).astype(np.int32)
    targets[:4] = [0, 29, 5, 4]
    return jnp.asarray(hidden), jnp.asarray(table), jnp.asarray(targets)


def plain(hidden, table, targets, temperature, num_tokens, missing_ids=()):
    known = np.setdiff1d(np.arange(num_tokens), missing_ids)
    targets = jnp.searchsorted(known, targets)
    logits = hidden @ table[known].T / temperature
    log_probs = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1)
    return jnp.take_along_axis(log_probs, targets[:, None], axis=1)[:, 0], entropy


def blockwise(hidden, table, targets, temperature, num_tokens, missing_ids=(), **how):
    """Of one row of tokens."""
    found = token_log_probs(
        hidden[None], table, targets[None], temperature, num_tokens, missing_ids=missing_ids, **how
    )
    return tuple(x[0] for x in found[:2])


@pytest.mark.parametrize(("block", "tokens"), [(5, 4), (37, 11), (8192, 2048)])
@pytest.mark.parametrize(
    ("temperature", "num_tokens", "missing_ids"),
    # The last leaves out a whole block of 5, and the ends of others.
    [(1.0, V, ()), (0.7, 30, ()), (0.7, 30, (1, 10, 11, 12, 13, 14, 19, 28))],
)
def test_values_and_gradients_are_those_of_a_whole_log_softmax(
    temperature, num_tokens, missing_ids, block, tokens
):
    """Blocks that do not divide the vocabulary, nor the tokens; ids that the tokenizer lacks have
    no mass."""
    hidden, table, targets = inputs()
    targets = jnp.where(jnp.isin(targets, jnp.asarray(missing_ids, int)), 2, targets)
    weights = np.random.default_rng(1).normal(size=(2, N)).astype(np.float32)

    def total(function, *arguments):
        def loss(hidden, table):
            log_probs, entropy = function(hidden, table, targets, *arguments)
            return (weights[0] * log_probs + weights[1] * entropy).sum(), (log_probs, entropy)

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(hidden, table)

    sized = functools.partial(blockwise, block=block, tokens=tokens)
    gradients, values = total(sized, temperature, num_tokens, missing_ids)
    wanted_gradients, wanted = total(plain, temperature, num_tokens, missing_ids)
    for found, expected in zip(values, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-5)
    for found, expected in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=5e-5)
    unknown = [*range(num_tokens, V), *missing_ids]
    assert not np.asarray(gradients[1])[unknown].any()


@pytest.mark.parametrize("asked", ["none", "value"])
def test_an_entropy_that_is_not_asked_for_changes_nothing_else(asked):
    hidden, table, targets = inputs()

    def loss(function, hidden, table):
        log_probs, entropy = function(hidden, table, targets, 0.7, 30)
        return (log_probs * jnp.arange(N)).sum() + entropy.sum(), (log_probs, entropy)

    def total(function):
        return jax.grad(functools.partial(loss, function), argnums=(0, 1), has_aux=True)

    gradients, (log_probs, entropy) = total(
        functools.partial(blockwise, entropy=asked, block=8, tokens=4)
    )(hidden, table)

    def without_slope(*arguments):
        log_probs, entropy = plain(*arguments)
        return log_probs, jax.lax.stop_gradient(entropy)

    expected, (wanted, entropies) = total(without_slope)(hidden, table)
    np.testing.assert_allclose(log_probs, wanted, atol=3e-5, rtol=1e-5)
    np.testing.assert_allclose(entropy, entropies * (asked == "value"), atol=3e-5, rtol=1e-5)
    for found, gradient in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=5e-5)


def test_bfloat16_states_keep_a_float32_log_softmax():
    """bf16 logits spread over 60."""
    hidden, table, targets = inputs()
    hidden = (hidden * 4).astype(jnp.bfloat16)
    log_probs, entropy = blockwise(hidden, table, targets, 1.0, V, block=8)
    logits = np.asarray(hidden, np.float64) @ np.asarray(table.astype(jnp.bfloat16), np.float64).T
    assert np.ptp(logits, axis=1).max() > 60
    shifted = logits - logits.max(axis=1, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    assert log_probs.dtype == entropy.dtype == jnp.float32
    np.testing.assert_allclose(log_probs, expected[np.arange(N), targets], atol=1e-3)
    np.testing.assert_allclose(entropy, -(np.exp(expected) * expected).sum(axis=1), atol=1e-3)


def sizes(jaxpr: core.Jaxpr):
    """Elements of every array that a program computes, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for value in equation.params.values():
            inner = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
            if isinstance(inner, core.Jaxpr):
                yield from sizes(inner)


def test_nothing_of_the_size_of_the_logits_is_ever_computed():
    rows, width, vocab, block, tokens = 64, 4, 1000, 100, 16

    def loss(function, hidden, table):
        targets = jnp.zeros(rows, jnp.int32)
        log_probs, entropy = function(hidden, table, targets)
        return log_probs.sum() + entropy.sum()

    def largest(function):
        program = jax.make_jaxpr(jax.value_and_grad(functools.partial(loss, function), (0, 1)))
        return max(sizes(program(jnp.ones((rows, width)), jnp.ones((vocab, width))).jaxpr))

    assert largest(lambda h, t, y: plain(h, t, y, 1.0, vocab)) >= rows * vocab
    sized = functools.partial(blockwise, block=block, tokens=tokens)
    # One block of logits, or the table's gradient.
    assert largest(lambda h, t, y: sized(h, t, y, 1.0, vocab)) <= max(tokens * block, vocab * width)
