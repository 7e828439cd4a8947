"""The losses inside Tunix: GRPO and GSPO by its registry, HACPO by a subclass of its GRPO learner.

Import this file and choose in Tunix's config: `policy_loss_fn="hacpo_jax/grpo"` or
`"hacpo_jax/gspo"`, `advantage_estimator="hacpo_jax/group"`, or `HacpoLearner` with `HacpoConfig`.
`tunix_hacpo.py` runs all of it. Written against google-tunix 0.1.7.

Ours and Tunix's own agree in float32 where both define the same thing, which is:

- `loss_agg_mode` "sequence-mean-token-mean" is `reduction="sequences"`, "token-mean" is "tokens".
  Both divide by the non-empty rows or the tokens of the batch. The other modes have no equal here.
- `loss_algo` "gspo-token" under "sequence-mean-token-mean" is `gspo_loss`.
- The KL penalty is part of Tunix's loss; ours is added to it. `kl_loss_mode` "low_var_kl" is k3,
  our only estimator (Tunix's default, "kl", is another); under "token-mean" Tunix takes the mean
  over tokens, and ours is over sequences.
- A log-ratio is cut at 20 by Tunix (at 10 for "gspo-token") and at 10 by us, and k3's exponent at
  10 by us alone.
- Advantages of a group with equal rewards are exactly 0 here, rounding noise / 1e-6 in Tunix.
"""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.rl import common, function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner, TrainExample
from tunix.rl.rl_cluster import Mode

from hacpo_jax import objectives


# 1. GRPO and GSPO: functions under a name that GRPOConfig.policy_loss_fn can say.
def answer_log_probs(model, example, algo_config, pad_id, eos_id):
    """Log-prob of each token of the answers, in nats, as Tunix's own losses get it."""
    return common.compute_per_token_logps(
        *nnx.split(model),
        prompt_tokens=example.prompt_ids,
        completion_tokens=example.completion_ids,
        pad_id=pad_id,
        eos_id=eos_id,
        stop_gradient=False,
        temperature=algo_config.temperature,
    )


def register_loss(name: str):
    """Registers what computes a loss of log-probs, masks and a `TrainExample` as Tunix wants it."""

    def register(loss_fn):
        @function_registry.register_policy_loss_fn(name)
        def policy_loss(model, train_example, algo_config, pad_id, eos_id, **_):
            example, config = train_example, algo_config
            log_probs = answer_log_probs(model, example, config, pad_id, eos_id)
            # On the first update of a step Tunix gives no old log-probs: they are the new ones.
            old = example.old_per_token_logps
            old = log_probs if old is None else old
            loss, metrics = loss_fn(log_probs, old, example, config)
            penalty = jnp.zeros(())
            if example.ref_per_token_logps is not None and config.beta:
                reference, mask = example.ref_per_token_logps, example.completion_mask
                penalty, _ = objectives.kl_penalty(log_probs, reference, mask)
            aux = {"kl": penalty, "pg_clipfrac": metrics["clip_fraction"]}
            return loss + config.beta * penalty, metrics | aux

        return policy_loss

    return register


@register_loss("hacpo_jax/grpo")
def grpo(log_probs, old, example, config):
    return objectives.grpo_loss(
        log_probs,
        example.completion_mask,
        old,
        example.advantages,
        eps_low=config.epsilon,
        eps_high=getattr(config, "epsilon_high", config.epsilon),
        reduction={"sequence-mean-token-mean": "sequences", "token-mean": "tokens"}[
            config.loss_agg_mode
        ],
    )


@register_loss("hacpo_jax/gspo")
def gspo(log_probs, old, example, config):
    mask = example.completion_mask
    return objectives.gspo_loss(
        log_probs,
        mask,
        objectives.mean_log_prob(old, mask),
        example.advantages,
        eps_low=config.epsilon,
        eps_high=getattr(config, "epsilon_high", config.epsilon),
    )


@function_registry.register_advantage_estimator("hacpo_jax/group")
def group_advantages(rewards: np.ndarray, num_generations: int) -> np.ndarray:
    groups = jnp.reshape(rewards, (-1, num_generations))
    return np.ravel(objectives.group_advantages(groups))


# 2. HACPO. A row of an example is the g-th answer of every agent to a prompt: its arrays have an
# axis of agents after that of rows, which are as many as Tunix expects.
@dataclasses.dataclass(kw_only=True)
class HacpoConfig(GRPOConfig):
    """`hacpo_loss`'s settings beside Tunix's."""

    policy_loss_fn: str = "hacpo_jax/hacpo"
    beta: float = 0.0
    agent: int
    num_agents: int
    alpha: float = 1.0
    clip_low: float = 0.8
    window: int = 5


