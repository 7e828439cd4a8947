"""Algorithm 1 of HACPO: one step of all agents."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax import objectives
from hacpo_jax.agents import AgentGroup
from hacpo_jax.exchange import Exchange, Rollout
from hacpo_jax.rollout import Rollouts, answer, answer_keys
from hacpo_jax.tasks.problems import step_indices
from hacpo_jax.training.batches import LearnerView, mini_batch, stack, update_order
from hacpo_jax.training.gather import (
    Feedback,
    answer_drift,
    answer_texts,
    learner_views,
    make_records,
)
from hacpo_jax.training.metrics import Metrics, StepTimes, own_metrics, update_metrics
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.rescore import rescore
from hacpo_jax.training.run import Run
from hacpo_jax.training.update import LearnerState, update


@dataclasses.dataclass(frozen=True)
class RunState:
    """Everything that changes while a run runs, and is saved.

    Args:
      step: steps done; with the seed it fixes data order and all samples to come.
      learners: one state per group.
      history: `[K, A]` capability of the last K steps, NaN where unknown.
    """

    step: int
    learners: tuple[LearnerState, ...]
    history: np.ndarray


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a step leaves behind besides the new state."""

    metrics: list[Metrics]  # one per agent
    records: list[Rollout]


def train_step(run: Run, state: RunState, references) -> tuple[RunState, StepResult]:
    """Sample, verify, compare, share, learn.

    Args:
      run: the run.
      state: after the previous step; its parameters and optimizer states are donated.
      references: per group, parameters of the frozen start, or None.

    Returns:
      The next state, and the step's metrics and records.
    """
    training, times = run.config.training, StepTimes(len(run.groups))

    # 1. Sample P prompts.
    indices = step_indices(run.config.seed, len(run.train), training.prompts_per_step, state.step)

    # 2. Every agent draws G responses to each; answers are graded while others still draw.
    # 3. Verify.
    rollouts, gaps, texts, gradings = [], {}, {}, {}
    golds = [run.train.examples[i].answer for i in indices for _ in range(training.group_size)]
    for g, group in enumerate(run.groups):
        with times.measure("rollout", g):
            rollouts.append(_draw(run, group, state.learners[g], indices, state.step))
        if run.rescores:
            with times.measure("rescore", g):
                params = state.learners[g].params
                rollouts[g], found = rescore(run, group, params, rollouts[g], indices)
            gaps |= dict(zip(group.indices, found.tolist(), strict=True))
        for member, agent in enumerate(group.agents):
            texts[agent.index] = answer_texts(group, rollouts[g], member)
            pairs = list(zip(texts[agent.index], golds, strict=True))
            gradings[agent.index] = run.verifier.submit(pairs)
    with times.measure("verify"):
        verdicts = [gradings[agent.index].result() for agent in run.agents]
    shape = (len(run.agents), len(indices), training.group_size)
    lengths = np.zeros(shape, int)
    for group, drawn in zip(run.groups, rollouts, strict=True):
        lengths[group.indices] = drawn.lengths
    rewards = np.array([[v.reward for v in row] for row in verdicts], np.float32).reshape(shape)
    valid = np.array([[v.valid for v in row] for row in verdicts]).reshape(shape) & (lengths > 0)

    # 4. Update capability windows, and weigh every answer for every learner.
    on_device, counted = jnp.asarray(rewards), jnp.asarray(valid)
    capability = objectives.capability(on_device, valid=counted)
    history = np.asarray(objectives.push_history(jnp.asarray(state.history), *capability))
    ratio = _capability_ratio(run, history, state.step)
    objective = make_objective(run.config.algorithm, len(run.agents))
    advantages = objective.advantages(on_device, counted, ratio)
    feedback = Feedback(rewards, valid, np.asarray(advantages))

    # 5. Every learner: gather own and cross samples in its own tokens, and update once per
    # mini-batch. What was shared is fixed before any update.
    exchange = Exchange([agent.name for agent in run.agents])
    records: list[Rollout] = []
    for g, group in enumerate(run.groups):
        for member, agent in enumerate(group.agents):
            published = make_records(
                run,
                group,
                member,
                rollouts[g],
                texts[agent.index],
                feedback,
                indices,
                state.step + 1,
            )
            exchange.publish(agent.name, published)
            records += published
    learners, metrics = [], {}
    for g, group in enumerate(run.groups):
        with times.measure("share", g):
            views, shared = learner_views(
                run, group, rollouts[g], references[g], exchange, feedback, indices
            )
        with times.measure("update", g):
            learner, updates = _update_group(run, group, state.learners[g], views, state.step)
        learners.append(learner)
        for member, agent in enumerate(group.agents):
            metrics[agent.index] = {
                "step": state.step + 1,
                "agent": agent.name,
                **own_metrics(agent.index, feedback, rollouts[g], member, history, ratio, run),
                **update_metrics(updates, member, agent.index, run),
                **shared,
                **({"sampler_gap": gaps[agent.index]} if run.rescores else {}),
                "drift": answer_drift(group, rollouts[g], member),
                "updates/skipped": int(learner.skipped[member]),
                **times.of(g, int(rollouts[g].lengths[member].sum())),
            }
    new_state = RunState(state.step + 1, tuple(learners), history)
    return new_state, StepResult([metrics[i] for i in range(len(run.agents))], records)


def _draw(
    run: Run, group: AgentGroup, learner: LearnerState, indices: np.ndarray, step: int
) -> Rollouts:
    keys = answer_keys(
        run.config.seed, group.indices, step, indices.tolist(), run.config.training.group_size
    )
    prompts = run.train.prompts(group.indices[0], indices.tolist())
    max_rows = run.config.sampling.max_rows
    return answer(learner.params, prompts, keys, run.sampling_spec(group), max_rows=max_rows)


def _capability_ratio(run: Run, history: np.ndarray, step: int) -> jax.Array:
    settings = run.config.algorithm.capability
    if step < settings.warmup_steps:
        return jnp.ones((len(run.agents), len(run.agents)))
    bounds = (settings.ratio_min, settings.ratio_max)
    return objectives.capability_ratio(jnp.asarray(history), floor=settings.floor, bounds=bounds)


def _update_group(
    run: Run, group: AgentGroup, learner: LearnerState, views: list[LearnerView], step: int
) -> tuple[LearnerState, list[Metrics]]:
    """One update of all the group's agents per mini-batch; metrics `[A]` of each update."""
    training, algorithm = run.config.training, run.config.algorithm
    orders = [
        update_order(
            view.learner,
            len(run.agents),
            training.prompts_per_step,
            training.mini_batch_prompts,
            share=algorithm.shares_answers,
            order=algorithm.minibatch_order,
            rng=np.random.default_rng([run.config.seed, step, 2]),
        )
        for view in views
    ]
    spec, learners, found = run.update_spec(group), np.array(group.indices), []
    for u in range(run.updates_per_step):
        batch = stack(
            mini_batch(view, order[u], training.micro_batch_rows)
            for view, order in zip(views, orders, strict=True)
        )
        learner, metrics = update(learner, batch, learners, np.int32(u), spec=spec)
        found.append(metrics)
    return learner, jax.device_get(found)
