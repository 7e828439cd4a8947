"""The objectives in other people's code: the examples in notebooks/ do what they say.

The checks inside Tunix run where it is installed, which needs an environment of its own:

    python -m venv .tunix
    .tunix/bin/pip install google-tunix==0.1.7 chex pytest hypothesis
    .tunix/bin/pip install --no-deps -e .
    .tunix/bin/python -m pytest tests/objectives/test_objectives_elsewhere.py
"""

import importlib.metadata
import math
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

import bare_jax
import jax
import jax.numpy as jnp
import numpy as np
import objective_loops as loops
import pytest


def _has_tunix() -> bool:
    try:
        return importlib.metadata.version("google-tunix") == "0.1.7"
    except importlib.metadata.PackageNotFoundError:
        return False


def test_bare_loop_needs_jax_and_chex_only():
    absent = ["flax", "optax", "orbax", "transformers", "torch", "tunix", "pydantic", "omegaconf"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import bare_jax"
    subprocess.run([sys.executable, "-c", code], cwd=Path(bare_jax.__file__).parent, check=True)


def test_bare_loop_teaches_both_agents():
    """Chance alone moves the mean of a step by 5 standard errors, 5 * 0.5 / sqrt(128), at most."""
    measured = bare_jax.train()
    chance = 2.5 / math.sqrt(bare_jax.PROMPTS * bare_jax.GROUP)
    # The table starts uniform: one digit in ten is right.
    assert measured[0][0]["reward"] == pytest.approx(0.1, abs=chance)
    for agent in range(bare_jax.AGENTS):
        rewards = [step[agent]["reward"] for step in measured]
        assert min(rewards[-5:]) > max(rewards[:5]) + 2 * chance
        # On the first and only update of a step the sampler is the learner.
        np.testing.assert_allclose([step[agent][f"ratio/{agent}"] for step in measured], 1, 1e-5)


def _forward(k, params, context):
    """Logits [.., DIGITS] and what the backward pass needs, in float64 numpy."""
    if k == 0:
        return params["table"][context[..., 1]], None
    embedded = params["embedding"][context].reshape(*context.shape[:-1], -1)
    hidden = np.tanh(embedded @ params["inner"])
    return hidden @ params["outer"], (embedded, hidden)


def _backward(k, params, context, kept, slope):
    """Gradient by the chain rule from `slope`, that of the logits."""
    gradient = {name: np.zeros_like(value) for name, value in params.items()}
    if k == 0:
        np.add.at(gradient["table"], context[..., 1], slope)
        return gradient
    embedded, hidden = kept
    gradient["outer"] = np.einsum("nth,ntv->hv", hidden, slope)
    inner_slope = (slope @ params["outer"].T) * (1 - hidden**2)
    gradient["inner"] = np.einsum("nte,nth->eh", embedded, inner_slope)
    embedded_slope = (inner_slope @ params["inner"].T).reshape(*context.shape, -1)
    np.add.at(gradient["embedding"], context, embedded_slope)
    return gradient


def _mean_log_prob(k, params, context, answers):
    logits, kept = _forward(k, params, context)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probs, answers[..., None], -1)[..., 0]
    return chosen.mean(-1), np.exp(log_probs), kept


@pytest.mark.parametrize("learner", [0, 1])
def test_first_update_of_the_bare_loop_is_reinforce(learner):
    """-(w_n / T) sum_t grad log pi, with w = A / N for own answers and A c^2 / N for peers'."""
    device_params = bare_jax.initial_params(jax.random.key(5))
    (prompts, answers, behavior), rewards = bare_jax.collect(device_params, jax.random.key(6))
    history = jnp.full((bare_jax.WINDOW, 2), jnp.nan)
    advantages, _ = bare_jax.credit(rewards, history)
    got, _ = bare_jax.policy_gradient(
        device_params[learner], learner, prompts, answers, behavior, advantages[learner].ravel()
    )

    params = [{n: np.asarray(x, np.float64) for n, x in p.items()} for p in device_params]
    prompts, answers, rewards = np.asarray(prompts), np.asarray(answers), np.asarray(rewards)
    text = np.concatenate([prompts, answers], axis=1)
    context = np.stack([text[:, :-2], text[:, 1:-1]], axis=-1)
    source = np.repeat([0, 1], len(answers) // 2)
    means, probabilities, kept = zip(
        *(_mean_log_prob(k, params[k], context, answers) for k in (0, 1)), strict=True
    )
    capability = rewards.mean(axis=(1, 2))
    omega = [[capability[k] / capability[j] for j in (0, 1)] for k in (0, 1)]
    all_advantages = loops.hacpo_advantages(
        rewards.tolist(), omega, np.ones_like(rewards), cross_baseline="learner",
        discrepancy=True, capability=True,
    )  # fmt: skip
    weights = all_advantages[learner].ravel() / (len(answers) / 2)
    ratios = np.exp(means[learner] - means[1 - learner])
    teaches = (ratios >= 0.5) & (ratios <= 1)
    cross = source != learner
    assert 0 < teaches[cross].mean() < 1
    weights[cross] *= np.where(teaches, ratios**2, 0)[cross]
    one_hot = np.eye(bare_jax.DIGITS)[answers]
    slope = -weights[:, None, None] / bare_jax.LENGTH * (one_hot - probabilities[learner])
    expected = _backward(learner, params[learner], context, kept[learner], slope)
    for name, value in expected.items():
        assert np.abs(value).max() > 1e-3
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6)


