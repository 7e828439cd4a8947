"""Algorithm 1 of HACPO: one step of all agents."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax import objectives
from hacpo_jax.agents import AgentGroup
from hacpo_jax.exchange import Rollout
from hacpo_jax.models import Adapted
from hacpo_jax.models.lora import Params, with_base
from hacpo_jax.parallel.layout import Layout, fetch
from hacpo_jax.training.cut import cut_updates, updates_of
from hacpo_jax.training.diagnostics import diagnose, is_due
from hacpo_jax.training.draw import draw
from hacpo_jax.training.gather import learner_views
from hacpo_jax.training.metrics import Metrics, StepTimes, own_metrics, update_metrics
from hacpo_jax.training.publish import make_records, publish
from hacpo_jax.training.run import Run
from hacpo_jax.training.scoring import Cut
from hacpo_jax.training.update import LearnerState, MiniBatch, update


@dataclasses.dataclass(frozen=True)
class RunState:
    """Everything that changes while a run runs, and is saved.

    Args:
      step: steps done; with the seed it fixes all samples to come.
      blocks: blocks of P problems drawn; with the seed it fixes the problems to come.
      learners: one state per group.
      history: `[K, A]` capability of the last K steps, NaN where unknown.
    """

    step: int
    blocks: int
    learners: tuple[LearnerState, ...]
    history: np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    """What a group's policies are, or were, that no update changes.

    Args:
      base: what adapters are trained on; None where all parameters are trained.
      reference: trained parameters `[A, ...]` at the start, where a KL to it is taken.
    """

    base: Params | None = None
    reference: Params | None = None

    def reference_policy(self) -> Params | Adapted | None:
        """Parameters of the policies at the start, if they are kept."""
        return None if self.reference is None else with_base(self.reference, self.base)


class Policies(Sequence[Params | Adapted]):
    """What the policies of every group compute with, taken from where it is kept when asked for.

    Args:
      layouts: of the groups.
      learners: their states.
      frozen: what stays as it is.
    """

    def __init__(
        self,
        layouts: Sequence[Layout],
        learners: Sequence[LearnerState],
        frozen: Sequence[Frozen],
    ):
        self._layouts, self._learners, self._frozen = layouts, learners, frozen

    def __len__(self) -> int:
        return len(self._layouts)

    def __getitem__(self, group: int) -> Params | Adapted:  # type: ignore[override]
        if not 0 <= group < len(self):
            raise IndexError(group)
        whole = with_base(self._learners[group].params, self._frozen[group].base)
        return self._layouts[group].take(whole)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a step leaves behind besides the new state."""

    metrics: list[Metrics]  # one per agent
    records: list[Rollout]
    diagnostics: list[dict[str, Any]]  # one per agent, on the steps that are looked at


def train_step(run: Run, state: RunState, frozen: Sequence[Frozen]) -> tuple[RunState, StepResult]:
    """Sample, verify, compare, share, learn.

    Args:
      run: the run.
      state: after the previous step; its parameters and optimizer states are donated.
      frozen: per group, what stays as it is.

    Returns:
      The next state, and the step's metrics and records.
    """
    times, step = StepTimes(len(run.groups)), state.step + 1

    # 1. Sample P prompts. 2. Every agent draws G responses to each. 3. Verify.
    policies = Policies(run.layouts, state.learners, frozen)
    drawn, chosen, blocks = draw(run, policies, state.step, state.blocks, times)
    records = [make_records(run, agent, drawn, step) for agent in run.agents]

    # 4. Update capability windows.
    rewards, valid = jnp.asarray(drawn.rewards), jnp.asarray(drawn.valid)
    capability = objectives.capability(rewards, valid=valid)
    history = objectives.push_history(jnp.asarray(state.history), *capability)
    ratio, history = _capability_ratio(run, history, state.step), np.asarray(history)

    # 5. Every learner: gather own and cross samples in its own tokens, and update once per
    # mini-batch. What is shared is fixed before any update.
    used = drawn.take(chosen)
    exchange = publish(run, records, np.flatnonzero(np.isin(drawn.mine, chosen)))

    def share(g: int, group: AgentGroup) -> _Shared:
        params, wanted = policies[g], group.algorithm.kl_coef or is_due(run, step)
        reference = run.layouts[g].take(frozen[g].reference_policy()) if wanted else None
        with times.measure("share", g):
            views, counts = learner_views(
                run, group, used, exchange, ratio, params, reference, state.step
            )
        looks = []
        if is_due(run, step):
            with times.measure("diagnose", g):
                looks = diagnose(run, group, params, used, views, step)
        updates = updates_of(run, group, state.step)
        batches = cut_updates(run, group, used, views, updates, f"step {step} rows of {group.name}")
        return _Shared(counts, looks, batches)

    def learn(g: int, group: AgentGroup) -> tuple[LearnerState, list[Metrics]]:
        with times.measure("update", g):
            layout = run.layouts[g]
            learner, base = layout.take(state.learners[g]), layout.take(frozen[g].base)
            learner, found = _update_group(run, group, learner, base, shared[g].batches)
            return layout.keep(learner), found

    shared = run.each_group(share, talks=True)
    learned, rows = run.each_group(learn), []
    for agent in run.agents:
        g, member = run.place(agent)
        learner, updates = learned[g]
        rows.append(
            {
                "step": step,
                "agent": agent.name,
                **own_metrics(run, agent, drawn, history, ratio),
                **update_metrics(updates, member, agent, run),
                **shared[g].counts[member],
                **({} if drawn.gaps is None else {"sampler_gap": float(drawn.gaps[agent.index])}),
                "drift": float(drawn.drift[agent.index]),
                "prompts_left_out": len(drawn.indices) - len(chosen),
                "updates/skipped": int(fetch(learner.skipped)[member]),
                **times.of(g, int(drawn.lengths[agent.index].sum())),
            }
        )
    new_state = RunState(step, blocks, tuple(learner for learner, _ in learned), history)
    diagnostics = [row for one in shared for row in one.looks]
    return new_state, StepResult(rows, [r for own in records for r in own], diagnostics)


@dataclasses.dataclass(frozen=True)
class _Shared:
    """What one group learns from in a step."""

    counts: list[dict[str, float | None]]  # of its learners
    looks: list[dict[str, Any]]  # of its learners, on the steps that are looked at
    batches: Iterator[tuple[MiniBatch, list[Cut]]]


def _capability_ratio(run: Run, history: jax.Array, step: int) -> jax.Array:
    settings = run.config.algorithm.capability
    if step < settings.warmup_steps:
        return jnp.ones((len(run.agents), len(run.agents)))
    bounds = (settings.ratio_min, settings.ratio_max)
    return objectives.capability_ratio(history, floor=settings.floor, bounds=bounds)


def _update_group(
    run: Run,
    group: AgentGroup,
    learner: LearnerState,
    base: Params | None,
    batches: Iterator[tuple[MiniBatch, list[Cut]]],
) -> tuple[LearnerState, list[Metrics]]:
    """One update of all the group's agents per mini-batch; metrics `[A]` of each update."""
    layout, spec, learners = run.layout(group), run.update_spec(group), np.array(group.indices)
    found = []
    with layout.use():
        for u, rows in enumerate(batches):
            batch, cuts = layout.put(rows, "agents", "rows")
            learner, metrics = update(
                learner, batch, cuts, learners, np.int32(u), spec=spec, base=base
            )
            found.append(metrics)
        return learner, fetch(found)
