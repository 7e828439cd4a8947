"""What a run directory says about the course of its run."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hacpo_jax.config import Config
from hacpo_jax.errors import UserError
from hacpo_jax.training.run_dir import read_rows, saved_config


@dataclasses.dataclass(frozen=True)
class RunLog:
    """Numbers of one run.

    Args:
      name: how the run is called in legends.
      metrics: rows of `metrics.jsonl` of each agent, by step.
      evaluations: rows of `evaluations.jsonl`.
      diagnostics: rows of `diagnostics.jsonl`.
      answers: rows of `answers.jsonl`.
      config: as resolved; None where the directory holds none.
      directory: where all this comes from.
    """

    name: str
    metrics: dict[str, list[dict[str, Any]]]
    evaluations: Sequence[dict[str, Any]]
    diagnostics: Sequence[dict[str, Any]] = ()
    answers: Sequence[dict[str, Any]] = ()
    config: Config | None = None
    directory: Path | None = None

    @property
    def benchmarks(self) -> list[str]:
        """Names of what the agents were measured on."""
        return list(dict.fromkeys(row["benchmark"] for row in self.evaluations))

    def series(self, agent: str, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; steps at which it has no finite value are left out."""
        pairs = [(row["step"], row.get(key)) for row in self.metrics.get(agent, [])]
        pairs = [(step, v) for step, v in pairs if v is not None and math.isfinite(v)]
        return [step for step, _ in pairs], [float(value) for _, value in pairs]

    def keys(self, agent: str, prefix: str) -> list[str]:
        """Metrics about peers, such as `omega/<peer>` for the prefix `omega/`."""
        found = {key: None for row in self.metrics.get(agent, []) for key in row}
        return [key for key in found if key.startswith(prefix) and key != f"{prefix}own"]

    def accuracy(self, agent: str, benchmark: str) -> tuple[list[int], list[float]]:
        """Steps and accuracies of one agent on one benchmark."""
        rows = [r for r in self.evaluations if (r["agent"], r["benchmark"]) == (agent, benchmark)]
        return [row["step"] for row in rows], [row["accuracy"] for row in rows]


def read_log(run_dir: Path, name: str) -> RunLog:
    """Read a run's metrics and evaluations; the run may be going on.

    Args:
      run_dir: the run's directory.
      name: how it is called in legends.

    Raises:
      UserError: there are no metrics.
    """
    rows = read_rows(run_dir / "metrics.jsonl")
    if not rows:
        remedy = "has no metrics.jsonl with a step in it; is it a run directory?"
        raise UserError("run directory", str(run_dir), remedy)
    metrics: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        metrics.setdefault(row["agent"], []).append(row)
    return RunLog(
        name,
        metrics,
        read_rows(run_dir / "evaluations.jsonl"),
        read_rows(run_dir / "diagnostics.jsonl"),
        read_rows(run_dir / "answers.jsonl"),
        saved_config(run_dir) if (run_dir / "config.yaml").is_file() else None,
        run_dir,
    )