if _has_tunix():
    import tunix_hacpo
    from flax import nnx
    from tunix.rl import function_registry
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner

    @pytest.mark.parametrize("title", tunix_hacpo.COMPARISONS)
    def test_losses_equal_those_of_tunix(title):
        (their_loss, theirs), (our_loss, ours) = tunix_hacpo.compare(title)
        assert our_loss == pytest.approx(their_loss, rel=1e-6)
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=5e-7)

    def test_equal_inputs_lie_on_all_sides_of_the_clips():
        model, example = tunix_hacpo.equal_inputs()
        config = tunix_hacpo.comparison_config("grpo")
        new = tunix_hacpo.answer_log_probs(model, example, config, 0, 1)
        mask = np.asarray(example.completion_mask)
        gaps = np.where(mask, new - example.old_per_token_logps, 0)
        for ratios, low, high in [
            (np.exp(gaps[mask]), 0.8, 1.28),
            (np.exp(gaps.sum(1) / np.maximum(mask.sum(1), 1)), 0.95, 1.08),
        ]:
            assert (ratios < low).any() and (ratios > high).any()
            assert ((ratios > low) & (ratios < high) & (ratios != 1)).any()

    def test_advantages_equal_those_of_tunix():
        rewards = np.random.default_rng(1).random(12).astype(np.float32)
        theirs, ours = (
            function_registry.get_advantage_estimator(name)(rewards, 4)
            for name in ("grpo", "hacpo_jax/group")
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)

    def test_hacpo_is_gspo_of_tunix_on_reweighted_answers():
        """Own answers: Tunix's "gspo-token". Peers': the same without a clip, each advantage times
        c^alpha, and none outside [0.8, 1], where the value is constant and the gradient 0."""
        model, example = tunix_hacpo.equal_inputs()
        config = tunix_hacpo.comparison_config("gspo-token")
        new = tunix_hacpo.answer_log_probs(model, example, config, 0, 1)
        mask = np.asarray(example.completion_mask)
        lengths = np.maximum(mask.sum(1), 1)
        new_means = np.where(mask, new, 0).sum(1) / lengths
        # Rows 0, 2, 4, 6 are the learner's; of the peer's, row 3 is empty.
        ratios = np.exp([1e-4, -0.1, 1e-3, 0.0, -1e-3, 0.2, -2e-4, -0.5])
        behavior = (new_means - np.log(ratios)).astype(np.float32)
        advantages = np.array([1.0, 0.7, 2.0, 5.0, -1.5, 1.2, -0.4, -0.9], np.float32)

        joint = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), example)
        joint = joint.replace(
            advantages=jnp.array(advantages).reshape(4, 2),
            old_per_token_logps=jnp.array(behavior).reshape(4, 2),
            ref_per_token_logps=None,
        )
        settings = tunix_hacpo.HacpoConfig(agent=0, num_agents=2, alpha=2.0)
        settings.temperature = 1.0
        loss, gradient = tunix_hacpo.loss_and_gradient("hacpo_jax/hacpo", model, joint, settings)

        expected_loss, expected = 0.0, 0.0
        inside = (ratios >= 0.8) & (ratios <= 1)
        for rows, low, high, factors in [
            (slice(0, None, 2), 3e-4, 4e-4, np.ones(8)),
            (slice(1, None, 2), 1.0, 1e6, np.where(inside, ratios**2, 0)),
        ]:
            part = jax.tree.map(lambda x, rows=rows: x[rows], example)
            part = part.replace(
                advantages=jnp.array((advantages * factors)[rows], jnp.float32),
                old_per_token_logps=jnp.broadcast_to(
                    jnp.array(behavior[rows])[:, None], (4, new.shape[1])
                ),
                ref_per_token_logps=None,
            )
            config.epsilon, config.epsilon_high = low, high
            part_loss, part_gradient = tunix_hacpo.loss_and_gradient("grpo", model, part, config)
            expected_loss, expected = expected_loss + part_loss, expected + part_gradient
        # Row 5 is held at 1, row 7 at 0.8; three of the peer's rows have tokens.
        expected_loss -= (1.2 * 1.0 + -0.9 * 0.8**3) / 3
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert np.abs(expected).max() > 0.05
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)

    def test_learner_of_tunix_takes_the_same_steps():
        """Three steps of GRPOLearner, with Tunix's own loss and advantages and with ours."""
        weights, logged = [], []
        for loss, advantages in [("grpo", "grpo"), ("hacpo_jax/grpo", "hacpo_jax/group")]:
            cluster = tunix_hacpo.tiny_cluster("llama3", 3)
            before = _leaves(cluster)
            config = GRPOConfig(
                policy_loss_fn=loss, advantage_estimator=advantages, num_generations=8, beta=0.0
            )
            learner = GRPOLearner(
                rl_cluster=cluster, algo_config=config, reward_fns=tunix_hacpo.reward
            )
            learner.train([{"prompts": np.array(tunix_hacpo.DIGITS)}] * 3)
            weights.append(_leaves(cluster))
            logger = cluster.actor_trainer.metrics_logger
            names = "loss", "grad_norm"
            logged.append([logger.get_metric_history("actor", n, "train") for n in names])
        assert np.shape(logged) == (2, 2, 3) and np.min(logged, axis=(0, 2))[1] > 0.01
        np.testing.assert_allclose(*logged, rtol=1e-4, atol=1e-6)
        assert max(np.abs(a - b).max() for a, b in zip(before, weights[0], strict=True)) > 0.01
        for theirs, ours in zip(*weights, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)

    def _leaves(cluster):
        leaves = jax.tree.leaves(nnx.state(cluster.actor_trainer.model, nnx.Param))
        return [np.asarray(x) for x in leaves]

    @pytest.fixture(scope="module")
    def trained():
        """Two learners after 25 steps together, and the last example that each one learned from."""
        examples = {}
        prepare = tunix_hacpo.HacpoLearner._generate_and_compute_advantage

        def keep(self, *args, **kwargs):
            examples[self.algo_config.agent] = prepare(self, *args, **kwargs)
            return examples[self.algo_config.agent]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tunix_hacpo.HacpoLearner, "_generate_and_compute_advantage", keep)
            learners = tunix_hacpo.train(steps=25)
        return learners, [examples[agent] for agent in range(len(learners))]

    def test_hacpo_in_tunix_teaches_both_agents(trained):
        """160 answers a step: a standard error of at most 0.04; five of a difference are 0.28."""
        learners, _ = trained
        for agent, learner in enumerate(learners):
            rewards = np.array(learner.mean_rewards)
            assert rewards[-1, agent] > rewards[0, agent] + 0.28
            logger = learner.rl_cluster.actor_trainer.metrics_logger
            own = logger.get_metric_history("actor", f"ratio/{agent}", "train")
            np.testing.assert_allclose(own, 1, atol=1e-4)

    def test_learners_in_tunix_get_the_same_answers_and_their_own_advantages(trained):
        learners, examples = trained
        tokenizers = [learner.rl_cluster.tokenizer for learner in learners]
        ids = [np.asarray(example.completion_ids) for example in examples]
        texts = [[t.decode(row.tolist()) for row in ids[j][:, j]] for j, t in enumerate(tokenizers)]
        left_out = 0
        for learner, tokenizer in enumerate(tokenizers):
            for source, answers in enumerate(texts):
                for row, text in zip(ids[learner][:, source], answers, strict=True):
                    fits = learner == source or len(tokenizer.encode(text)) <= ids[learner].shape[2]
                    left_out += not fits
                    assert tokenizer.decode(row.tolist()) == (text if fits else "")
        assert 0 < left_out < 160

        prompts = np.repeat(tunix_hacpo.DIGITS, 16)
        rewards = np.array([tunix_hacpo.reward(prompts, answers) for answers in texts])
        window = np.mean(learners[0].mean_rewards[-5:], axis=0)
        expected = loops.hacpo_advantages(
            rewards.reshape(2, 10, 16), window[:, None] / window, np.ones((2, 10, 16)),
            cross_baseline="learner", discrepancy=True, capability=True,
        )  # fmt: skip
        for learner, example in enumerate(examples):
            np.testing.assert_allclose(learners[learner].mean_rewards[-1], rewards.mean(1), 1e-6)
            got = np.asarray(example.advantages).T.reshape(2, 10, 16)
            np.testing.assert_allclose(got, expected[learner], rtol=1e-4, atol=1e-5)
