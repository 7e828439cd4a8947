"""Config of measuring: how answers to benchmarks are drawn and counted."""

import dataclasses

from pydantic import Field

from hacpo_jax.config.base import Section


@dataclasses.dataclass(frozen=True)
class Draws:
    """How one benchmark is answered and counted, nothing left open.

    Args:
      samples: answers to each problem.
      temperature: 0 is greedy.
      top_k: draw from the k likeliest tokens; None from all.
      top_p: draw from the smallest set with this much probability.
      max_new_tokens: longest answer.
      best_of: each k of best@k.
      majority_of: each k of maj@k.
      headline: the figure that stands for the benchmark in tables: `accuracy` (avg@k) or a best@k.
    """

    samples: int
    temperature: float
    top_k: int | None
    top_p: float
    max_new_tokens: int
    best_of: tuple[int, ...]
    majority_of: tuple[int, ...]
    headline: str


class BenchmarkDraws(Section):
    """What differs for one benchmark.

    Attributes:
      samples: answers to each problem; null, here and below, is what `evaluation` says.
      temperature: 0 is greedy.
      top_k: draw from the k likeliest tokens.
      top_p: draw from the smallest set with this much probability.
      max_new_tokens: longest answer.
      best_of: k of best@k; the last one named here stands for the benchmark in tables, where
        others show avg@k.
      majority_of: k of maj@k.
    """

    samples: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_new_tokens: int | None = Field(default=None, ge=1)
    best_of: tuple[int, ...] | None = None
    majority_of: tuple[int, ...] | None = None


class Evaluation(Section):
    """Measuring on the benchmarks of `task.eval`.

    Attributes:
      every: steps between two evaluations; null measures before and after only.
      samples: answers to each problem, k of avg@k.
      temperature: 0 is greedy.
      top_k: draw from the k likeliest tokens; null from all.
      top_p: draw from the smallest set with this much probability.
      max_new_tokens: longest answer; null as in training.
      best_of: k of best@k (pass@k), each at most `samples`.
      majority_of: k of maj@k (majority vote), each at most `samples`.
      benchmarks: of benchmarks, by name, what differs for them.
      log_answers: of this many problems of each benchmark, one answer of every agent is written to
        `answers.jsonl` and to the trackers at every evaluation.
    """

    every: int | None = Field(default=None, ge=1)
    samples: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_new_tokens: int | None = Field(default=None, ge=1)
    best_of: tuple[int, ...] = ()
    majority_of: tuple[int, ...] = ()
    benchmarks: dict[str, BenchmarkDraws] = Field(default={})
    log_answers: int = Field(default=4, ge=0)

    def draws(self, benchmark: str, max_new_tokens: int) -> Draws:
        """How one benchmark is answered.

        Args:
          benchmark: its name in `task.eval`.
          max_new_tokens: the longest answer where no section names one.
        """
        own = self.benchmarks.get(benchmark, BenchmarkDraws()).model_dump(exclude_none=True)
        shared = self.model_dump(include={*BenchmarkDraws.model_fields})
        settings = {**shared, **own}
        settings["max_new_tokens"] = settings["max_new_tokens"] or max_new_tokens
        headline = f"best@{own['best_of'][-1]}" if own.get("best_of") else "accuracy"
        return Draws(headline=headline, **settings)
