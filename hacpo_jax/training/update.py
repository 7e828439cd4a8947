"""One optimizer update of every agent of a group from one mini-batch."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from hacpo_jax import objectives
from hacpo_jax.config import OptimizerConfig
from hacpo_jax.models import Answers, ModelConfig, abstract_trained, trained_axes
from hacpo_jax.models.lora import Params, agent_axes, base_of, trained, with_base
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.rules import constrain_tree, over_agents
from hacpo_jax.training.objective import Metrics, Objective, Samples
from hacpo_jax.training.optimizer import make_optimizer
from hacpo_jax.training.scoring import Cut, PolicySpec, log_probs_into, no_log_probs
from hacpo_jax.training.sums import add_gradient, no_gradient


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LearnerState:
    """What an update changes; every leaf has a leading agent axis `[A, ...]`.

    Args:
      params: the parameters that are trained: all of a model's, or its adapters.
      opt_state: state of the optimizer.
      updates: int32, updates made.
      skipped: int32, updates left out because a gradient was not finite.
    """

    params: dict
    opt_state: optax.OptState
    updates: jax.Array
    skipped: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MiniBatch:
    """Answers of one update with what the losses need of them; leaves are `[..., N, ...]`.

    An answer belongs to the policy loss, or where `transfer_weight` is not 0 to the rescue term.
    """

    answers: Answers
    source: jax.Array
    advantages: jax.Array
    behavior_mean_log_prob: jax.Array
    old_log_probs: jax.Array
    reference_log_probs: jax.Array
    transfer_weight: jax.Array

    def samples(self) -> Samples:
        """The rows of the policy loss; those to be transferred are empty."""
        return Samples(
            mask=self.answers.mask & (self.transfer_weight == 0)[..., None],
            source=self.source,
            advantages=self.advantages,
            behavior_mean_log_prob=self.behavior_mean_log_prob,
            old_log_probs=self.old_log_probs,
            reference_log_probs=self.reference_log_probs,
        )


@dataclasses.dataclass(frozen=True)
class UpdateSpec:
    """Everything static about an update; hashable, so it can be a jit constant.

    Args:
      policy: how log-probs are computed.
      objective: the loss.
      optimizer: settings of AdamW.
      total_updates: length of the learning-rate schedule.
      kl_coef: weight of the KL penalty on own answers.
      entropy_coef: weight of the entropy bonus on own answers.
      rescue_coef: weight of the rescue term on the rows to be transferred.
    """

    policy: PolicySpec
    objective: Objective
    optimizer: OptimizerConfig
    total_updates: int
    kl_coef: float
    entropy_coef: float
    rescue_coef: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Divisors:
    """Of each term of the loss, counted over a whole mini-batch."""

    policy: jax.Array
    own: jax.Array
    transfer: jax.Array


def init_state(params, optimizer: OptimizerConfig, total_updates: int) -> LearnerState:
    """A fresh optimizer for parameters `[A, ...]`, its means in float32 whatever theirs is."""
    num_agents = jax.tree.leaves(params)[0].shape[0]
    opt_state = jax.vmap(make_optimizer(optimizer, total_updates).init)(_wide(params))
    # Two arrays: one buffer cannot be donated twice.
    updates, skipped = jnp.zeros(num_agents, jnp.int32), jnp.zeros(num_agents, jnp.int32)
    return LearnerState(params, opt_state, updates, skipped)


def fresh_state(
    layout: Layout, model: ModelConfig, params, optimizer: OptimizerConfig, total_updates: int
) -> LearnerState:
    """A fresh optimizer for parameters `[A, ...]` of agents of a model, where those lie."""

    def optimizer_state(params) -> LearnerState:
        return init_state(params, optimizer, total_updates)

    return layout.make(optimizer_state, state_axes(model, optimizer), lead=("agents",))(params)


def state_axes(model: ModelConfig, optimizer: OptimizerConfig) -> LearnerState:
    """Names of the axes behind the agents' of every array of a state, each a `PartitionSpec`."""
    axes = jax.tree.map(
        lambda _, names: PartitionSpec(*names), abstract_trained(model), trained_axes(model)
    )
    adam = make_optimizer(optimizer, 1)
    opt_state = optax.tree.map_params(
        adam,
        lambda _, names: names,
        jax.eval_shape(adam.init, abstract_trained(model)),
        axes,
        transform_non_params=lambda _: PartitionSpec(),
    )
    return LearnerState(axes, opt_state, PartitionSpec(), PartitionSpec())  # type: ignore[arg-type]


