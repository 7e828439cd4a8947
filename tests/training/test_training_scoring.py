"""Log-probs of given answers against full forward passes and against the sampler."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from tiny import (
    DECODE,
    LLAMA,
    PROMPTS,
    VOCAB,
    full_log_probs,
    full_logits,
    llama_params,
    log_softmax,
    stacked,
)
from training_cases import POLICY, answers_of

from hacpo_jax.rollout import Sampler, answer, answer_keys, pad_left
from hacpo_jax.training.scoring import Answers, answer_log_probs, score

RESPONSES = [[1, 2, 3, 4], [9, 2], [0]]
scored = functools.partial(jax.jit, static_argnums=2)(answer_log_probs)


@functools.cache
def expected(row: int, response: tuple[int, ...]) -> np.ndarray:
    return full_log_probs(
        LLAMA, llama_params(), PROMPTS[row], response, temperature=POLICY.temperature
    )


@pytest.mark.parametrize(("width", "longest"), [(6, 4), (9, 6)])
def test_padding_changes_nothing(width, longest):
    """0 and 3 pads on the left; answers of 4, 2 and 1 tokens in one batch; arbitrary pad ids."""
    answers = answers_of(PROMPTS, RESPONSES, width, longest)
    log_probs, entropy = map(np.asarray, scored(llama_params(), answers, POLICY))
    assert log_probs.shape == entropy.shape == (3, longest)
    assert np.isfinite(log_probs).all()
    assert np.isfinite(entropy).all()
    assert answers.mask.sum(axis=1).tolist() == [4, 2, 1]
    for row, response in enumerate(RESPONSES):
        found = log_probs[row, : len(response)]
        np.testing.assert_allclose(found, expected(row, tuple(response)), atol=2e-5)
        logits = full_logits(LLAMA, llama_params(), [*PROMPTS[row], *response])
        each = log_softmax(logits[len(PROMPTS[row]) - 1 : -1] / POLICY.temperature)
        entropies = -(np.exp(each) * each).sum(axis=1)
        np.testing.assert_allclose(entropy[row, : len(response)], entropies, atol=2e-5)


@pytest.mark.parametrize(
    ("temperature", "num_tokens", "missing_ids"),
    [(1.0, VOCAB, ()), (0.7, 25, ()), (0.7, 25, tuple(range(3, 24, 2)))],
)
def test_trainer_and_sampler_agree_token_by_token(temperature, num_tokens, missing_ids):
    """One sample scored by both; tempered alike, and over the same ids."""
    known = {"num_tokens": num_tokens, "missing_ids": missing_ids}
    spec = dataclasses.replace(DECODE, sampler=Sampler(temperature), **known)
    keys = answer_keys(0, [0], 0, range(3), 4)
    rollouts = answer(stacked(llama_params()), PROMPTS, keys, spec, max_rows=64)
    answers = Answers(
        prompts=np.repeat(pad_left(PROMPTS, 6), 4, axis=0),
        prompt_lengths=np.repeat([len(prompt) for prompt in PROMPTS], 4),
        responses=rollouts.tokens.reshape(12, -1),
        response_lengths=rollouts.lengths.reshape(12),
    )  # type: ignore[arg-type]
    policy = dataclasses.replace(POLICY, temperature=temperature, **known)
    micro_batches = jax.tree.map(lambda x: x.reshape(1, 3, 4, *x.shape[1:]), answers)
    found = score(stacked(llama_params()), micro_batches, spec=policy).reshape(12, -1)
    gaps = np.abs(np.asarray(found) - rollouts.log_probs.reshape(12, -1))[answers.mask]
    assert gaps.size > 30
    assert gaps.max() < 1e-4
