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
from training_cases import POLICY, answers_of, cuts_of

from hacpo_jax.models import Answers
from hacpo_jax.rollout import Sampler, answer, answer_keys, pad_left
from hacpo_jax.training.scoring import answer_log_probs, score

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
    log_probs, entropy = (np.asarray(x)[0] for x in scored(llama_params(), answers, POLICY))
    assert log_probs.shape == entropy.shape == (3, longest)
    assert np.isfinite(log_probs).all()
    assert np.isfinite(entropy).all()
    assert answers.mask.sum(axis=2).tolist() == [[4, 2, 1]]
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
        prompts=pad_left(PROMPTS, 6)[None, None],
        prompt_lengths=np.array([[[len(prompt) for prompt in PROMPTS]]]),
        responses=rollouts.tokens.reshape(1, 1, 12, -1),
        response_lengths=rollouts.lengths.reshape(1, 1, 12),
        prompt_of=np.repeat(np.arange(3), 4)[None, None],
    )  # type: ignore[arg-type]
    policy = dataclasses.replace(POLICY, temperature=temperature, **known)
    cuts = cuts_of(answers, 5)
    assert len(cuts) == 3
    found = np.asarray(score(stacked(llama_params()), answers, cuts, spec=policy))
    gaps = np.abs(found - rollouts.log_probs.reshape(found.shape))[np.asarray(answers.mask)]
    assert gaps.size > 30
    assert gaps.max() < 1e-4