def _wide(params):
    return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def apply_gradients(
    state: LearnerState, gradients, optimizer: optax.GradientTransformation
) -> tuple[LearnerState, jax.Array]:
    """Update one agent, or leave it as it is if the gradient is not finite.

    Returns:
      The new state and the gradient's global norm before clipping.
    """
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(norm)
    gradients = jax.tree.map(lambda g: jnp.where(finite, g.astype(jnp.float32), 0.0), gradients)
    steps, opt_state = optimizer.update(gradients, state.opt_state, _wide(state.params))
    params = optax.apply_updates(state.params, steps)

    def keep(new, old):
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    state = LearnerState(
        params=keep(params, state.params),
        opt_state=keep(opt_state, state.opt_state),
        updates=state.updates + finite,
        skipped=state.skipped + ~finite,
    )
    return state, norm


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Found:
    """What the micro-batches of an update have come to; leaves are `[A, ...]`.

    Args:
      gradient: float32, of what is trained.
      log_probs: `[A, R, N, T]`; 0 where no micro-batch has been.
      entropy: likewise.
    """

    gradient: dict
    log_probs: jax.Array
    entropy: jax.Array


def update(
    state: LearnerState,
    batch: MiniBatch,
    cuts: Sequence[Cut],
    learners: jax.typing.ArrayLike,
    update_index: jax.typing.ArrayLike,
    *,
    spec: UpdateSpec,
    base: Params | None = None,
) -> tuple[LearnerState, Metrics]:
    """Take one optimizer step on one mini-batch, for every agent of a group.

    Args:
      state: `[A, ...]`; donated.
      batch: `[A, R, N, ...]`.
      cuts: its micro-batches, `[A, R, ...]` each.
      learners: `[A]` indices of the group's agents among all agents.
      update_index: updates already made in this step.
      spec: what is static.
      base: without an agent axis, what adapters are trained on.

    Returns:
      The new state, and metrics, `[A]` each, over the mini-batch before the step.
    """
    params = with_base(state.params, base)
    found = gradients_of(params, batch, cuts, learners, update_index, spec=spec)
    return apply(state, found, batch, learners, update_index, spec=spec)


def gradients_of(
    params,
    batch: MiniBatch,
    cuts: Sequence[Cut],
    learners: jax.typing.ArrayLike,
    update_index: jax.typing.ArrayLike,
    *,
    spec: UpdateSpec,
) -> Found:
    """Gradient of the whole loss of every agent of a group, micro-batch by micro-batch.

    Gradients of micro-batches add up under divisors counted over the whole mini-batch, so loss and
    gradient do not depend on how it is cut.

    Args:
      params: of the agents, `[A, ...]`; adapters alone have a gradient where there is a base.
      batch, cuts, learners, update_index, spec: as in `update`.
    """
    found = nothing_found(params, batch, spec=spec)
    for cut in cuts:
        found = accumulate(found, params, batch, cut, learners, update_index, spec=spec)
    return found


@functools.partial(jax.jit, static_argnames="spec")
def nothing_found(params, batch: MiniBatch, *, spec: UpdateSpec) -> Found:
    """Zeros that micro-batches are added to."""

    def one_agent(free):
        return _in_place(no_gradient(free), spec)

    zeros = no_log_probs(batch.answers)
    return Found(over_agents(one_agent)(trained(params)), zeros, zeros)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="found")
def accumulate(
    found: Found, params, batch: MiniBatch, cut: Cut, learners, update_index, *, spec: UpdateSpec
) -> Found:
    """`found`, which is donated, with one micro-batch; arguments are those of `gradients_of`."""

    def one_agent(found, params, batch, cut, learner):
        rows = flat_rows(_cut_out(batch, cut))
        divisors, answers = _divisors(flat_rows(batch), learner, spec), cut.of(batch.answers)

        def loss_of(free, totals):
            policy = with_base(free, base_of(params))
            asked = "gradient" if spec.entropy_coef else "value"
            scored, totals = log_probs_into(totals, policy, answers, spec.policy, asked)
            log_probs, entropy = map(flat_rows, scored)
            loss, _ = _total_loss(log_probs, entropy, rows, divisors, spec, learner, update_index)
            return (loss, totals), scored

        sums, _, (log_probs, entropy) = add_gradient(loss_of, trained(params), found.gradient)
        return Found(
            gradient=_in_place(sums, spec),
            log_probs=cut.put(found.log_probs, log_probs),
            entropy=cut.put(found.entropy, entropy),
        )

    axes = (0, agent_axes(params), 0, 0, 0)
    return over_agents(one_agent, axes)(found, params, batch, cut, learners)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="state")
