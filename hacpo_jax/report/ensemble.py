"""Runs that differ in their seed alone are one curve with a band."""

import dataclasses
import json
from collections.abc import Callable, Sequence

import numpy as np

from hacpo_jax.config import Algorithm
from hacpo_jax.report.run_log import RunLog

# What may differ between runs of one ensemble: none of it changes what is learned from what.
_SEED_KEYS = {"run_dir", "seed", "checkpoint", "tracking", "diagnostics"}


@dataclasses.dataclass(frozen=True)
class Band:
    """A curve over runs.

    Args:
      steps: `[N]`, those that all runs have.
      mean: `[N]`.
      low: `[N]`, one standard deviation below; the mean itself where there is one run.
      high: `[N]`, as far above.
    """

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Runs with one config but for the seed.

    Args:
      name: how it is called in legends.
      logs: the runs, at least one.
    """

    name: str
    logs: tuple[RunLog, ...]

    @property
    def agents(self) -> list[str]:
        return list(self.logs[0].metrics)

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(name for log in self.logs for name in log.benchmarks))

    def algorithm(self, agent: str) -> Algorithm | None:
        """What an agent learns by; None where the run keeps no config."""
        config = self.logs[0].config
        found = [a.algorithm for a in config.agents if a.name == agent] if config else []
        return found[0] if found else None

    def keys(self, agent: str, prefix: str) -> list[str]:
        """Metrics about peers; see `RunLog.keys`."""
        return self.logs[0].keys(agent, prefix)

    def series(self, agent: str, key: str) -> Band:
        """One metric of one agent."""
        return self._band(lambda log: log.series(agent, key))

    def accuracy(self, agent: str, benchmark: str) -> Band:
        """Accuracy of one agent on one benchmark."""
        return self._band(lambda log: log.accuracy(agent, benchmark))

    def _band(self, curve: Callable[[RunLog], tuple[list[int], list[float]]]) -> Band:
        curves = [dict(zip(*curve(log), strict=True)) for log in self.logs]
        steps = sorted(set.intersection(*map(set, curves)))
        values = np.array([[one[step] for step in steps] for one in curves], float)  # [runs, N]
        mean = values.mean(axis=0)
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
        return Band(np.array(steps), mean, mean - spread, mean + spread)


def ensembles(logs: Sequence[RunLog]) -> list[Ensemble]:
    """Put runs together that differ in the seed alone, in order of first appearance."""
    groups: dict[str, list[RunLog]] = {}
    for log in logs:
        groups.setdefault(_kind(log), []).append(log)
    names = _names(list(groups.values()))
    return [
        Ensemble(name, tuple(group)) for name, group in zip(names, groups.values(), strict=True)
    ]


def _kind(log: RunLog) -> str:
    if log.config is None:
        return log.name
    return json.dumps(log.config.model_dump(mode="json", exclude=_SEED_KEYS), sort_keys=True)


def _names(groups: Sequence[Sequence[RunLog]]) -> list[str]:
    """What the names of a group's runs begin with, unless that is nothing or another's too."""
    starts = [_common_start([log.name for log in group]) for group in groups]
    names = []
    for group, start in zip(groups, starts, strict=True):
        if len(group) == 1:
            names.append(group[0].name)
            continue
        start = start if start and starts.count(start) == 1 else group[0].name
        names.append(f"{start}, {len(group)} seeds")
    return names


def _common_start(names: Sequence[str]) -> str:
    """Without the digits and signs that it ends with."""
    length = 0
    for letters in zip(*names, strict=False):
        if len(set(letters)) > 1:
            break
        length += 1
    return names[0][:length].rstrip("0123456789._-/")
