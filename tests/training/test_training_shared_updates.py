"""Updates on shared answers: the loss from plain forward passes, and how rows may be cut."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_step import INDICES, VALID, G, Step, run_of, standardised
from one_process import whole_mini_batch
from tiny import full_log_probs

from hacpo_jax.training.cuts import make_cuts
from hacpo_jax.training.update import gradients_of, init_state, update

pytestmark = pytest.mark.usefixtures("compile_quickly")

# Agents 0 and 1 solve neither the first nor the second problem; see `made_step.VALID`.
REWARDS = np.array(
    [[[0, 0, 0], [0, 1, 0]], [[0, 1, 0], [0, 0, 0]], [[0, 1, 1], [0, 0, 1]]], np.float32
)
ALGORITHMS = {
    "prp": {"name": "prp", "grpo": {"reduction": "sequences"}},
    "thl": {"name": "prp", "prp": {"denominator": "thl_peer"}},
    "sgt": {"name": "sgt", "rescue": {"coef": 0.4, "pick": "all"}},
}
# One update with everything: the prompts of the learner, and of its peers where they share.
PAIRS = {
    "prp": [[1, 0], [1, 1], [0, 0], [2, 0], [0, 1], [2, 1]],
    "thl": [[1, 0], [1, 1], [0, 0], [2, 0], [0, 1], [2, 1]],
    "sgt": [[1, 0], [1, 1]],
}
LEARNER = 1


@functools.cache
def step_of(name: str) -> Step:
    return Step(run_of(**ALGORITHMS[name]), REWARDS)


def member_params(step: Step):
    g, member = step.run.place(step.run.agents[LEARNER])
    return jax.tree.map(lambda x: x[member], step.params[g])


@functools.cache
def log_probs_of(name: str, source: int, number: int) -> np.ndarray:
    """Of one answer under the learner, by a forward pass of its own."""
    step = step_of(name)
    agent = step.run.agents[LEARNER]
    ids = step.ids[LEARNER][number] if source == LEARNER else step.encoded(LEARNER, source, number)
    (prompt,) = step.run.train.prompts(LEARNER, [INDICES[number // G]])
    size = agent.tokenizer.size
    return full_log_probs(
        agent.model, member_params(step), prompt, ids, temperature=0.7, num_tokens=size
    )


def expected_loss(name: str) -> float:
    """By hand: clipped token ratios of every valid answer, and the term of what is rescued."""
    step, tokens, means = step_of(name), [], []
    view = step.view(LEARNER)  # its denominators have tests of their own
    for source, p in PAIRS[name]:
        group = REWARDS[:, p] if name != "sgt" else REWARDS[source, p]
        valid = VALID[:, p] if name != "sgt" else VALID[source, p]
        advantages = standardised(group, valid)
        advantages = advantages if name == "sgt" else advantages[source]
        for g in range(G):
            if not VALID[source, p, g]:
                continue
            new = log_probs_of(name, source, p * G + g)
            ratio = np.exp(new - view.old_log_probs[source, p, g][: len(new)])
            a = advantages[g]
            term = np.minimum(ratio * a, np.clip(ratio, 0.8, 1.28) * a)
            tokens.append(term)
            means.append(term.mean())
    loss = -np.mean(means) if name == "prp" else -np.concatenate(tokens).mean()
    if name == "sgt":
        # Both prompts are gated: the first has two right answers of peers, the second two.
        shown = [[(2, 1), (2, 2)], [(0, 4), (2, 5)]]
        nll = [np.mean([-log_probs_of(name, j, i).mean() for j, i in row]) for row in shown]
        loss += 0.4 * np.mean(nll)
    return float(loss)


def batch_of(name: str, rows: int = 1):
    return whole_mini_batch([step_of(name).view(LEARNER)], [np.array(PAIRS[name])], rows)


def cut(batch, tokens: int):
    """Its micro-batches of at most so many tokens in a row."""
    answers = batch.answers
    sizes = (answers.prompts.shape[-2:], tokens, answers.responses.shape[-1])
    return make_cuts(answers.response_lengths, answers.prompt_of, *sizes)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_loss_on_shared_answers_is_that_of_plain_forward_passes(name):
    step, batch = step_of(name), batch_of(name)
    group = step.run.groups[step.run.place(step.run.agents[LEARNER])[0]]
    params = jax.tree.map(lambda x: jnp.array(x[None]), member_params(step))
    state = init_state(params, group.optimizer, 10)
    spec = step.run.update_spec(group)
    cuts = cut(batch, 10_000)
    assert len(cuts) == 1
    _, metrics = update(state, batch, cuts, np.array([LEARNER]), np.int32(0), spec=spec)
    loss = expected_loss(name)
    assert abs(loss) > 0.01
    assert float(metrics["loss"][0]) == pytest.approx(loss, rel=2e-4, abs=2e-5)
    if name == "sgt":
        assert metrics["rescue/prompts"][0] == 2
        assert metrics["rescue/sequences"][0] == 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradients_on_shared_answers_do_not_depend_on_micro_batches(name):
    """Divisors are counted over the whole mini-batch: tokens, sequences, and gated prompts.

    Nor on how many rows it is laid in.
    """
    step = step_of(name)
    group = step.run.groups[step.run.place(step.run.agents[LEARNER])[0]]
    spec = step.run.update_spec(group)
    params, learners = jax.tree.map(lambda x: x[None], member_params(step)), np.array([LEARNER])
    found, counts = [], []
    for rows, tokens in ((1, 10_000), (1, 30), (1, 1), (2, 100)):
        batch = batch_of(name, rows)
        cuts = cut(batch, tokens)
        counts.append(len(cuts))
        sums = gradients_of(params, batch, cuts, learners, np.int32(0), spec=spec)
        found.append(sums.gradient)
    assert counts[0] == 1 < counts[1] < counts[2]
    # Made-up denominators are far from the policy, so that gradients may be small.
    largest = max(abs(np.asarray(leaf)).max() for leaf in jax.tree.leaves(found[0]))
    assert largest > 1e-4
    for other in found[1:]:
        for mine, its in zip(jax.tree.leaves(other), jax.tree.leaves(found[0]), strict=True):
            np.testing.assert_allclose(mine, its, atol=1e-3 * largest)