def apply(
    state: LearnerState,
    found: Found,
    batch: MiniBatch,
    learners,
    update_index,
    *,
    spec: UpdateSpec,
) -> tuple[LearnerState, Metrics]:
    """The step that `found` asks for, and metrics; as in `update`."""

    def one_agent(state, found, batch, learner):
        whole = flat_rows(batch)
        log_probs, entropy = flat_rows(found.log_probs), flat_rows(found.entropy)
        divisors, samples = _divisors(whole, learner, spec), whole.samples()
        loss, metrics = _total_loss(
            log_probs, entropy, whole, divisors, spec, learner, update_index
        )
        gap = jnp.abs(log_probs - samples.old_log_probs)
        gap = jnp.where(_own(samples, learner), gap, 0.0).max()
        new_state, norm = apply_gradients(
            state, found.gradient, make_optimizer(spec.optimizer, spec.total_updates)
        )
        new_state = constrain_tree(new_state, state_axes(spec.policy.model, spec.optimizer))
        return new_state, metrics | {"loss": loss, "grad_norm": norm, "sampler_gap": gap}

    return over_agents(one_agent)(state, found, batch, learners)


def _in_place(gradient, spec: UpdateSpec):
    """Laid over the mesh as the parameters are: each device adds up its own part alone."""
    return constrain_tree(gradient, trained_axes(spec.policy.model))


def _cut_out(batch: MiniBatch, cut: Cut) -> MiniBatch:
    """The answers of a micro-batch, `[R, n, ...]`."""

    def take(values: jax.Array) -> jax.Array:
        return cut.take(values[..., : cut.width] if values.ndim > 2 else values)

    fields = {
        field.name: take(getattr(batch, field.name))
        for field in dataclasses.fields(batch)
        if field.name != "answers"
    }
    return MiniBatch(answers=cut.of(batch.answers), **fields)


def flat_rows(tree):
    """`[R, N, ...]` as `[R * N, ...]`: in this order each device keeps the rows that it has."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _divisors(whole: MiniBatch, learner, spec: UpdateSpec) -> Divisors:
    samples = whole.samples()
    return Divisors(
        policy=spec.objective.normalizer(samples),
        own=objectives.count_sequences(_own(samples, learner)),
        transfer=objectives.sum_weights(whole.answers.mask, whole.transfer_weight),
    )


def _total_loss(
    log_probs, entropy, rows: MiniBatch, divisors: Divisors, spec: UpdateSpec, learner, index
):
    """Policy loss with the optional rescue term, and the optional KL penalty and entropy bonus,
    both on own answers only."""
    samples = rows.samples()
    own = _own(samples, learner)
    count = objectives.count_sequences(own)
    loss, metrics = spec.objective.loss(log_probs, samples, learner, index, divisors.policy)
    bonus = objectives.mean_log_prob(entropy, own).sum()  # a token mean per row, as in the KL
    metrics["entropy"] = bonus / jnp.maximum(count, 1)
    metrics["count/own"] = count.astype(jnp.float32)
    if spec.entropy_coef:
        loss -= spec.entropy_coef * bonus / jnp.maximum(divisors.own, 1)
    if spec.kl_coef:
        penalty, found = objectives.kl_penalty(
            log_probs, samples.reference_log_probs, own, normalizer=divisors.own
        )
        loss += spec.kl_coef * penalty
        metrics |= found
    if spec.rescue_coef:
        mask, weight = rows.answers.mask, rows.transfer_weight
        term, found = objectives.transfer_loss(
            log_probs, mask, weight, normalizer=divisors.transfer
        )
        loss += spec.rescue_coef * term
        metrics["rescue/nll"] = found["nll"]
        metrics["rescue/prompts"] = objectives.sum_weights(mask, weight)
        metrics["rescue/sequences"] = (mask.any(axis=-1) & (weight != 0)).sum()
    return loss, metrics


def _own(samples: Samples, learner) -> jax.Array:
    return samples.mask & (samples.source == learner)[:, None]
