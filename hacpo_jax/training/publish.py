"""Records of a step's answers, and the exchange that holds them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hacpo_jax import objectives
from hacpo_jax.agents import Agent
from hacpo_jax.exchange import Exchange, Rollout, Trace, token_spans
from hacpo_jax.training.drawn import Drawn, answer_ids
from hacpo_jax.training.objective import peer_records
from hacpo_jax.training.run import Run


def publish(run: Run, records: Sequence[Sequence[Rollout]], places: np.ndarray) -> Exchange:
    """The exchange of a step, with this process's answers.

    Args:
      run: the run.
      records: of each agent, from `make_records`.
      places: those of the problems whose answers are learned from, among this process's.
    """
    exchange, samples = (
        Exchange([agent.name for agent in run.agents]),
        run.config.training.group_size,
    )
    for agent, own in zip(run.agents, records, strict=True):
        chosen = [own[p * samples + g] for p in places for g in range(samples)]
        exchange.publish(agent.name, chosen)
    return exchange


def make_records(run: Run, agent: Agent, drawn: Drawn, step: int) -> list[Rollout]:
    """One agent's answers, prompt by prompt, that this process has: as traces if any learner takes
    those."""
    g, member = run.place(agent)
    rollouts, texts = drawn.rollouts[g], drawn.texts[agent.index]
    ids = answer_ids(rollouts, member)
    stopped = rollouts.stopped[member].reshape(-1)
    log_probs = rollouts.log_probs[member].reshape(len(ids), -1)
    mean, mean_without_eos = _means(log_probs, rollouts.lengths[member].reshape(-1), stopped)
    mine = drawn.mine
    rewards, valid = drawn.rewards[agent.index, mine], drawn.valid[agent.index, mine]
    scale = agent.algorithm.grpo.scale
    advantages = objectives.group_advantages(jnp.asarray(rewards), scale=scale, valid=valid)
    advantages = np.asarray(advantages).reshape(-1)
    success = drawn.successes(run.config.algorithm.max_reward)[agent.index, mine].reshape(-1)
    rewards, valid = rewards.reshape(-1), valid.reshape(-1)
    traced = any(peer_records(learner.algorithm) is Trace for learner in run.agents)
    num_samples = run.config.training.group_size
    records = []
    for i, row in enumerate(ids):
        problem = drawn.indices[mine[i // num_samples]]
        fields: dict[str, Any] = {
            "step": step,
            "prompt_id": run.train.examples[problem].id,
            "prompt": run.train.texts[problem],
            "source": agent.name,
            "index": i % num_samples,
            "response": texts[i],
            "reward": rewards[i],
            "valid": valid[i],
            "success": success[i],
            "finish_reason": "stop" if stopped[i] else "length",
            "tokens": tuple(row),
            "behavior_mean_log_prob": mean[i],
            "behavior_mean_log_prob_without_eos": mean_without_eos[i],
            "group_advantage": advantages[i],
        }
        if traced:
            spans = token_spans(agent.tokenizer, row, ended=bool(stopped[i]))
            values = log_probs[i, : len(row)].tolist()
            records.append(Trace(**fields, log_probs=tuple(values), spans=tuple(spans)))
        else:
            records.append(Rollout(**fields))
    return records


def _means(
    log_probs: np.ndarray, lengths: np.ndarray, stopped: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean log-prob `[N]` of each answer `[N, C]`, with its end token and without."""
    total = log_probs.sum(axis=1)  # zero after the end
    at_end = np.take_along_axis(log_probs, np.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
    kept = lengths - stopped
    without = np.where(kept > 0, (total - stopped * at_end) / np.maximum(kept, 1), 0.0)
    return total / np.maximum(lengths, 1), without
