"""Every agent of a run on every benchmark."""

from collections.abc import Iterator, Sequence

from hacpo_jax.agents import Agent
from hacpo_jax.evaluation import Graded, evaluate_group
from hacpo_jax.training.run import Run


def measure(run: Run, params: Sequence) -> Iterator[tuple[Agent, str, Graded]]:
    """Have all agents answer all benchmarks, as `evaluation` says.

    Args:
      run: the run.
      params: parameters `[A, ...]` of each of its groups.

    Yields:
      Agent, name of the benchmark, and the graded answers, as soon as they are there.
    """
    for name, problems in run.benchmarks.items():
        for group, group_params in zip(run.groups, params, strict=True):
            graded = evaluate_group(
                group,
                group_params,
                problems,
                run.verifier,
                spec=run.evaluation_spec(group),
                samples=run.config.evaluation.samples,
                seed=run.config.seed,
                max_rows=run.config.sampling.max_rows,
                layout=run.layout(group),
                hosts=run.hosts,
            )
            for agent, answers in zip(group.agents, graded, strict=True):
                yield agent, name, answers
