"""How curves of agents, peers and runs are drawn, the same in every picture."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hacpo_jax.report.run_log import RunLog

# Okabe and Ito's palette, told apart with any colour vision; yellow is too pale for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclasses.dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
      title: what is shown, in plain words.
      label: the y axis.
      metric: drawn for every agent; one that ends with a slash stands for every peer.
      level: a horizontal line that means "no difference", and is always in sight.
      log: a logarithmic y axis around the level 1, for ratios far from it.
      share: the y axis goes from 0 to 1.
    """

    title: str
    label: str
    metric: str
    level: float | None = None
    log: bool = False
    share: bool = False


class Style:
    """Which colour is which agent, in all pictures of a report.

    Args:
      logs: the runs; an agent has one colour in all of them, a run one kind of dash, and where an
        agent has several peers, a peer one marker.
    """

    def __init__(self, logs: Sequence[RunLog]):
        self._agents = list(dict.fromkeys(agent for log in logs for agent in log.metrics))
        self._runs = [log.name for log in logs]
        self._many_peers = any(len(log.metrics) > 2 for log in logs)

    def color(self, agent: str) -> str:
        return COLORS[self._agents.index(agent) % len(COLORS)]

    def dash(self, run: str) -> str:
        return _DASHES[self._runs.index(run) % len(_DASHES)]

    def marker(self, peer: str) -> str:
        """The marker of curves about this peer; none where only one peer can be meant."""
        if not self._many_peers or peer not in self._agents:
            return ""
        return _MARKERS[self._agents.index(peer) % len(_MARKERS)]

    def label(self, run: str, agent: str, peer: str = "") -> str:
        """Name of a curve in a legend."""
        about = f", peer {peer}" if self.marker(peer) else ""
        return f"{agent} ({run}){about}" if len(self._runs) > 1 else f"{agent}{about}"

    def handles(self, logs: Sequence[RunLog]) -> list[Line2D]:
        """A legend of all agents of all runs, and of the markers."""
        lines = [
            Line2D(
                [],
                [],
                color=self.color(agent),
                ls=self.dash(log.name),
                lw=2.2,
                label=self.label(log.name, agent),
            )
            for log in logs
            for agent in log.metrics
        ]
        peers = [agent for agent in self._agents if self.marker(agent)]
        return lines + [
            Line2D([], [], color="0.3", ls="", marker=self.marker(peer), label=f"peer {peer}")
            for peer in peers
        ]


def draw(axes: Axes, panel: Panel, logs: Sequence[RunLog], style: Style, *, legend: bool) -> bool:
    """Draw a panel's metrics of all agents of all runs.

    Args:
      axes: where.
      panel: what.
      logs: the runs.
      style: colours and dashes.
      legend: name the curves here; a picture of several panels has one legend for all.

    Returns:
      Whether there was anything to draw.
    """
    drawn = False
    for log in logs:
        for agent in log.metrics:
            for key in _keys(log, agent, panel):
                peer = key.partition("/")[2]
                drawn |= _curve(
                    axes,
                    *log.series(agent, key),
                    color=style.color(agent),
                    dash=style.dash(log.name),
                    marker=style.marker(peer),
                    label=style.label(log.name, agent, peer),
                )
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylabel(panel.label)
    axes.grid(alpha=0.25)
    if panel.level is not None and drawn:
        axes.axhline(panel.level, color="0.45", lw=1, zorder=0)
        if panel.log:
            _ratio_axis(axes)
        else:
            _show_level(axes, panel.level)
    if panel.share:
        axes.set_ylim(-0.02, 1.02)
    if not drawn:
        axes.text(
            0.5, 0.5, "not part of this run", transform=axes.transAxes, ha="center", color="0.45"
        )
    elif legend:
        axes.legend(fontsize=9, framealpha=0.85)
    return drawn


def _keys(log: RunLog, agent: str, panel: Panel) -> list[str]:
    return log.keys(agent, panel.metric) if panel.metric.endswith("/") else [panel.metric]


def _curve(
    axes: Axes,
    steps: list[int],
    values: list[float],
    *,
    color: str,
    dash: str,
    marker: str,
    label: str,
) -> bool:
    """A metric as it is, thin, and its running mean on top where there are many steps."""
    if not steps:
        return False
    reach = len(steps) // 40
    if reach:
        axes.plot(steps, values, color=color, lw=0.8, alpha=0.35)
    axes.plot(
        steps,
        _running_mean(values, reach),
        color=color,
        ls=dash,
        lw=2.0,
        marker=marker if len(steps) > 1 else "o",
        markersize=5,
        markevery=max(len(steps) // 8, 1),
        label=label,
    )
    return True


def _running_mean(values: Sequence[float], reach: int) -> np.ndarray:
    """Mean of each value and its neighbours, up to `reach` to each side, as far as there are."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    places = np.arange(len(values))
    reach_here = np.minimum(reach, np.minimum(places, places[::-1]))
    starts, ends = places - reach_here, places + reach_here + 1
    return (total[ends] - total[starts]) / (ends - starts)


def _show_level(axes: Axes, level: float) -> None:
    """Leave room around the level, so that rounding does not look like news."""
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, level - 1e-3), max(high, level + 1e-3))
    axes.ticklabel_format(axis="y", useOffset=False)


def _ratio_axis(axes: Axes) -> None:
    """A logarithmic axis with plain numbers, at least half an octave to each side of its middle."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 1 / 1.1), max(high, 1.1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