@function_registry.register_policy_loss_fn("hacpo_jax/hacpo")
def hacpo(model, train_example, algo_config, pad_id, eos_id, **_):
    """`hacpo_loss`; `old_per_token_logps` is [rows, agents], an answer's mean for its source."""
    rows, agents = train_example.advantages.shape
    example = jax.tree.map(lambda x: x.reshape(rows * agents, *x.shape[2:]), train_example)
    return objectives.hacpo_loss(
        answer_log_probs(model, example, algo_config, pad_id, eos_id),
        example.completion_mask,
        example.old_per_token_logps,
        example.advantages,
        jnp.tile(jnp.arange(agents), rows),
        learner=algo_config.agent,
        num_agents=agents,
        update_index=0,
        alpha=algo_config.alpha,
        clip_low=algo_config.clip_low,
    )


class Exchange:
    """Where agents meet, each in a thread of its own, once a step."""

    def __init__(self, num_agents: int):
        self.records: list = [None] * num_agents
        self.barrier = threading.Barrier(num_agents)

    def swap(self, agent: int, record):
        """Leaves the record of one agent and returns those of all, when all have come."""
        self.records[agent] = record
        self.barrier.wait()
        everyone = list(self.records)
        self.barrier.wait()  # nobody overwrites a record before all have read it
        return everyone


class HacpoLearner(GRPOLearner):
    """Tunix's learner, with the peers' answers joined in.

    Each agent has its own, and all of them train at the same time on the same prompts.
    """

    def __init__(self, *, exchange: Exchange, algo_config: HacpoConfig, **kwargs):
        super().__init__(algo_config=algo_config, **kwargs)
        # At another temperature the old log-probs of Tunix 0.1.7 are not those of its sampler.
        if (algo_config.beta, algo_config.num_iterations, algo_config.temperature) != (0, 1, 1):
            raise ValueError("HacpoLearner: beta must be 0, num_iterations 1 and temperature 1")
        self.exchange = exchange
        self.history = jnp.full((algo_config.window, algo_config.num_agents), jnp.nan)
        self.mean_rewards: list[np.ndarray] = []
        names = [f"ratio/{j}" for j in range(algo_config.num_agents)]
        logged = dict.fromkeys([*names, "cross_gradient_fraction"], np.mean)
        self.rl_cluster.actor_trainer.with_rl_metrics_to_log(logged)

    def _compute_rewards(self, prompts, completions, **kwargs):
        rewards = super()._compute_rewards(prompts, completions, **kwargs)
        self._graded = completions, rewards
        return rewards

    def _generate_and_compute_advantage(self, training_input, mode=Mode.TRAIN):
        config, me = self.algo_config, self.algo_config.agent
        # Without a seed of its own every step would draw with the same noise.
        seed = jax.random.fold_in(jax.random.PRNGKey(me), self._iter_steps)
        self.rl_cluster.cluster_config.rollout_config.seed = seed
        own = super()._generate_and_compute_advantage(training_input, mode)
        texts, rewards = self._graded
        log_probs = self.rl_cluster.get_old_per_token_logps(own.prompt_ids, own.completion_ids)
        behavior = objectives.mean_log_prob(log_probs, own.completion_mask)
        # Only text and numbers cross: a peer has its own tokens.
        records = self.exchange.swap(me, (texts, np.asarray(rewards), np.asarray(behavior)))
        texts, rewards, behavior = zip(*records, strict=True)
        grouped = jnp.stack(rewards).reshape(config.num_agents, -1, config.num_generations)
        self.history = objectives.push_history(self.history, *objectives.capability(grouped))
        omega = objectives.capability_ratio(self.history)
        advantages = objectives.hacpo_advantages(grouped, omega)[me]  # [A, P, G]
        self.mean_rewards.append(np.mean(rewards, axis=1))
        length = own.completion_ids.shape[1]
        answers, masks = map(list, zip(*[self._encode(t, length) for t in texts], strict=True))
        # As sampled: the same text may have other tokens too.
        answers[me], masks[me] = own.completion_ids, own.completion_mask
        return TrainExample(
            prompt_ids=jnp.repeat(own.prompt_ids[:, None], config.num_agents, axis=1),
            prompt_mask=jnp.repeat(own.prompt_mask[:, None], config.num_agents, axis=1),
            completion_ids=jnp.stack(answers, axis=1),  # [P * G, A, T]
            completion_mask=jnp.stack(masks, axis=1),
            advantages=advantages.reshape(config.num_agents, -1).T,
            ref_per_token_logps=None,
            old_per_token_logps=jnp.stack(behavior, axis=1),
        )

    def _encode(self, texts: list[str], length: int) -> tuple[jax.Array, jax.Array]:
        """A peer's answers in this agent's tokens, [P * G, T], and where they are.

        One that is too long is left out whole.
        """
        rows = [self.rl_cluster.tokenizer.encode(text) for text in texts]
        rows = [row if len(row) <= length else [] for row in rows]
        pad, sizes = self.rl_cluster.rollout.pad_id(), jnp.array([len(row) for row in rows])
        ids = jnp.array([row + [pad] * (length - len(row)) for row in rows])
        return ids, jnp.arange(length) < sizes[:, None]
