"""Each algorithm as advantages, a loss and its divisors, all from `hacpo_jax.objectives`."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from hacpo_jax import objectives
from hacpo_jax.config import Algorithm
from hacpo_jax.exchange import Outcome, Rollout, Scalar, Trace

Metrics = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Feedback:
    """What one learner is told of all answers of a step, `[A source, P, G]` each.

    Args:
      rewards: rewards.
      valid: whether the answer counts; False for sources of which the learner takes nothing.
      group_advantages: advantage of the answer among its source's own.
    """

    rewards: jax.Array
    valid: jax.Array
    group_advantages: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """What a loss needs to know of N answers besides their log-probs.

    Args:
      mask: `[N, T]` response tokens.
      source: `[N]` index of the agent that answered.
      advantages: `[N]`.
      behavior_mean_log_prob: `[N]` of the source, over its own tokens.
      old_log_probs: `[N, T]` that token ratios start from.
      reference_log_probs: `[N, T]` of the learner's frozen start; zeros without a KL penalty.
    """

    mask: jax.Array
    source: jax.Array
    advantages: jax.Array
    behavior_mean_log_prob: jax.Array
    old_log_probs: jax.Array
    reference_log_probs: jax.Array


class Objective(Protocol):
    """An algorithm; frozen, so that it can be a jit constant."""

    def advantages(self, feedback: Feedback, ratio: jax.Array, learner: int) -> jax.Array:
        """`[A source, P, G]` for one learner, given the capability ratio `[A, A]`."""
        ...

    def normalizer(self, samples: Samples) -> jax.Array:
        """Divisor of the loss, counted over a whole mini-batch."""
        ...

    def loss(
        self,
        log_probs: jax.Array,
        samples: Samples,
        learner: jax.Array,
        update_index: jax.Array,
        normalizer: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        """Loss, and metrics named `<metric>/<source index>` with their `count/<source index>`."""
        ...


@dataclasses.dataclass(frozen=True)
class HacpoObjective:
    """HACPO, algorithms §2-§6."""

    num_agents: int
    max_reward: float
    alpha: float
    clip_low: float
    clip_step: float
    clip_cross: bool
    eps_low: float
    eps_high: float
    cross_baseline: str
    capability_baseline: bool
    discrepancy: bool
    reduction: str

    def advantages(self, feedback, ratio, learner):
        return objectives.hacpo_advantages(
            feedback.rewards,
            ratio,
            cross_baseline=self.cross_baseline,
            discrepancy=self.discrepancy,
            capability_baseline=self.capability_baseline,
            max_reward=self.max_reward,
            valid=feedback.valid,
        )[learner]

    def normalizer(self, samples):
        return objectives.count_sequences_per_source(
            samples.mask, samples.source, num_agents=self.num_agents
        )

    def loss(self, log_probs, samples, learner, update_index, normalizer):
        return objectives.hacpo_loss(
            log_probs,
            samples.mask,
            samples.behavior_mean_log_prob,
            samples.advantages,
            samples.source,
            learner=learner,
            num_agents=self.num_agents,
            update_index=update_index,
            alpha=self.alpha,
            clip_low=self.clip_low,
            clip_step=self.clip_step,
            eps_low=self.eps_low,
            eps_high=self.eps_high,
            reduction=self.reduction,
            clip_cross=self.clip_cross,
            normalizer=normalizer,
        )


@dataclasses.dataclass(frozen=True)
class SequenceObjective:
    """GSPO on own answers, or on everybody's when `joint` (naive sharing)."""

    num_agents: int
    joint: bool
    eps_low: float
    eps_high: float
    scale: str

    def advantages(self, feedback, ratio, learner):
        function = objectives.pooled_advantages if self.joint else objectives.group_advantages
        return function(feedback.rewards, scale=self.scale, valid=feedback.valid)

    def normalizer(self, samples):
        return objectives.count_sequences(samples.mask)

    def loss(self, log_probs, samples, learner, update_index, normalizer):
        def clipped(log_probs, mask, normalizer):
            return objectives.gspo_loss(
                log_probs,
                mask,
                samples.behavior_mean_log_prob,
                samples.advantages,
                eps_low=self.eps_low,
                eps_high=self.eps_high,
                normalizer=normalizer,
            )

        return _with_metrics(clipped, log_probs, samples, learner, normalizer, self.num_agents)


