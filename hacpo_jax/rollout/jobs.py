"""What a rollout is asked and what it finds, on the host."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hacpo_jax.parallel.layout import Layout
from hacpo_jax.rollout.buckets import bucket
from hacpo_jax.rollout.decode import DecodeSpec, Drawn
from hacpo_jax.rollout.schedule import NONE


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """G answers of each of A agents to each of P prompts; those of this process.

    Args:
      tokens: `[A, P, G, C]` int32, the end token included; 0 after the end.
      log_probs: `[A, P, G, C]` float32 under the tempered policy; 0 after the end.
      lengths: `[A, P, G]` int32, tokens of each answer, the end token included.
      stopped: `[A, P, G]` bool, True for finish reason `stop`, False for `length`.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    lengths: np.ndarray
    stopped: np.ndarray


def pad_left(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Token ids `[N, width]`, each row moved to the right end."""
    padded = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        padded[i, width - len(row) :] = row
    return padded


class Jobs:
    """Prompts to answer, and their answers.

    A job is one prompt with as many of its answers as a slot has room for; its number is that of
    the prompt times `passes`, plus which of its passes it is.

    Args:
      prompts: P lists of token ids, none empty.
      key_data: `[A, P, G, 2]`, one PRNG key per answer.
      samples: answers of one agent in a slot.
      spec: how they are drawn.
      layout: whose processes share the prompts.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        key_data: np.ndarray,
        samples: int,
        spec: DecodeSpec,
        layout: Layout,
    ):
        self.agents, count, self._num_samples, _ = key_data.shape
        self.samples, passes = samples, -(-self._num_samples // samples)
        self._prompts, self._key_data, self._passes = prompts, key_data, passes
        self._width = bucket(max(map(len, prompts)))
        mine = layout.mine(count)
        self._row_of = {prompt: row for row, prompt in enumerate(mine.tolist())}
        shape = (self.agents, len(mine), passes * samples)
        self._found = Rollouts(
            tokens=np.zeros((*shape, spec.max_new_tokens), np.int32),
            log_probs=np.zeros((*shape, spec.max_new_tokens), np.float32),
            lengths=np.zeros(shape, np.int32),
            stopped=np.zeros(shape, bool),
        )
        self.queues = [
            [p * passes + i for p in range(h, count, layout.processes) for i in range(passes)]
            for h in range(layout.processes)
        ]
        """Jobs of each process, in order."""

    def read(self, jobs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What `prefill` is given.

        Args:
          jobs: `[n]`, with `NONE` for fillers.

        Returns:
          Prompts `[n, S]`, their lengths, keys `[A, n, G, 2]`, and bool `[n]`, False at fillers.
        """
        active = jobs != NONE
        numbers, passes = np.divmod(np.where(active, jobs, 0), self._passes)
        pairs = zip(numbers, active, strict=True)
        rows = [self._prompts[prompt] if real else [0] for prompt, real in pairs]
        lengths = np.array([len(row) for row in rows], np.int32)
        samples = passes[:, None] * self.samples + np.arange(self.samples)
        # What the last of several passes lacks is answered twice.
        samples = np.minimum(samples, self._num_samples - 1)
        keys = self._key_data[:, numbers[:, None], samples]
        return pad_left(rows, self._width), lengths, keys, active

    def write(self, jobs: np.ndarray, before: np.ndarray, drawn: Drawn) -> None:
        """Add tokens to answers.

        Args:
          jobs: `[n]` of this process, with `NONE` where there is nothing to add.
          before: `[n]` tokens that those answers of each job had that had not ended.
          drawn: numpy arrays `[A, n, G, T]`.
        """
        found, longest = self._found, drawn.counts.max(axis=(0, 2))
        for i in np.flatnonzero((jobs != NONE) & (longest > 0)):
            prompt, number = divmod(int(jobs[i]), self._passes)
            samples = slice(number * self.samples, (number + 1) * self.samples)
            row, new = self._row_of[prompt], slice(before[i], before[i] + longest[i])
            found.tokens[:, row, samples, new] = drawn.tokens[:, i, :, : longest[i]]
            found.log_probs[:, row, samples, new] = drawn.log_probs[:, i, :, : longest[i]]
            found.lengths[:, row, samples] += drawn.counts[:, i]
            found.stopped[:, row, samples] |= drawn.stopped[:, i]

    def answers(self) -> Rollouts:
        """All that has been written."""
        wanted = {name: x[:, :, : self._num_samples] for name, x in vars(self._found).items()}
        return Rollouts(**wanted)
