"""What finished runs came to, and the means over seeds."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from collaboration_study.plan import StudyRun
from hacpo_jax.report import RunLog, read_log


@dataclasses.dataclass(frozen=True)
class Result:
    """One agent of one finished run.

    Args:
      setting, algorithm, seed: of the run.
      agent: its name.
      steps: steps done at each evaluation.
      accuracy: held-out accuracy at each of them.
      rollouts: answers that the agent drew.
      updates: optimizer updates it made.
      seconds: of all its steps, at the pace of the median one: compiling is left out.
      cross_ratios: mean ratio of peers' answers in each step; empty where none are shared.
      cross_gradient: share of peers' answers that carried a gradient; None where none are shared.
      gated: share of problems that only peers solved.
    """

    setting: str
    algorithm: str
    seed: int
    agent: str
    steps: list[int]
    accuracy: list[float]
    rollouts: int
    updates: int
    seconds: float
    cross_ratios: list[float]
    cross_gradient: float | None
    gated: float | None

    @property
    def change(self) -> float:
        """Accuracy after less accuracy before."""
        return self.accuracy[-1] - self.accuracy[0]

    @property
    def cross_ratio(self) -> float | None:
        return mean(self.cross_ratios)


def read_results(run: StudyRun) -> list[Result]:
    """Both agents of a finished run."""
    log, training = read_log(run.directory, run.name), run.config.training
    (benchmark,) = log.benchmarks
    results = []
    for agent in log.metrics:
        steps, accuracy = log.accuracy(agent, benchmark)
        results.append(
            Result(
                setting=run.setting,
                algorithm=run.algorithm,
                seed=run.seed,
                agent=agent,
                steps=steps,
                accuracy=accuracy,
                rollouts=training.steps * training.prompts_per_step * training.group_size,
                updates=run.updates,
                seconds=training.steps * _median_seconds(log, agent),
                cross_ratios=cross_ratios(log, agent),
                cross_gradient=mean(log.series(agent, "cross_gradient_fraction")[1]),
                gated=mean(log.series(agent, "gated_prompts")[1]),
            )
        )
    return results


def _median_seconds(log: RunLog, agent: str) -> float:
    phases = log.keys(agent, "time/")
    return statistics.median(
        sum(row[phase] for phase in phases if phase in row) for row in log.metrics[agent]
    )


def cross_ratios(log: RunLog, agent: str) -> list[float]:
    """Ratios of every peer in every step."""
    return [value for key in log.keys(agent, "ratio/") for value in log.series(agent, key)[1]]


def mean(values: Sequence[float]) -> float | None:
    """None where there are no values."""
    return statistics.fmean(values) if values else None


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values; None where there are fewer than two."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def mean_changes(
    results: Sequence[Result], setting: str, algorithm: str
) -> dict[int, tuple[float, float]]:
    """Change and last accuracy of each seed, as means over the agents."""
    by_seed: dict[int, list[Result]] = {}
    for result in results:
        if (result.setting, result.algorithm) == (setting, algorithm):
            by_seed.setdefault(result.seed, []).append(result)
    return {
        seed: (
            statistics.fmean(result.change for result in agents),
            statistics.fmean(result.accuracy[-1] for result in agents),
        )
        for seed, agents in by_seed.items()
    }
