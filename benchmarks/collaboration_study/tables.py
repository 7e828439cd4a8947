"""The study as Markdown."""

from collections.abc import Callable, Sequence

from collaboration_study.plan import StudyRun
from collaboration_study.results import Result, mean, mean_changes, standard_error

BASELINE = "gspo"
_NONE = "-"


def document(
    results: Sequence[Result], runs: Sequence[StudyRun], *, title: str, command: str, missing: int
) -> str:
    """All tables, and what they were made with.

    Args:
      results: of the finished runs.
      runs: all runs of the study.
      title: what all algorithms have in common.
      command: how the study is run again.
      missing: number of runs that are not finished.
    """
    settings = list(dict.fromkeys(result.setting for result in results))
    incomplete = f"{missing} of {len(runs)} runs are not finished and left out." if missing else ""
    parts = [
        f"# Collaboration study, {title}",
        incomplete,
        agents_table(results),
        "Held-out accuracy in %, greedy; mean ± standard error over seeds. Answers and updates are"
        " one agent's; seconds are those of its steps at the pace of the median one, without"
        " compiling and evaluating (agents that share a program share its seconds). `cross ratio`"
        " and `with a gradient` are means over the steps' answers of peers, `gated` over the"
        " steps' problems: those that only peers solved.",
        f"## Curves\n\n{curves_table(results)}",
        "The mean held-out accuracy in % after so many steps.",
        *(f"## Ranking: {setting}\n\n{ranking_table(results, setting)}" for setting in settings),
        "Means over both agents in points; the difference is taken seed by seed, as all algorithms"
        " start from the same weights and see the same problems.",
        f"## Settings used\n\n{settings_table(runs)}",
        "P problems a step, G answers of each agent to each, mini-batches in groups of G, u the"
        " number of updates made in the step.",
        "; ".join(cross_ratio_range(results, setting) for setting in settings) + ".",
        f"`{command}`",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def agents_table(results: Sequence[Result]) -> str:
    """One row for each setting, algorithm and agent."""

    def average(members: list[Result], value: Callable[[Result], float | None]) -> float | None:
        found = [value(member) for member in members]
        return mean([x for x in found if x is not None])

    rows = []
    for (setting, algorithm, agent), members in _by_agent(results).items():
        seconds = average(members, lambda r: r.seconds)
        rows.append(
            [
                setting,
                algorithm,
                agent,
                str(len(members)),
                _percent([r.accuracy[0] for r in members]),
                _percent([r.accuracy[-1] for r in members]),
                _percent([r.change for r in members], sign=True),
                f"{members[0].rollouts:,}",
                f"{members[0].updates:,}",
                _NONE if seconds is None else f"{seconds:.0f}",
                _number(average(members, lambda r: r.cross_ratio), "{:.2f}"),
                _number(average(members, lambda r: r.cross_gradient), "{:.0%}"),
                _number(average(members, lambda r: r.gated), "{:.0%}"),
            ]
        )
    heading = (
        "setting | algorithm | agent | seeds | before | after | change | answers | updates | "
        "seconds | cross ratio | with a gradient | gated"
    )
    return _table(heading.split(" | "), rows)


def _by_agent(results: Sequence[Result]) -> dict[tuple[str, str, str], list[Result]]:
    """Results of all seeds, by setting, algorithm and agent."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for r in results:
        groups.setdefault((r.setting, r.algorithm, r.agent), []).append(r)
    return groups


def curves_table(results: Sequence[Result]) -> str:
    """Mean accuracy at every evaluation, one row for each setting, algorithm and agent."""
    steps = sorted({step for r in results for step in r.steps})
    rows = []
    for names, members in _by_agent(results).items():
        found: dict[int, list[float]] = {}
        for r in members:
            for step, accuracy in zip(r.steps, r.accuracy, strict=True):
                found.setdefault(step, []).append(100 * accuracy)
        means = (mean(found.get(step, [])) for step in steps)
        rows.append([*names, *(_number(value, "{:.1f}") for value in means)])
    return _table(["setting", "algorithm", "agent", *map(str, steps)], rows)


def ranking_table(results: Sequence[Result], setting: str) -> str:
    """Algorithms by mean change, and how they compare with GSPO seed by seed."""
    names = list(dict.fromkeys(r.algorithm for r in results if r.setting == setting))
    found = {name: mean_changes(results, setting, name) for name in names}
    baseline = found.get(BASELINE, {})
    order = sorted(names, key=lambda n: -sum(c for c, _ in found[n].values()) / len(found[n]))
    rows = []
    for place, name in enumerate(order, 1):
        changes = found[name]
        gaps = [change - baseline[s][0] for s, (change, _) in changes.items() if s in baseline]
        compared = bool(gaps) and name != BASELINE
        rows.append(
            [
                str(place),
                name,
                _percent([after for _, after in changes.values()]),
                _percent([change for change, _ in changes.values()], sign=True),
                _percent(gaps, sign=True) if compared else _NONE,
                f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}" if compared else _NONE,
            ]
        )
    heading = f"place | algorithm | after | change | against {BASELINE} | seeds above {BASELINE}"
    return _table(heading.split(" | "), rows)


def settings_table(runs: Sequence[StudyRun]) -> str:
    """What the runs of each algorithm were made with."""
    rows = []
    for run in {run.algorithm: run for run in reversed(runs)}.values():
        config = run.config
        training = config.training
        rows.append(
            [
                run.algorithm,
                str(training.steps),
                str(training.prompts_per_step),
                str(training.group_size),
                str(training.mini_batch_prompts),
                str(config.updates_per_step(config.algorithm)),
                f"{config.optimizer.learning_rate:g}",
                _bounds(run),
            ]
        )
    heading = "algorithm | steps | P | G | mini-batch | updates a step | learning rate | clip"
    return _table(heading.split(" | "), rows[::-1])


def _bounds(run: StudyRun) -> str:
    """Clip bounds, and what goes with them."""
    algorithm = run.config.algorithm
    if algorithm.name == "hacpo":
        h = algorithm.hacpo
        text = (
            f"own 1 - {h.eps_low:g} to 1 + {h.eps_high:g}, peers' {h.clip_low:g} +"
            f" {h.clip_step:g} u to 1, alpha {h.alpha:g}"
        )
    elif algorithm.name in ("gspo", "naive"):
        text = f"1 - {algorithm.gspo.eps_low:g} to 1 + {algorithm.gspo.eps_high:g}"
    else:
        text = f"tokens 1 - {algorithm.grpo.eps_low:g} to 1 + {algorithm.grpo.eps_high:g}"
    rescue = algorithm.rescue_coef
    return f"{text}; rescue {rescue:g}" if rescue else text


def cross_ratio_range(results: Sequence[Result], setting: str) -> str:
    """Least and greatest of the steps' mean cross ratios."""
    here = [r for r in results if r.setting == setting]
    ratios = [ratio for r in here for ratio in r.cross_ratios]
    if not ratios:
        return f"No cross ratio in {setting}"
    return f"Cross ratios in {setting} are {min(ratios):.2f} to {max(ratios):.2f} (means of a step)"


def _percent(values: Sequence[float], sign: bool = False) -> str:
    error = standard_error(values)
    text = f"{100 * sum(values) / len(values):{'+' if sign else ''}.1f}"
    return text if error is None else f"{text} ± {100 * error:.1f}"


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
