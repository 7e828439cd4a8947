"""Signs in the metrics that a run teaches nothing, told once per agent."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from hacpo_jax.config import Algorithm, Config
from hacpo_jax.training.metrics import Metrics

WINDOW = 10
LEAST_CROSS_GRADIENT = 0.1


LEAST_BFLOAT16_STEP = 6e-5
"""Adam moves a parameter by about the learning rate; bfloat16 numbers between 1/64 and 1/32, the
size of most weights, are 1.2e-4 apart, and a step of less than half of that is rounded away."""


def rounding_warnings(config: Config) -> list[str]:
    """Agents whose learning rate is too small for their parameters' dtype."""
    if config.training.param_dtype != "bfloat16":
        return []
    return [
        f"{agent.name}: steps of learning_rate = {agent.optimizer.learning_rate:g} are lost to "
        "rounding in bfloat16 parameters; set training.param_dtype to float32"
        for agent in config.agents
        if agent.optimizer.learning_rate < LEAST_BFLOAT16_STEP
    ]


class Watch:
    """Looks at every step's metrics.

    Args:
      algorithms: of every agent, by name.
    """

    def __init__(self, algorithms: Mapping[str, Algorithm]):
        self._algorithms = algorithms
        self._recent: dict[str, deque[float]] = {}
        self._told: set[tuple[str, str]] = set()

    def warnings(
        self, rows: list[Metrics], grading_error: Callable[[str], str | None]
    ) -> list[str]:
        """What is worth a word in one step's metrics and has not been said before.

        Args:
          rows: metrics of every agent.
          grading_error: why the first answer of an agent that could not be graded could not.
        """
        new = []
        for row in rows:
            agent = str(row["agent"])
            for sign, text in self._signs(row, grading_error):
                if (agent, sign) not in self._told:  # its text may have other figures each time
                    self._told.add((agent, sign))
                    new.append(f"{agent}: {text}")
        return new

    def _signs(
        self, row: Metrics, grading_error: Callable[[str], str | None]
    ) -> Iterator[tuple[str, str]]:
        """What one agent's metrics show, each with its text."""
        agent = str(row["agent"])
        recent = self._recent.setdefault(agent, deque(maxlen=WINDOW))
        share = row.get("cross_gradient_fraction")
        if isinstance(share, float):
            recent.append(share)
        if len(recent) == WINDOW and max(recent) < LEAST_CROSS_GRADIENT:
            yield (
                "peers",
                f"for {WINDOW} steps fewer than {LEAST_CROSS_GRADIENT:.0%} of its peers' answers "
                f"carried a gradient; {self._cause(row)}",
            )
        if row["truncated"] == 1.0:
            yield "truncated", "every answer was cut off; raise sampling.max_new_tokens"
        if row["invalid"]:
            # Answers without a token, and those of other processes, have no reason here.
            reason = grading_error(agent)
            first = f"; the first: {reason}" if reason else ""
            yield "invalid", f"answers could not be graded and were left out{first}"
        if row["updates/skipped"]:
            yield (
                "skipped",
                "an update was left out because its gradient was not finite; see updates/skipped",
            )

    def _cause(self, row: Metrics) -> str:
        """Why peers' answers teach an agent little, and what would change that."""
        algorithm = self._algorithms[str(row["agent"])]
        ratios = [f"{name.partition('/')[2]} {row[name]:.2f}" for name in _of_peers(row, "ratio/")]
        clipped = [float(row[name] or 0) for name in _of_peers(row, "clip_fraction/")]
        if not clipped or max(clipped) < 0.5:
            return "few of their ratios are clipped: rewards of most problems are all alike"
        where = f"their mean ratios ({', '.join(ratios)}) lie outside the bounds"
        if algorithm.name == "hacpo":
            settings = algorithm.hacpo
            return (
                f"{where}, {settings.clip_low:g} to 1: lower algorithm.hacpo.clip_low = "
                f"{settings.clip_low:g}, or for agents far apart algorithm.hacpo.alpha = "
                f"{settings.alpha:g}"
            )
        section = "gspo" if algorithm.name == "naive" else "grpo"
        return f"{where}: widen algorithm.{section}.eps_low and eps_high"


def _of_peers(row: Metrics, prefix: str) -> list[str]:
    """Keys of a metric that there is for every peer, where it has a value."""
    return [
        name
        for name, value in row.items()
        if name.startswith(prefix) and name != prefix + "own" and value is not None
    ]
