"""Sharing one step's answers: what every learner of a group sees of all agents."""

import dataclasses

import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.exchange import Exchange, Rollout, drift, reencode, response_texts
from hacpo_jax.rollout import Rollouts
from hacpo_jax.training.batches import LearnerView, pad_prompts, pad_responses
from hacpo_jax.training.rescore import own_log_probs
from hacpo_jax.training.run import Run


@dataclasses.dataclass(frozen=True)
class Feedback:
    """What verifier and objective say of a step's answers.

    Args:
      rewards: `[A, P, G]`.
      valid: `[A, P, G]`, False if the verifier failed or the answer has no token.
      advantages: `[A learner, A source, P, G]`.
    """

    rewards: np.ndarray
    valid: np.ndarray
    advantages: np.ndarray


def answer_ids(rollouts: Rollouts, member: int) -> list[list[int]]:
    """Sampled ids of a group's agent number `member`, P·G lists, end tokens included."""
    tokens = rollouts.tokens[member].reshape(-1, rollouts.tokens.shape[-1])
    return [
        row[:length].tolist()
        for row, length in zip(tokens, rollouts.lengths[member].flat, strict=True)
    ]


def answer_texts(group: AgentGroup, rollouts: Rollouts, member: int) -> list[str]:
    """Texts of the same answers, without end tokens."""
    stopped = rollouts.stopped[member].reshape(-1).tolist()
    return response_texts(group.tokenizer, answer_ids(rollouts, member), stopped)


def answer_drift(group: AgentGroup, rollouts: Rollouts, member: int) -> float:
    """Share of an agent's answers that decoding and encoding would change: its own learner keeps
    their ids, but a peer never sees exactly them."""
    stopped = rollouts.stopped[member].reshape(-1).tolist()
    return drift(group.tokenizer, answer_ids(rollouts, member), stopped).share


