"""The run from its first check to its summary."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.agents import (
    Agent,
    AgentGroup,
    base_params,
    initial_params,
    save_agent,
)
from hacpo_jax.config import Config
from hacpo_jax.errors import UserError
from hacpo_jax.evaluation import Graded, answer_rows
from hacpo_jax.models import Adapted, trained_axes
from hacpo_jax.models.lora import Params, base_of, member, trained, with_base
from hacpo_jax.parallel.hosts import ALONE, Hosts
from hacpo_jax.training.checkpoint import Checkpoints
from hacpo_jax.training.console import Console
from hacpo_jax.training.measure import measure
from hacpo_jax.training.places import abstract_learner, alone
from hacpo_jax.training.run import Run, prepare
from hacpo_jax.training.run_dir import RunDirectory
from hacpo_jax.training.saved_run import AGENTS, saved_steps
from hacpo_jax.training.step import Frozen, Policies, RunState, train_step
from hacpo_jax.training.tracking import check_trackers, open_trackers
from hacpo_jax.training.update import fresh_state
from hacpo_jax.training.warm_start import warm_start
from hacpo_jax.training.watch import Watch, rounding_warnings
from hacpo_jax.training.whose import work_of


def train(config: Config, console: Console, hosts: Hosts = ALONE) -> dict[str, Any]:
    """Run, or go on with, a whole run.

    Args:
      config: the run.
      console: shows what happens.
      hosts: the processes that drive the run, each of which calls this.

    Returns:
      The summary that is also written to `summary.json`.

    Raises:
      UserError: something in the config, the files it names or the run directory cannot work.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        if hosts.is_first:  # it alone shows the run
            check_trackers(config)
        directory = RunDirectory(config, hosts)
        stack.callback(directory.close)
        replaces = hosts.broadcast("run directory", directory.replaces)
        saved = directory.path / AGENTS
        run = prepare(config, None if replaces else saved, hosts)
        stack.callback(run.verifier.close)
        console.prepared(run)
        done = max(saved_steps(directory.path), default=0)
        if done > config.training.steps:
            remedy = f"{done} steps are done there already; choose that many or more"
            raise UserError("training.steps", config.training.steps, remedy)
        if replaces:
            console.warning(
                f"{config.run_dir} held a run that finished no step, of another config "
                f"({replaces}); this run takes its place"
            )
        hosts.barrier("prepared")  # whoever finds agents there does so before they are written
        directory.claim(config)
        if hosts.is_first:
            for agent in run.agents:
                save_agent(agent, saved / agent.name)
        hosts.barrier("agents saved")
        trackers = open_trackers(config, directory.path, done) if hosts.is_first else []
        for tracker in trackers:
            stack.callback(tracker.close)
        checkpoints = Checkpoints(directory.checkpoints, config.checkpoint.keep)
        stack.callback(checkpoints.close)
        state, frozen = start_or_resume(run, checkpoints, console)
        before = directory.seconds()  # of rows that are rewound too: that time was spent
        directory.rewind(state.step)
        for warning in rounding_warnings(config):
            console.warning(warning)
        watch = Watch({agent.name: agent.algorithm for agent in run.agents})

        while True:
            if _evaluation_due(config, state.step):
                rows, answers = evaluate(run, state, frozen, console)
                directory.log_evaluation(rows)
                directory.log_answers(answers)
                for tracker in trackers:
                    tracker.evaluation(rows, answers)
            if state.step >= config.training.steps:
                break
            state, result = train_step(run, state, frozen)
            spent = {"time/run": before + time.monotonic() - started}
            metrics = [{**row, **spent} for row in result.metrics]
            directory.log_metrics(metrics)
            directory.log_diagnostics(result.diagnostics)
            directory.write_rollouts(state.step, result.records)
            for tracker in trackers:
                tracker.metrics(metrics)
            console.step(state.step, metrics)
            for warning in watch.warnings(result.metrics, run.verifier.first_error_of):
                console.warning(warning)
            if state.step % config.checkpoint.every == 0 or state.step == config.training.steps:
                checkpoints.save(state)

        rows = directory.evaluations() if hosts.is_first else None
        rows = cast(list[dict[str, Any]], hosts.broadcast("evaluations", rows))
        summary = summarize(run, rows, state, before + time.monotonic() - started)
        directory.write_summary(summary)
    return summary


def start_or_resume(
    run: Run, checkpoints: Checkpoints, console: Console
) -> tuple[RunState, list[Frozen]]:
    """The state to go on from, and what stays as it is."""
    latest = checkpoints.latest()
    if latest is None:
        state, bases = start(run, console)
        checkpoints.save(state)
    else:
        console.resumed(latest)
        state = checkpoints.restore(abstract_state(run), latest)
        bases = [
            base_params(group, run.config.seed, run.param_dtype, run.layout(group))
            for group in run.groups
        ]
    wanted = [run.keeps_reference(group) for group in run.groups]
    first = checkpoints.restore(abstract_state(run), 0) if latest and any(wanted) else state
    # Updates reuse the buffers of the current parameters, so the frozen ones are copies.
    references = [
        jax.tree.map(jnp.copy, learner.params) if want else None
        for want, learner in zip(wanted, first.learners, strict=True)
    ]
    return state, [
        layout.keep(Frozen(*pair))
        for layout, *pair in zip(run.layouts, bases, references, strict=True)
    ]


