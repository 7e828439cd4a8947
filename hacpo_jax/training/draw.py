"""Steps 1 to 3 of algorithm 1: sample prompts, answer them, verify."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from hacpo_jax import objectives
from hacpo_jax.agents import AgentGroup
from hacpo_jax.models import Adapted
from hacpo_jax.models.lora import Params
from hacpo_jax.parallel.shares import gather_arrays, whole
from hacpo_jax.rollout import Rollouts, answer, answer_keys
from hacpo_jax.tasks.problems import step_indices
from hacpo_jax.training.drawn import Drawn, answer_texts, join, num_drifted
from hacpo_jax.training.metrics import StepTimes
from hacpo_jax.training.objective import Feedback, make_objective
from hacpo_jax.training.rescore import rescore
from hacpo_jax.training.run import Run


def draw(
    run: Run, policies: Sequence[Params | Adapted], step: int, block: int, times: StepTimes
) -> tuple[Drawn, np.ndarray, int]:
    """Everything drawn for one step, and what is learned from.

    With `training.prompt_rounds` above 1, further problems are drawn while fewer than P of them
    teach any learner something (dynamic sampling, DAPO, arXiv 2503.14476).

    Args:
      run: the run.
      policies: parameters of every group.
      step: steps done.
      block: blocks of P problems drawn before in the run.
      times: where seconds are counted.

    Returns:
      All answers, the places `[P]` among their problems to learn from, and the next block.
    """
    training, parts = run.config.training, []
    count, rounds = training.prompts_per_step, training.prompt_rounds
    while True:
        indices = step_indices(run.config.seed, len(run.train), count, block)
        parts.append(_draw_block(run, policies, indices, step, block, times))
        block += 1
        if rounds == 1:
            return parts[0], np.arange(count), block
        drawn = join(parts)
        places, found = choose_prompts(drawn.indices, teaches(run, drawn), count)
        if found == count or len(parts) == rounds:
            return drawn, places, block


def choose_prompts(indices: np.ndarray, wanted: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Places of `count` different problems: wanted ones first in order, then others in order.

    Args:
      indices: `[N]` problems, at least `count` different ones; a later pass over the data may
        bring one again.
      wanted: bool `[N]`.
      count: how many to choose.

    Returns:
      Their places, in order, and how many of them are wanted.
    """
    _, first = np.unique(indices, return_index=True)
    places = np.sort(first)
    chosen = np.concatenate([places[wanted[places]], places[~wanted[places]]])[:count]
    return np.sort(chosen), int(wanted[chosen].sum())


def teaches(run: Run, drawn: Drawn) -> np.ndarray:
    """bool `[P]`, the problems whose answers have an advantage, or a rescue, for any learner."""
    count = len(run.agents)
    rewards, valid = jnp.asarray(drawn.rewards), jnp.asarray(drawn.valid)
    feedback = Feedback(rewards, valid, objectives.group_advantages(rewards, valid=valid))
    solved = jnp.asarray(drawn.successes(run.config.algorithm.max_reward))
    gate = np.asarray(objectives.success_gate(solved, valid=valid))
    found = np.zeros(len(drawn.indices), bool)
    for agent in run.agents:
        objective, k = make_objective(agent.algorithm, count), agent.index
        advantages = np.asarray(objective.advantages(feedback, jnp.ones((count, count)), k))
        used = advantages if agent.algorithm.shares_answers else advantages[k : k + 1]
        found |= (used != 0).any(axis=(0, 2))
        if agent.algorithm.rescue_coef:
            found |= gate[k]
    return found


def _draw_block(
    run: Run,
    policies: Sequence[Params | Adapted],
    indices: np.ndarray,
    step: int,
    block: int,
    times: StepTimes,
) -> Drawn:
    """Every agent answers; answers are graded while others still draw."""
    samples, layout = run.config.training.group_size, run.layouts[0]
    mine = layout.mine(len(indices))
    gaps = np.zeros(len(run.agents)) if run.rescores else None
    golds = [run.train.examples[i].answer for i in indices[mine] for _ in range(samples)]
    texts, gradings = {}, {}

    def draw_group(g: int, group: AgentGroup) -> Rollouts:
        with times.measure("rollout", g):
            rollouts = _answer(run, group, policies[g], indices, step)
        if gaps is not None:
            with times.measure("rescore", g):
                rollouts, found = rescore(run, group, policies[g], rollouts, indices)
            gaps[group.indices] = found
        for member, agent in enumerate(group.agents):
            texts[agent.index] = answer_texts(group, rollouts, member)
            pairs = list(zip(texts[agent.index], golds, strict=True))
            gradings[agent.index] = run.verifier.submit(pairs, source=agent.name)
        return rollouts

    rollouts = run.each_group(draw_group)
    with times.measure("verify"):
        verdicts = [gradings[agent.index].result() for agent in run.agents]
    owners = np.arange(len(indices)) % layout.processes
    found, drift = _of_all(run, rollouts, verdicts, owners, f"block {block}")
    if gaps is not None:
        parts = gather_arrays(run.hosts, f"block {block} gaps", {"gaps": gaps})
        gaps = np.max([part["gaps"] for part in parts], axis=0)
    return Drawn(
        indices=indices,
        owners=owners,
        process=run.hosts.index,
        rollouts=tuple(rollouts),
        texts=tuple(texts[agent.index] for agent in run.agents),
        drift=drift,
        gaps=gaps,
        **found,
    )


def _of_all(
    run: Run, rollouts: Sequence[Rollouts], verdicts: list[list], owners: np.ndarray, name: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """How the answers of all processes did, and the share of each agent's that drift."""
    first = rollouts[0].lengths
    shape = (len(run.agents), *first.shape[1:])  # [A, p, G]
    lengths, sampled = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    stopped, drifted = np.zeros(shape, bool), np.zeros(len(run.agents), np.int64)
    for group, own in zip(run.groups, rollouts, strict=True):
        lengths[group.indices], stopped[group.indices] = own.lengths, own.stopped
        sampled[group.indices] = own.log_probs.sum(axis=-1)
        drifted[group.indices] = [num_drifted(group, own, m) for m in range(len(group.agents))]
    rewards = np.array([[v.reward for v in row] for row in verdicts], np.float32).reshape(shape)
    valid = np.array([[v.valid for v in row] for row in verdicts], bool).reshape(shape)
    found = whole(
        run.hosts,
        name,
        {
            "rewards": rewards,
            "valid": valid & (lengths > 0),
            "lengths": lengths,
            "stopped": stopped,
            "sampled": sampled,
        },
        owners,
    )
    parts = gather_arrays(run.hosts, f"{name} drift", {"drifted": drifted})
    total = np.sum([part["drifted"] for part in parts], axis=0)
    return found, total / max(found["lengths"][0].size, 1)


def _answer(
    run: Run, group: AgentGroup, params: Params | Adapted, indices: np.ndarray, step: int
) -> Rollouts:
    keys = answer_keys(
        run.config.seed, group.indices, step, indices.tolist(), run.config.training.group_size
    )
    return answer(
        params,
        run.train.prompts(group.indices[0], indices.tolist()),
        keys,
        run.sampling_spec(group),
        max_rows=run.config.sampling.max_rows,
        layout=run.layout(group),
    )