def make_records(
    run: Run,
    group: AgentGroup,
    member: int,
    rollouts: Rollouts,
    texts: list[str],
    feedback: Feedback,
    indices: np.ndarray,
    step: int,
) -> list[Rollout]:
    """The records that one agent publishes, prompt by prompt."""
    agent = group.agents[member]
    ids = answer_ids(rollouts, member)
    lengths, stopped = rollouts.lengths[member].reshape(-1), rollouts.stopped[member].reshape(-1)
    log_probs = rollouts.log_probs[member].reshape(len(ids), -1)
    rewards = feedback.rewards[agent.index].reshape(-1)
    valid = feedback.valid[agent.index].reshape(-1)
    total = log_probs.sum(axis=1)  # zero after the end
    at_end = np.take_along_axis(log_probs, np.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
    kept = lengths - stopped
    mean = total / np.maximum(lengths, 1)
    mean_without_eos = np.where(kept > 0, (total - stopped * at_end) / np.maximum(kept, 1), 0.0)
    num_samples = run.config.training.group_size
    return [
        Rollout(
            step=step,
            prompt_id=run.train.examples[indices[i // num_samples]].id,
            prompt=run.train.texts[indices[i // num_samples]],
            source=agent.name,
            index=i % num_samples,
            response=texts[i],
            reward=rewards[i],
            valid=valid[i],
            success=rewards[i] > 0.5 * run.config.algorithm.max_reward,
            finish_reason="stop" if stopped[i] else "length",
            tokens=tuple(ids[i]),
            behavior_mean_log_prob=mean[i],
            behavior_mean_log_prob_without_eos=mean_without_eos[i],
        )
        for i in range(len(ids))
    ]


def learner_views(
    run: Run,
    group: AgentGroup,
    rollouts: Rollouts,
    reference,
    exchange: Exchange,
    feedback: Feedback,
    indices: np.ndarray,
) -> tuple[list[LearnerView], dict[str, float]]:
    """What each learner of a group trains on in this step.

    Peers' answers are put into the group's tokens once for all its learners.

    Args:
      run: the run.
      group: the learners.
      rollouts: their own answers.
      reference: parameters of their frozen start, `[A, ...]`, or None without a KL penalty.
      exchange: every agent's records of the step.
      feedback: rewards and advantages.
      indices: `[P]` problems of the step.

    Returns:
      One view per learner, and counts of what was shared: `peer/dropped`, the share of peers'
      answers left out as too long, and `peer/length_ratio`, learner's tokens per source's token.
    """
    shares = run.config.algorithm.shares_answers
    records = exchange.collect(Rollout, learner=group.agents[0].name, own=True)
    by_source = {agent.name: [r for r in records if r.source == agent.name] for agent in run.agents}
    prompts, prompt_lengths = pad_prompts(run.train.prompts(group.indices[0], indices.tolist()))
    longest = _peer_limit(run, group, int(prompt_lengths.max()))
    rows: list[list[list[int]]] = []
    dropped = peers = ours = theirs = 0
    for source in run.agents:
        found = by_source[source.name]
        if source.index in group.indices:
            rows.append([list(r.tokens) for r in found])
            continue
        if not shares:
            rows.append([[] for _ in found])
            continue
        encoded = reencode(
            [r.response for r in found],
            [r.finish_reason == "stop" for r in found],
            source.tokenizer,
            group.tokenizer,
            [r.tokens for r in found],
        )
        peers += len(encoded)
        ours += sum(map(len, encoded))
        theirs += sum(r.num_tokens for r in found)
        dropped += sum(len(row) > longest for row in encoded)
        rows.append([row if len(row) <= longest else [] for row in encoded])
    responses, lengths = pad_responses(rows, run.config.training.group_size)
    lengths = np.where(feedback.valid, lengths, 0)
    shape = lengths.shape
    with_eos, without_eos, stopped = (
        np.array([value(r) for agent in run.agents for r in by_source[agent.name]]).reshape(shape)
        for value in (
            lambda r: r.behavior_mean_log_prob,
            lambda r: r.behavior_mean_log_prob_without_eos,
            lambda r: r.finish_reason == "stop",
        )
    )
    if reference is None:
        reference_log_probs = np.zeros_like(rollouts.log_probs)
    else:
        reference_log_probs = own_log_probs(run, group, reference, rollouts, indices)
    views = []
    for member, learner in enumerate(group.agents):
        own = (np.arange(len(run.agents)) == learner.index)[:, None, None]
        keep_eos = own | run.config.algorithm.eos_in_ratio
        views.append(
            LearnerView(
                learner=learner.index,
                prompts=prompts,
                prompt_lengths=prompt_lengths,
                responses=responses,
                response_lengths=np.where(keep_eos, lengths, np.maximum(lengths - stopped, 0)),
                advantages=feedback.advantages[learner.index],
                behavior_mean_log_prob=np.where(keep_eos, with_eos, without_eos).astype(np.float32),
                old_log_probs=_fit(rollouts.log_probs[member], responses.shape[-1]),
                reference_log_probs=_fit(reference_log_probs[member], responses.shape[-1]),
            )
        )
    report = {
        "peer/dropped": dropped / max(peers, 1),
        "peer/length_ratio": ours / max(theirs, 1),
    }
    return views, report


def _peer_limit(run: Run, group: AgentGroup, longest_prompt: int) -> int:
    """Longest peer's answer that a group takes, in its own tokens."""
    room = group.model.max_position_embeddings - longest_prompt
    limit = run.config.algorithm.max_peer_tokens
    return room if limit is None else min(limit, room)


def _fit(log_probs: np.ndarray, width: int) -> np.ndarray:
    """`[P, G, C]` cut or padded with zeros to `[P, G, width]`; what is cut is beyond every end."""
    cut = log_probs[..., :width]
    return np.pad(cut, [(0, 0), (0, 0), (0, width - cut.shape[-1])])