@dataclasses.dataclass(frozen=True)
class TokenObjective:
    """The GRPO loss: GRPO, Dr. GRPO, XGRPO and PRP differ in the samples and advantages given.

    Args:
      num_agents: A.
      group: whose answers make up the group of the advantages: `own`, or `pooled`; `carried` takes
        those that each answer had among its source's own.
      eps_low, eps_high, scale, reduction: see `hacpo_jax.objectives.grpo_loss`.
    """

    num_agents: int
    group: str
    eps_low: float
    eps_high: float
    scale: str
    reduction: str

    def advantages(self, feedback, ratio, learner):
        if self.group == "carried":
            return jnp.where(feedback.valid, feedback.group_advantages, 0)
        pooled = self.group == "pooled"
        function = objectives.pooled_advantages if pooled else objectives.group_advantages
        return function(feedback.rewards, scale=self.scale, valid=feedback.valid)

    def normalizer(self, samples):
        count = (
            objectives.count_tokens if self.reduction == "tokens" else objectives.count_sequences
        )
        return count(samples.mask)

    def loss(self, log_probs, samples, learner, update_index, normalizer):
        def clipped(log_probs, mask, normalizer):
            return objectives.grpo_loss(
                log_probs,
                mask,
                samples.old_log_probs,
                samples.advantages,
                eps_low=self.eps_low,
                eps_high=self.eps_high,
                reduction=self.reduction,
                normalizer=normalizer,
            )

        return _with_metrics(clipped, log_probs, samples, learner, normalizer, self.num_agents)


_Loss = Callable[[jax.Array, jax.Array, jax.Array | None], tuple[jax.Array, Metrics]]


def _with_metrics(
    loss: _Loss, log_probs: jax.Array, samples: Samples, learner, normalizer, num_agents: int
) -> tuple[jax.Array, Metrics]:
    """A loss of log-probs, mask and divisor that does not tell sources apart, with its metrics for
    each source alone and the share of peers' answers that carry a gradient: those neither clipped,
    nor capped, nor of advantage 0."""
    metrics: Metrics = {}
    for j in range(num_agents):
        mask = samples.mask & (samples.source == j)[:, None]
        _, found = loss(log_probs, mask, None)
        metrics |= {f"{name}/{j}": value for name, value in found.items()}
        metrics[f"count/{j}"] = objectives.count_sequences(mask).astype(jnp.float32)
    one = jnp.ones((), jnp.int32)
    slopes = jax.grad(lambda values: loss(values, samples.mask, one)[0])(
        jax.lax.stop_gradient(log_probs)
    )
    cross = samples.mask.any(axis=-1) & (samples.source != learner)
    carrying = (slopes != 0).any(axis=-1) & cross
    metrics["cross_gradient_fraction"] = carrying.sum() / jnp.maximum(cross.sum(), 1)
    return loss(log_probs, samples.mask, normalizer)[0], metrics


def make_objective(config: Algorithm, num_agents: int) -> Objective:
    """The objective that `config.name` names, with the settings of its section."""
    if config.name == "hacpo":
        return HacpoObjective(num_agents, config.max_reward, **config.hacpo.model_dump())
    if config.name in ("gspo", "naive"):
        return SequenceObjective(num_agents, config.name == "naive", **config.gspo.model_dump())
    group = {"xgrpo": "pooled", "prp": config.prp.advantage}.get(config.name, "own")
    return TokenObjective(num_agents, group, **config.grpo.model_dump())


def peer_records(config: Algorithm) -> type[Scalar] | None:
    """The type of record that a learner takes of its peers; None takes nothing."""
    if config.name == "prp" and config.prp.denominator == "thl_peer":
        return Trace
    if config.shares_answers:
        return Rollout
    if config.rescue_coef:
        return Outcome
    return Scalar if config.name == "xgrpo" else None
