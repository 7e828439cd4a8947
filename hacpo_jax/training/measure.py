"""Every agent of a run on every benchmark."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from hacpo_jax.agents import Agent, AgentGroup
from hacpo_jax.evaluation import AnswerFile, Graded, answer_rows, evaluate_group
from hacpo_jax.training.run import Run
from hacpo_jax.training.whose import work_of


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
            graded = _evaluate(run, group, group_params, name, range(len(problems)))
            for agent, answers in zip(group.agents, graded, strict=True):
                yield agent, name, answers


def measure_into(
    run: Run,
    params: Sequence,
    file: AnswerFile,
    draws: Mapping[str, str],
    progress: Callable[[str, str, int, int], None],
) -> Iterator[tuple[Agent, str, Graded]]:
    """As `measure`, but answers are kept as they come, and those that are there are not drawn.

    Args:
      run: the run.
      params: parameters `[A, ...]` of each of its groups.
      file: where answers are kept.
      draws: of each benchmark, the `fingerprint` of its evaluation.
      progress: told the group, the benchmark, and how many of how many problems are done.
    """
    for name, problems in run.benchmarks.items():
        samples, total = run.config.draws(name).samples, len(problems)
        at_once = max(run.config.sampling.max_rows // samples, 1)
        for group, group_params in zip(run.groups, params, strict=True):
            agents = [agent.name for agent in group.agents]
            missing = [
                i
                for i, example in enumerate(problems.examples)
                if not all(file.has(draws[name], a, name, example.id, samples) for a in agents)
            ]
            progress(group.name, name, total - len(missing), total)
            for start in range(0, len(missing), at_once):
                places = missing[start : start + at_once]
                graded = _evaluate(run, group, group_params, name, places)
                rows = {
                    agent: answer_rows(problems, places, answers)
                    for agent, answers in zip(agents, graded, strict=True)
                }
                file.add(draws[name], name, rows)
                progress(group.name, name, total - len(missing) + start + len(places), total)
            for agent in group.agents:
                yield agent, name, file.graded(draws[name], agent.name, name, problems, samples)


def _evaluate(
    run: Run, group: AgentGroup, params, benchmark: str, places: Sequence[int]
) -> list[Graded]:
    with work_of(group.name):
        return evaluate_group(
            group,
            params,
            run.benchmarks[benchmark],
            run.verifier,
            spec=run.evaluation_spec(group, benchmark),
            samples=run.config.draws(benchmark).samples,
            seed=run.config.seed,
            max_rows=run.config.sampling.max_rows,
            places=places,
            layout=run.layout(group),
            hosts=run.hosts,
        )
