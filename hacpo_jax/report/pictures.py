"""The pictures of a report."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hacpo_jax.errors import UserError
from hacpo_jax.report.curves import Panel, Style, draw
from hacpo_jax.report.run_log import RunLog, read_log

_REWARD = Panel("Reward of each agent's own answers", "mean reward", "reward/mean")
_OMEGA = Panel(
    "Capability ratio ω: the agent against its peer", "ω (1 = equally able)", "omega/", 1.0, True
)
_CROSS = Panel(
    "Cross ratio: peers' answers under the agent",
    "importance ratio (1 = as likely)",
    "ratio/",
    1.0,
    True,
)
PANELS = {
    "reward": _REWARD,
    "capability": Panel("Capability: mean reward over the window", "capability", "capability"),
    "capability_ratio": _OMEGA,
    "cross_ratio": _CROSS,
    "own_ratio": Panel(
        "Own ratio: own answers when they are learned from", "importance ratio", "ratio/own", 1.0
    ),
    "clip_fraction_own": Panel(
        "Own answers whose ratio was clipped", "share", "clip_fraction/own", share=True
    ),
    "clip_fraction_cross": Panel(
        "Peers' answers whose ratio was clipped", "share", "clip_fraction/", share=True
    ),
    "cross_gradient_fraction": Panel(
        "Peers' answers that moved the agent", "share", "cross_gradient_fraction", share=True
    ),
    "entropy": Panel("Entropy of the policy on own answers", "nats per token", "entropy"),
    "response_length": Panel(
        "Length of own answers", "mean tokens, end token included", "response_length/mean"
    ),
}
"""Pictures of one panel each, by file name."""


def write_report(run_dirs: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Plot runs on top of each other.

    Args:
      run_dirs: directories of runs.
      out: where pictures go; None is `report/` of the first run.

    Returns:
      The pictures, `overview.png` first.

    Raises:
      UserError: a directory has no metrics, or pictures cannot be written.
    """
    logs = [read_log(path, name) for path, name in zip(run_dirs, _names(run_dirs), strict=True)]
    style, out = Style(logs), run_dirs[0] / "report" if out is None else out
    figures = {"overview": _overview(logs, style)}
    for name, panel in PANELS.items():
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        if draw(axes, panel, logs, style, legend=True):
            figures[name] = figure
    if any(log.evaluations for log in logs):
        figures["accuracy"] = _accuracy_over_steps(logs, style)
    paths = [out / f"{name}.png" for name in figures]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, figure in zip(paths, figures.values(), strict=True):
            figure.savefig(path, dpi=130)
    except OSError as error:
        raise UserError("out", str(out), f"cannot be written ({error.strerror})") from None
    finally:
        pyplot.close("all")
    return paths


def _names(run_dirs: Sequence[Path]) -> list[str]:
    """The last part of each path, or the whole path where that is not enough to tell them apart."""
    short = [path.resolve().name for path in run_dirs]
    names = short if len(set(short)) == len(short) else [str(path) for path in run_dirs]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UserError("run directory", name, "is named twice")
    return names


def _overview(logs: Sequence[RunLog], style: Style) -> Figure:
    """Reward, capability ratio, cross ratio, and accuracy before and after."""
    figure, grid = pyplot.subplots(2, 2, figsize=(12, 7.4), layout="constrained")
    draw(grid[0, 0], _REWARD, logs, style, legend=False)
    draw(grid[0, 1], _OMEGA, logs, style, legend=False)
    draw(grid[1, 0], _CROSS, logs, style, legend=False)
    _before_and_after(grid[1, 1], logs, style)
    handles = style.handles(logs)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    return figure


def _before_and_after(axes: Axes, logs: Sequence[RunLog], style: Style) -> None:
    """For each agent and benchmark an arrow from its first accuracy to its last."""
    axes.set_title("Held-out accuracy, before → after", loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("problems solved")
    rows = [
        (log, benchmark, agent, *log.accuracy(agent, benchmark))
        for log in logs
        for benchmark in log.benchmarks
        for agent in log.metrics
    ]
    rows = [row for row in rows if row[3]]
    several = len({benchmark for _, benchmark, *_ in rows}) > 1
    for y, (log, _, agent, _, values) in enumerate(rows):
        first, last, color = values[0], values[-1], style.color(agent)
        axes.plot([first, last], [y, y], color=color, lw=3, alpha=0.5, ls=style.dash(log.name))
        axes.scatter([first], [y], s=70, facecolor="white", edgecolor=color, linewidth=2, zorder=3)
        axes.scatter([last], [y], s=80, color=color, zorder=4)
        note = f"{first:.0%} → {last:.0%}" if len(values) > 1 else f"{first:.0%}"
        right = max(first, last) < 0.8
        axes.annotate(
            note,
            (max(first, last) if right else min(first, last), y),
            xytext=(12 if right else -12, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            color=color,
        )
    labels = [
        style.label(log.name, agent) + (f"\n{benchmark}" if several else "")
        for log, benchmark, agent, *_ in rows
    ]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25, axis="x")
    if not rows:
        axes.text(0.5, 0.5, "not measured yet", transform=axes.transAxes, ha="center", color="0.45")


def _accuracy_over_steps(logs: Sequence[RunLog], style: Style) -> Figure:
    """One panel per benchmark."""
    benchmarks = list(dict.fromkeys(name for log in logs for name in log.benchmarks))
    size = (7, 0.8 + 3.4 * len(benchmarks))
    figure, grid = pyplot.subplots(
        len(benchmarks), figsize=size, layout="constrained", squeeze=False
    )
    for axes, benchmark in zip(grid[:, 0], benchmarks, strict=True):
        for log in logs:
            for agent in log.metrics:
                steps, values = log.accuracy(agent, benchmark)
                axes.plot(
                    steps,
                    values,
                    color=style.color(agent),
                    ls=style.dash(log.name),
                    lw=2,
                    marker="o",
                    label=style.label(log.name, agent),
                )
        axes.set_title(f"Accuracy on {benchmark}", loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("training step")
        axes.set_ylabel("problems solved")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=9, framealpha=0.85)
    return figure
