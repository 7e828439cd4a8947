"""Signs in the metrics that a run teaches nothing, told once per agent."""

from collections import deque
from collections.abc import Iterator

from hacpo_jax.training.metrics import Metrics

WINDOW = 10
LEAST_CROSS_GRADIENT = 0.1


class Watch:
    """Looks at every step's metrics."""

    def __init__(self):
        self._recent: dict[str, deque[float]] = {}
        self._told: set[tuple[str, str]] = set()

    def warnings(self, rows: list[Metrics], grading_error: str | None = None) -> list[str]:
        """What is worth a word in one step's metrics and has not been said before.

        Args:
          rows: metrics of every agent.
          grading_error: why the first answer that could not be graded could not.
        """
        found = [
            (str(row["agent"]), sign) for row in rows for sign in self._signs(row, grading_error)
        ]
        new = [sign for sign in found if sign not in self._told]
        self._told.update(new)
        return [f"{agent}: {sign}" for agent, sign in new]

    def _signs(self, row: Metrics, grading_error: str | None) -> Iterator[str]:
        recent = self._recent.setdefault(str(row["agent"]), deque(maxlen=WINDOW))
        share = row.get("cross_gradient_fraction")
        if isinstance(share, float):
            recent.append(share)
        if len(recent) == WINDOW and max(recent) < LEAST_CROSS_GRADIENT:
            yield (
                f"for {WINDOW} steps fewer than {LEAST_CROSS_GRADIENT:.0%} of its peers' answers "
                "carried a gradient: their ratios lie outside the bounds; lower "
                "algorithm.hacpo.clip_low, or algorithm.hacpo.alpha for agents far apart"
            )
        if row["truncated"] == 1.0:
            yield "every answer was cut off; raise sampling.max_new_tokens"
        if row["invalid"]:
            yield f"answers could not be graded and were left out; the first: {grading_error}"
        if row["updates/skipped"]:
            yield "an update was left out because its gradient was not finite; see updates/skipped"
