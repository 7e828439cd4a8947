"""Supervised training on solutions, which brings an agent to where rewards can teach it."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax import objectives
from hacpo_jax.agents import Agent, AgentGroup
from hacpo_jax.config import OptimizerConfig
from hacpo_jax.evaluation import evaluate_group
from hacpo_jax.models import Answers, trained_axes
from hacpo_jax.models.lora import Params, base_of, member, trained, with_base
from hacpo_jax.parallel.layout import Layout, fetch
from hacpo_jax.parallel.mesh import local_share
from hacpo_jax.parallel.rules import over_agents
from hacpo_jax.rollout import Sampler
from hacpo_jax.tasks.problems import Problems
from hacpo_jax.training.batches import pad_prompts, pad_responses
from hacpo_jax.training.run import Run
from hacpo_jax.training.scoring import PolicySpec, log_probs_into
from hacpo_jax.training.sums import add_gradient, no_gradient
from hacpo_jax.training.update import (
    LearnerState,
    apply_gradients,
    fresh_state,
    make_optimizer,
)


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a warm start stands."""

    step: int
    loss: float
    accuracy: float | None  # greedy, on training problems; None between two looks


def warm_start(run: Run, agent: Agent, layout: Layout, params, report: Callable[[Progress], None]):
    """Train one agent on the solutions of training problems.

    Args:
      run: the run.
      agent: has a `warm_start` section.
      layout: where it works, alone.
      params: its parameters, without an agent axis, or its adapters on their base.
      report: called after every check and at the end.

    Returns:
      The trained parameters.
    """
    settings = agent.warm_start
    assert settings is not None
    optimizer = OptimizerConfig(
        learning_rate=settings.learning_rate, warmup_updates=min(20, settings.steps // 5)
    )
    alone = AgentGroup((agent,))
    # Solutions are learned as they are, whatever temperature answers are drawn at later.
    policy = dataclasses.replace(run.policy_spec(alone), temperature=1.0)
    base = base_of(params)
    first = layout.stacked([trained(params)], trained_axes(agent.model))
    state = fresh_state(layout, agent.model, first, optimizer, settings.steps)
    solutions = _solutions(agent, run.train)
    rng = np.random.default_rng([run.config.seed, agent.index, 1])
    for step in range(1, settings.steps + 1):
        rows = rng.integers(len(solutions), size=settings.batch_size).tolist()
        batch = _batch(layout, run.train.prompts(agent.index, rows), [solutions[i] for i in rows])
        with layout.use():
            state, loss = warm_start_update(
                state,
                batch,
                policy=policy,
                optimizer=optimizer,
                total_updates=settings.steps,
                base=base,
            )
        look = step % settings.check_every == 0 or step == settings.steps
        if not look:
            continue
        if settings.until_accuracy is None:
            report(Progress(step, float(fetch(loss)[0]), None))
            continue
        policies = with_base(state.params, base)
        accuracy = _train_accuracy(run, alone, layout, policies, settings.check_problems)
        report(Progress(step, float(fetch(loss)[0]), accuracy))
        if accuracy >= settings.until_accuracy:
            break
    return member(with_base(state.params, base), 0)


def _solutions(agent: Agent, problems: Problems) -> list[list[int]]:
    texts = [example.solution for example in problems.examples]
    return [[*ids, agent.tokenizer.eos_id] for ids in agent.tokenizer.encode_texts(texts)]


def _batch(layout: Layout, prompts, solutions) -> Answers:
    """This process's share of the rows `[R, N, ...]`, each answer with a prompt of its own, and
    filler that weighs nothing where they are uneven."""
    tokens, lengths = pad_prompts(prompts)
    responses, response_lengths = pad_responses([solutions], 1)
    mine = layout.mine(len(prompts))
    slots = layout.padded(local_share(len(prompts), layout.processes))

    def cut(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values[mine], [(0, slots - len(mine))] + [(0, 0)] * (values.ndim - 1))
        return padded.reshape(layout.local_rows, -1, *values.shape[1:])

    parts = (tokens, lengths, responses[0, :, 0], response_lengths[0, :, 0])
    prompts, lengths, *answers = map(cut, parts)
    prompt_of = np.broadcast_to(np.arange(lengths.shape[1], dtype=np.int32), lengths.shape)
    return Answers(*layout.put((prompts, np.maximum(lengths, 1), *answers, prompt_of), "rows"))


def _train_accuracy(run: Run, group: AgentGroup, layout: Layout, params, count: int) -> float:
    """Greedy accuracy on the first training problems: held-out ones stay unseen."""
    first = run.train.first(count)
    spec = dataclasses.replace(run.sampling_spec(group), sampler=Sampler(0.0))
    (graded,) = evaluate_group(
        group,
        params,
        first,
        run.verifier,
        spec=spec,
        samples=1,
        seed=run.config.seed,
        max_rows=run.config.sampling.max_rows,
        layout=layout,
        hosts=run.hosts,
    )
    return graded.summary(run.config.algorithm.max_reward)["accuracy"]


@functools.partial(
    jax.jit, static_argnames=("policy", "optimizer", "total_updates"), donate_argnames="state"
)
def warm_start_update(
    state: LearnerState,
    batch: Answers,
    *,
    policy: PolicySpec,
    optimizer: OptimizerConfig,
    total_updates: int,
    base: Params | None,
) -> tuple[LearnerState, jax.Array]:
    """One update on the mean negative log-prob of all solution tokens."""

    def loss_of(free, totals):
        params = with_base(free, base)
        (log_probs, _), totals = log_probs_into(totals, params, batch, policy, "none")
        count = jnp.maximum(objectives.count_tokens(batch.mask), 1)
        return (-jnp.where(batch.mask, log_probs, 0.0).sum() / count, totals), None

    def one_agent(state):
        free = state.params
        gradients, loss, _ = add_gradient(loss_of, free, no_gradient(free))
        return apply_gradients(state, gradients, make_optimizer(optimizer, total_updates))[0], loss

    return over_agents(one_agent)(state)
