"""Which answers are graded against which problem, and what is made of the verdicts."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hacpo_jax.agents import character_tokenizer
from hacpo_jax.evaluation import Graded, evaluate_group
from hacpo_jax.rollout import Rollouts, answer_keys
from hacpo_jax.tasks import Example, Verdict
from hacpo_jax.tasks.problems import Problems

TOKENIZER = character_tokenizer(["0123456789"])
TEXTS = [
    [[("1", True), ("2", True)], [("12", False), ("", True)], [("3", True), ("33", False)]],
    [[("4", True), ("5", True)], [("6", True), ("7", True)], [("8", True), ("9", True)]],
]
PROBLEMS = Problems(
    examples=tuple(Example(id=g, prompt=g, answer=g) for g in ("g0", "g1", "g2")),
    texts=("a", "b", "c"),
    tokens=(((1,), (2,), (3,)), ((4,), (5,), (6,)), ((7,), (8,), (9,))),
    dropped=0,
)
INVALID = ("12", "g1")


def rollouts() -> Rollouts:
    tokens = np.zeros((2, 3, 2, 2), np.int32)
    lengths, stopped = np.zeros((2, 3, 2), np.int32), np.zeros((2, 3, 2), bool)
    for place in np.ndindex(2, 3, 2):
        text, ended = TEXTS[place[0]][place[1]][place[2]]
        ids = [*TOKENIZER.encode_texts([text])[0], *[TOKENIZER.eos_id] * ended]
        tokens[place][: len(ids)] = ids
        lengths[place], stopped[place] = len(ids), ended
    return Rollouts(tokens, np.zeros(tokens.shape, np.float32), lengths, stopped)


class NotingVerifier:
    """Rewards the right first character, fails on one answer, and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def score(self, pairs):
        self.asked.append(pairs)
        return [
            Verdict(0.0, valid=False, error="no")
            if pair == INVALID
            else Verdict(float(pair[0].startswith(("1", "3", "6", "9"))), valid=True)
            for pair in pairs
        ]


def test_answers_meet_their_own_problem_and_agent(monkeypatch):
    seen = {}

    def answer(params, prompts, keys, spec, *, max_rows, layout):
        seen.update(params=params, prompts=prompts, keys=keys, max_rows=max_rows)
        return rollouts()

    monkeypatch.setattr("hacpo_jax.evaluation.evaluate.answer", answer)
    group = types.SimpleNamespace(agents=("x", "y"), indices=[1, 2], tokenizer=TOKENIZER)
    spec = types.SimpleNamespace(max_new_tokens=2)
    verifier = NotingVerifier()
    one, two = evaluate_group(
        group,  # type: ignore[arg-type]
        "weights",
        PROBLEMS,
        verifier,  # type: ignore[arg-type]
        spec=spec,  # type: ignore[arg-type]
        samples=2,
        seed=5,
        max_rows=7,
    )
    assert (seen["params"], seen["max_rows"]) == ("weights", 7)
    assert seen["prompts"] == [(4,), (5,), (6,)]
    # Evaluation has a step of its own, which no training step of a seed can share.
    words = jax.random.key_data(seen["keys"])
    assert words.shape[:3] == (2, 3, 2)
    for step in range(3):
        other = jax.random.key_data(answer_keys(5, [1, 2], step, range(3), 2))
        assert not jnp.array_equal(words, other)
    for texts, pairs, found in zip(TEXTS, verifier.asked, (one, two), strict=True):
        expected = [(text, f"g{p}") for p, row in enumerate(texts) for text, _ in row]
        assert pairs == expected
        assert found.texts == [[text for text, _ in row] for row in texts]
        assert found.stopped.tolist() == [[ended for _, ended in row] for row in texts]
        lengths = [[len(text) + ended for text, ended in row] for row in texts]
        assert found.lengths.tolist() == lengths
    assert one.rewards.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert one.valid.tolist() == [[True, True], [False, True], [True, True]]
    assert two.rewards.tolist() == [[0, 0], [1, 0], [0, 1]]


GRADED = Graded(
    texts=[["a"] * 3] * 2,
    rewards=np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
    valid=np.array([[True, True, True], [True, False, True]]),
    lengths=np.array([[1, 2, 3], [4, 4, 4]]),
    stopped=np.array([[True, True, True], [True, False, False]]),
)


def test_summary_by_hand():
    """An answer is right above half of the largest reward; what cannot be graded is not right."""
    found = GRADED.summary(2.0, best_of=(1, 2, 3))
    errors = {name: found.pop(name) for name in list(found) if name.endswith("/se")}
    assert set(errors) == {"accuracy/se", "best@1/se", "best@2/se", "best@3/se"}
    # Two problems, 1 and 0 for best@3: resamples have mean 0, 1/2 and 1 with chance 1/4, 1/2, 1/4.
    assert errors["best@3/se"] == pytest.approx(math.sqrt(1 / 8), rel=0.1)
    assert found == pytest.approx(
        {
            "accuracy": 3 / 6 / 2,
            "problems": 2,
            "samples": 3,
            "invalid": 1,
            "truncated": 2 / 6,
            "response_length/mean": 3.0,
            "best@1": 1 / 3 / 2,
            "best@2": 2 / 3 / 2,
            "best@3": 1 / 2,
        }
    )
    assert GRADED.summary(1.5)["accuracy"] == pytest.approx(1 / 3)
    assert GRADED.summary(1.5, best_of=(2,))["best@2"] == pytest.approx(1 / 2)


def test_one_problem_has_no_spread():
    assert GRADED.take(1).summary(2.0)["accuracy/se"] is None


def test_a_majority_is_counted_problem_by_problem():
    """Of a, a and b the first is right twice; in the second problem nothing is."""
    graded = dataclasses.replace(GRADED, texts=[["1", "1", "2"], ["3", "3", "3"]])
    graded = dataclasses.replace(graded, rewards=np.array([[1.0, 1, 0], [0, 0, 0]]))
    found = graded.summary(1.0, majority_of=(1, 2, 3))
    assert found["maj@1"] == pytest.approx(2 / 3 / 2)
    # Draws of two: 11 wins, 12 twice is a tie.
    assert found["maj@2"] == pytest.approx((1 + 0.5 + 0.5) / 3 / 2)
    assert found["maj@3"] == pytest.approx(1 / 2)


def test_all_right_and_all_wrong():
    for reward in (1.0, 0.0):
        graded = dataclasses.replace(GRADED, rewards=np.full((2, 3), reward))
        graded = dataclasses.replace(graded, texts=[["7"] * 3] * 2, stopped=np.ones((2, 3), bool))
        found = graded.summary(1.0, best_of=(1, 3), majority_of=(1, 3))
        for name in ("accuracy", "best@1", "best@3", "maj@1", "maj@3"):
            assert (found[name], found[f"{name}/se"]) == (reward, 0)