def start(run: Run, console: Console) -> tuple[RunState, list[Params | None]]:
    """First weights, warm starts, and fresh optimizers; and what adapters are trained on."""
    free, bases = [], []
    for group in run.groups:
        with work_of(group.name):
            params = _first_params(run, group, console)
        free.append(trained(params))
        bases.append(base_of(params))
    return fresh_run_state(run, free), bases


def _first_params(run: Run, group: AgentGroup, console: Console) -> Params | Adapted:
    """What a group's agents start from, after their warm starts."""
    layout = run.layout(group)
    params = initial_params(group, run.config.seed, run.param_dtype, layout)
    if not any(agent.warm_start for agent in group.agents):
        return params
    members = [
        _warmed(run, agent, member(params, i), console) for i, agent in enumerate(group.agents)
    ]
    return with_base(layout.stacked(members, trained_axes(group.model)), base_of(params))


def _warmed(run: Run, agent: Agent, params: Params | Adapted, console: Console) -> Params:
    """What an agent trains, after its warm start if it has one."""
    if agent.warm_start is None:
        return trained(params)
    home = run.layouts[run.place(agent)[0]]
    with work_of(agent.name):
        warm = trained(warm_start(run, agent, alone(home), params, console.warm_start(agent)))
    return jax.device_put(warm, home.shardings(warm, trained_axes(agent.model)))


def fresh_run_state(run: Run, params) -> RunState:
    """Step 0 of a run from the parameters `[A, ...]` of each group."""
    learners = [
        layout.keep(fresh_state(layout, group.model, p, group.optimizer, run.total_updates(group)))
        for p, group, layout in zip(params, run.groups, run.layouts, strict=True)
    ]
    return RunState(0, 0, tuple(learners), _empty_history(run))


def abstract_state(run: Run) -> RunState:
    """Shapes of a run's state and where they lie, to restore a checkpoint into."""
    learners = [
        abstract_learner(layout, group, run.param_dtype, run.total_updates(group))
        for group, layout in zip(run.groups, run.layouts, strict=True)
    ]
    return RunState(0, 0, tuple(learners), _empty_history(run))


def _empty_history(run: Run) -> np.ndarray:
    window = run.config.algorithm.capability.window
    return np.full((window, len(run.agents)), np.nan, np.float32)


def _evaluation_due(config: Config, step: int) -> bool:
    every = config.evaluation.every
    return step in (0, config.training.steps) or (every is not None and step % every == 0)


def evaluate(
    run: Run, state: RunState, frozen: Sequence[Frozen], console: Console
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measure every agent on every benchmark: one row each, and rows of sample answers."""
    rows, samples = [], []
    policies = Policies(run.layouts, state.learners, frozen)
    for agent, name, answers in measure(run, policies):
        _check_grading(run, answers)
        draws = run.config.draws(name)
        scores = answers.summary(
            run.config.algorithm.max_reward,
            best_of=draws.best_of,
            majority_of=draws.majority_of,
        )
        head = {"step": state.step, "agent": agent.name, "benchmark": name}
        rows.append({**head, **scores})
        problems = run.benchmarks[name]
        count = min(run.config.evaluation.log_answers, len(problems))
        every = answer_rows(problems, range(count), answers.take(count))
        samples += [{**head, **row} for row in every if row["sample"] == 0]
    console.evaluation(state.step, rows)
    return rows, samples


def _check_grading(run: Run, answers: Graded) -> None:
    """A verifier that cannot work is found at the first evaluation, before anything is learned.

    Raises:
      UserError: no answer could be graded, or a reward is above the largest one.
    """
    name, max_reward = run.config.task.verifier.label, run.config.algorithm.max_reward
    if not answers.valid.any():
        remedy = f"could grade none of {answers.valid.size} answers; {run.verifier.first_error}"
        raise UserError("task.verifier.name", name, remedy)
    if answers.rewards.max() > max_reward:
        remedy = f"{name} gave a reward of {answers.rewards.max():g}; set the largest it can give"
        raise UserError("algorithm.max_reward", max_reward, remedy)


def summarize(
    run: Run, evaluations: list[dict[str, Any]], state: RunState, seconds: float
) -> dict[str, Any]:
    """What the run came to; `seconds` are those of all processes that it took one after another."""
    steps = run.config.training.steps
    agents = {}
    for agent in run.agents:
        rows = [row for row in evaluations if row["agent"] == agent.name]
        agents[agent.name] = {
            "algorithm": agent.algorithm.name,
            "eval": {
                when: {row["benchmark"]: row["accuracy"] for row in rows if row["step"] == step}
                for when, step in (("before", 0), ("after", steps))
            },
        }
    training = run.config.training
    answers = state.blocks * training.prompts_per_step * training.group_size * len(run.agents)
    return {
        "algorithm": "+".join(dict.fromkeys(agent.algorithm.name for agent in run.agents)),
        "agents": agents,
        "steps": steps,
        "rollouts": answers,
        "seconds": round(seconds, 1),
    }
