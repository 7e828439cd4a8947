"""A step's answers with their verdicts, on the host."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.exchange import drift, response_texts
from hacpo_jax.rollout import Rollouts


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What all agents answered to P problems.

    Args:
      indices: `[P]` of the problems among the training problems.
      rollouts: per group.
      texts: per agent, P·G answers without end tokens.
      rewards: `[A, P, G]`.
      valid: `[A, P, G]`, False if the verifier failed or the answer has no token.
      gaps: `[A]`, largest difference between sampler's and trainer's log-prob of one token; None
        unless the trainer scored the answers again.
    """

    indices: np.ndarray
    rollouts: tuple[Rollouts, ...]
    texts: tuple[list[str], ...]
    rewards: np.ndarray
    valid: np.ndarray
    gaps: np.ndarray | None

    def successes(self, max_reward: float) -> np.ndarray:
        """`[A, P, G]`, which answers count as solved: valid, with more than half of the reward."""
        return self.valid & (self.rewards > 0.5 * max_reward)

    def take(self, places: np.ndarray) -> "Drawn":
        """The answers to some of the problems, by place among the P."""
        samples = self.rewards.shape[2]
        return Drawn(
            indices=self.indices[places],
            rollouts=tuple(
                Rollouts(**{name: values[:, places] for name, values in vars(r).items()})
                for r in self.rollouts
            ),
            texts=tuple(
                [rows[p * samples + g] for p in places for g in range(samples)]
                for rows in self.texts
            ),
            rewards=self.rewards[:, places],
            valid=self.valid[:, places],
            gaps=self.gaps,
        )


def join(parts: Sequence[Drawn]) -> Drawn:
    """Answers to the problems of all parts, in order."""
    gaps = [part.gaps for part in parts if part.gaps is not None]
    groups = zip(*(part.rollouts for part in parts), strict=True)
    agents = zip(*(part.texts for part in parts), strict=True)
    return Drawn(
        indices=np.concatenate([part.indices for part in parts]),
        rollouts=tuple(
            Rollouts(**{name: _joined([vars(r)[name] for r in rounds]) for name in vars(rounds[0])})
            for rounds in groups
        ),
        texts=tuple([text for rows in rounds for text in rows] for rounds in agents),
        rewards=_joined([part.rewards for part in parts]),
        valid=_joined([part.valid for part in parts]),
        gaps=np.max(gaps, axis=0) if gaps else None,
    )


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays, axis=1)


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
