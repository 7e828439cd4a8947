"""Held-out accuracy over the steps, one panel for each setting and agent."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from collaboration_study.results import Result, standard_error
from hacpo_jax.report.curves import COLORS

_DASHES = ("-", "--")


def draw_figure(results: Sequence[Result], path: Path) -> None:
    """Means over seeds, and bands of one standard error to each side.

    Args:
      results: of the finished runs; an algorithm has one colour in all panels.
      path: the picture.
    """
    algorithms = list(dict.fromkeys(r.algorithm for r in results))
    panels: dict[str, list[str]] = {}
    for r in results:
        agents = panels.setdefault(r.setting, [])
        if r.agent not in agents:
            agents.append(r.agent)
    rows, columns = len(panels), max(map(len, panels.values()))
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(6 * columns, 3.6 * rows + 0.6),
        layout="constrained",
        squeeze=False,
        sharey="row",
    )
    for axes_row, (setting, agents) in zip(grid, panels.items(), strict=True):
        for axes, agent in zip(axes_row, agents, strict=True):
            here = [r for r in results if (r.setting, r.agent) == (setting, agent)]
            _panel(axes, here, algorithms)
            axes.set_title(f"{setting}: {agent}", loc="left", fontsize=11, fontweight="bold")
        axes_row[0].set_ylabel("held-out problems solved")
    handles = [Line2D([], [], lw=2, label=a, **_look(algorithms.index(a))) for a in algorithms]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axes: Axes, results: Sequence[Result], algorithms: Sequence[str]) -> None:
    for algorithm in dict.fromkeys(r.algorithm for r in results):
        runs = [r for r in results if r.algorithm == algorithm]
        values = np.array([r.accuracy for r in runs])  # [seeds, evaluations]
        look, center = _look(algorithms.index(algorithm)), values.mean(axis=0)
        axes.plot(runs[0].steps, center, lw=2, **look)
        if len(runs) > 1:
            error = np.array([standard_error(column) for column in values.T.tolist()])
            low, high = center - error, center + error
            axes.fill_between(runs[0].steps, low, high, color=look["color"], alpha=0.12, lw=0)
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.25)


def _look(place: int) -> dict:
    turn, color = divmod(place, len(COLORS))
    return {"color": COLORS[color], "ls": _DASHES[turn % len(_DASHES)]}
