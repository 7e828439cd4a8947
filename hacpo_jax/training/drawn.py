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

    Every process knows how all answers did, and holds those to its own p problems.

    Args:
      indices: `[P]` of the problems among the training problems.
      owners: `[P]` the process that holds the answers to each.
      process: this one.
      rollouts: per group, to the p problems of this process.
      texts: per agent, p·G answers without end tokens.
      rewards: `[A, P, G]`.
      valid: `[A, P, G]`, False if the verifier failed or the answer has no token.
      lengths: `[A, P, G]` tokens.
      stopped: `[A, P, G]`, False where the answer was cut off.
      sampled: `[A, P, G]` sum of the log-probs of the answer's tokens.
      drift: `[A]` share of answers that decoding and encoding would change: their own learner
        keeps the ids, but a peer never sees exactly them.
      gaps: `[A]`, largest difference between sampler's and trainer's log-prob of one token; None
        unless the trainer scored the answers again.
    """

    indices: np.ndarray
    owners: np.ndarray
    process: int
    rollouts: tuple[Rollouts, ...]
    texts: tuple[list[str], ...]
    rewards: np.ndarray
    valid: np.ndarray
    lengths: np.ndarray
    stopped: np.ndarray
    sampled: np.ndarray
    drift: np.ndarray
    gaps: np.ndarray | None

    @property
    def mine(self) -> np.ndarray:
        """`[p]` places among the P problems of those whose answers are here."""
        return np.flatnonzero(self.owners == self.process)

    @property
    def share(self) -> int:
        """Problems of the process that has most of them."""
        return int(np.bincount(self.owners).max())

    def successes(self, max_reward: float) -> np.ndarray:
        """`[A, P, G]`, which answers count as solved: valid, with more than half of the reward."""
        return self.valid & (self.rewards > 0.5 * max_reward)

    def take(self, places: np.ndarray) -> "Drawn":
        """The answers to some of the problems, by place among the P."""
        samples = self.rewards.shape[2]
        here = np.searchsorted(self.mine, places[self.owners[places] == self.process])
        return dataclasses.replace(
            self,
            indices=self.indices[places],
            owners=self.owners[places],
            rollouts=tuple(
                Rollouts(**{name: values[:, here] for name, values in vars(r).items()})
                for r in self.rollouts
            ),
            texts=tuple(
                [rows[p * samples + g] for p in here for g in range(samples)] for rows in self.texts
            ),
            **{name: getattr(self, name)[:, places] for name in OF_ALL},
        )


OF_ALL = ("rewards", "valid", "lengths", "stopped", "sampled")
"""What every process knows of all answers."""


def join(parts: Sequence[Drawn]) -> Drawn:
    """Answers to the problems of all parts, in order."""
    gaps = [part.gaps for part in parts if part.gaps is not None]
    groups = zip(*(part.rollouts for part in parts), strict=True)
    agents = zip(*(part.texts for part in parts), strict=True)
    return Drawn(
        indices=np.concatenate([part.indices for part in parts]),
        owners=np.concatenate([part.owners for part in parts]),
        process=parts[0].process,
        rollouts=tuple(
            Rollouts(**{name: _joined([vars(r)[name] for r in rounds]) for name in vars(rounds[0])})
            for rounds in groups
        ),
        texts=tuple([text for rows in rounds for text in rows] for rounds in agents),
        drift=np.average([part.drift for part in parts], 0, [len(p.indices) for p in parts]),
        gaps=np.max(gaps, axis=0) if gaps else None,
        **{name: _joined([getattr(part, name) for part in parts]) for name in OF_ALL},
    )


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays, axis=1)


def answer_ids(rollouts: Rollouts, member: int) -> list[list[int]]:
    """Sampled ids of a group's agent number `member`, p·G lists, end tokens included."""
    tokens = rollouts.tokens[member].reshape(-1, rollouts.tokens.shape[-1])
    return [
        row[:length].tolist()
        for row, length in zip(tokens, rollouts.lengths[member].flat, strict=True)
    ]


def answer_texts(group: AgentGroup, rollouts: Rollouts, member: int) -> list[str]:
    """Texts of the same answers, without end tokens."""
    stopped = rollouts.stopped[member].reshape(-1).tolist()
    return response_texts(group.tokenizer, answer_ids(rollouts, member), stopped)


def num_drifted(group: AgentGroup, rollouts: Rollouts, member: int) -> int:
    """How many of an agent's answers decoding and encoding would change."""
    stopped = rollouts.stopped[member].reshape(-1).tolist()
    return drift(group.tokenizer, answer_ids(rollouts, member), stopped).changed
