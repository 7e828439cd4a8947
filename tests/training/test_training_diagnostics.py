"""Cosines, histograms, KL and entropy against plain forward passes and gradients."""

import functools
import itertools
import types

import jax
import jax.flatten_util
import numpy as np
import pytest
from one_process import drawn_alone
from tiny import VOCAB, llama_params, stacked
from training_cases import POLICY, plain_log_probs, plain_rows

from hacpo_jax.config import Algorithm, OptimizerConfig
from hacpo_jax.parallel.hosts import ALONE
from hacpo_jax.parallel.layout import one_device
from hacpo_jax.training.batches import LearnerView, pad_prompts, pad_responses
from hacpo_jax.training.diagnostics import RATIO_EDGES, diagnose, is_due
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.update import UpdateSpec

A, P, G, LEARNER = 3, 2, 2, 1
RNG = np.random.default_rng(5)
PROMPTS = [[3, 1, 4], [1, 5]]
LENGTHS = np.array([[[2, 1], [3, 2]], [[1, 2], [2, 3]], [[2, 0], [0, 1]]])
RESPONSES = [[RNG.integers(1, VOCAB, n).tolist() for n in LENGTHS[a].reshape(-1)] for a in range(A)]
ADVANTAGES = RNG.normal(size=(A, P, G)).astype(np.float32)
ADVANTAGES[2] = 0  # nothing to learn from the last agent
RATIOS = np.exp(RNG.normal(size=(A, P, G)) / 2)


@functools.cache
def plain():
    """Log-probs `[A * P * G, 3]` and entropies of the learner, and the pull-back of the former."""
    prompts = [PROMPTS[p] for _ in range(A) for p in range(P) for _ in range(G)]
    rows = plain_rows(prompts, [row for source in RESPONSES for row in source], 3)

    def log_probs(params):
        return plain_log_probs(params, *rows)[0]

    values, pull = jax.vjp(log_probs, llama_params())
    return (
        np.asarray(values, np.float64),
        np.asarray(plain_log_probs(llama_params(), *rows)[1]),
        pull,
    )


MASK = np.arange(3) < LENGTHS.reshape(-1, 1)
COUNTS = np.maximum(LENGTHS.reshape(-1), 1)


def means(values):
    return (values * MASK).sum(axis=1) / COUNTS


def view() -> LearnerView:
    log_probs, _, _ = plain()
    tokens, lengths = pad_responses(RESPONSES, G)
    prompts, prompt_lengths = pad_prompts(PROMPTS)
    behavior = means(log_probs).reshape(A, P, G) - np.log(RATIOS)
    own = log_probs.reshape(A, P, G, 3)[LEARNER]
    reference = np.zeros((P, G, tokens.shape[-1]), np.float32)
    reference[..., :3] = own + 0.25
    return LearnerView(
        learner=LEARNER,
        prompts=prompts,
        prompt_lengths=prompt_lengths,
        responses=tokens,
        response_lengths=lengths,
        advantages=ADVANTAGES,
        behavior_mean_log_prob=behavior.astype(np.float32),
        old_log_probs=np.zeros(tokens.shape, np.float32),
        reference_log_probs=reference,
        transfer_weight=np.ones((A, P, G), np.float32),
        transfer_lengths=lengths,
    )


def look(name="naive"):
    settings = {"name": name, "gspo": {"eps_low": 0.9, "eps_high": 9.0}}
    algorithm = Algorithm.model_validate(settings)
    spec = UpdateSpec(
        policy=POLICY,
        objective=make_objective(algorithm, A),
        optimizer=OptimizerConfig(),
        total_updates=1,
        kl_coef=0.5,
        entropy_coef=0.5,
        rescue_coef=0.5,
    )
    agents = [types.SimpleNamespace(name=n, index=i) for i, n in enumerate("abc")]
    group = types.SimpleNamespace(
        name="b", algorithm=algorithm, indices=[LEARNER], agents=[agents[LEARNER]]
    )
    training = types.SimpleNamespace(micro_batch_tokens=20, group_size=G)
    run = types.SimpleNamespace(
        agents=agents,
        config=types.SimpleNamespace(training=training),
        update_spec=lambda group: spec,
        layout=lambda group: one_device(),
        hosts=ALONE,
    )
    drawn = drawn_alone(np.arange(P), ADVANTAGES, ADVANTAGES > 9)
    (row,) = diagnose(run, group, stacked(llama_params()), drawn, [view()], 7)  # type: ignore[arg-type]
    return row


def gradient_of(source: int) -> np.ndarray:
    """Of the mean ratio times advantage over one source's answers."""
    _, _, pull = plain()
    here = np.repeat(np.arange(A), P * G) == source
    slope = (RATIOS * ADVANTAGES).reshape(-1) * here / COUNTS
    (tree,) = pull((slope[:, None] * MASK).astype(np.float32))
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0], np.float64)


def test_cosines_are_those_of_plain_gradients():
    row, own, cross = look(), gradient_of(LEARNER), gradient_of(0)
    expected = own @ cross / np.linalg.norm(own) / np.linalg.norm(cross)
    assert row["cosine/a"] == pytest.approx(expected, abs=1e-4)
    assert row["cosine/c"] is None  # all of its advantages are 0
    assert (row["step"], row["agent"]) == (7, "b")


def test_histograms_count_every_answer_with_a_token():
    row = look()
    for source, name in enumerate(("a", "own", "c")):
        inside = RATIOS[source][LENGTHS[source] > 0]
        expected = [
            int(((low <= inside) & (inside < high)).sum())
            for low, high in itertools.pairwise(RATIO_EDGES)
        ]
        assert row[f"ratio/{name}"]["counts"] == expected
        assert len(row[f"ratio/{name}"]["edges"]) == len(expected)


def test_kl_and_entropy_are_those_of_own_answers():
    row = look()
    _, entropy, _ = plain()
    own = slice(LEARNER * P * G, (LEARNER + 1) * P * G)
    assert row["kl"] == pytest.approx(np.exp(0.25) - 1 - 0.25, rel=1e-4)
    assert row["entropy"] == pytest.approx(means(entropy)[own].mean(), rel=1e-4)


def test_without_sharing_there_are_own_answers_only():
    row = look("gspo")
    assert set(row) == {"step", "agent", "ratio/own", "kl", "entropy"}
    assert sum(row["ratio/own"]["counts"]) == P * G


def test_the_first_step_is_looked_at_and_then_every_so_many():
    def due(every):
        diagnostics = types.SimpleNamespace(every=every)
        run = types.SimpleNamespace(config=types.SimpleNamespace(diagnostics=diagnostics))
        return [step for step in range(1, 8) if is_due(run, step)]  # type: ignore[arg-type]

    assert due(None) == []
    assert due(3) == [1, 4, 7]
    assert due(1) == list(range(1, 8))
