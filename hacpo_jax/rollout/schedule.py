"""Which prompt is in which slot, decided on the host.

Every process decides for all of them from values that are the same everywhere, so that all launch
the same programs in the same order.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

NONE = -1
"""In place of a job: an empty slot, or a filler among those that enter."""


@dataclasses.dataclass(frozen=True)
class Entering:
    """Jobs that enter slots together, as many places for each part of the slots.

    Args:
      jobs: `[n]`, those of one part after those of another; `NONE` at a filler.
      slots: `[n]` the slot of each within its part; the number of all slots for a filler.
    """

    jobs: np.ndarray
    slots: np.ndarray


class Schedule:
    """Gives every job a slot once.

    Args:
      queues: jobs of every process, in the order in which they enter.
      owners: `[R]` the process of each of the equal parts that the slots are in.
      slots: N, a multiple of R.
    """

    def __init__(self, queues: Sequence[Sequence[int]], owners: np.ndarray, slots: int):
        self._queues = [deque(jobs) for jobs in queues]
        self._owners = owners
        self.jobs = np.full(slots, NONE)
        """`[N]` the job in each slot, or `NONE`."""

    @property
    def unfinished(self) -> bool:
        """Whether a job waits or is in a slot."""
        return self.waiting > 0 or bool((self.jobs != NONE).any())

    @property
    def waiting(self) -> int:
        """Jobs that no slot has had yet."""
        return sum(map(len, self._queues))

    @property
    def enough(self) -> int:
        """Empty slots that are worth reading prompts for: an eighth of all."""
        return max(len(self.jobs) // 8, 1)

    @property
    def can_enter(self) -> int:
        """Jobs that wait and have an empty slot in their process."""
        free = [0] * len(self._queues)
        for part, owner in zip(self._parts(), self._owners, strict=True):
            free[owner] += int((part == NONE).sum())
        return sum(min(n, len(queue)) for n, queue in zip(free, self._queues, strict=True))

    @property
    def may_enter(self) -> bool:
        """Whether jobs enter now: enough of them, or all that wait, or nothing else is left."""
        ready = self.can_enter
        return ready > 0 and (
            ready >= self.enough or ready == self.waiting or bool((self.jobs == NONE).all())
        )

    def enter(self, per_part: int) -> Entering:
        """Take at most `per_part` jobs into the first empty slots of each part."""
        jobs, slots = [], []
        for part, owner in zip(self._parts(), self._owners, strict=True):
            queue = self._queues[owner]
            free = np.flatnonzero(part == NONE)[: min(per_part, len(queue))]
            part[free] = [queue.popleft() for _ in free]
            fillers = per_part - len(free)
            jobs += [*part[free], *[NONE] * fillers]
            slots += [*free, *[len(self.jobs)] * fillers]
        return Entering(np.array(jobs, int), np.array(slots, np.int32))

    def release(self, running: np.ndarray) -> None:
        """Empty the slots whose answers have ended.

        Args:
          running: bool `[N]`, slots with an answer that has not.
        """
        self.jobs[~running] = NONE

    def _parts(self) -> np.ndarray:
        return self.jobs.reshape(len(self._owners), -1)
