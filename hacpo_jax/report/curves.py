"""How curves of agents, peers and runs are drawn, the same in every picture."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hacpo_jax.report.bounds import Bounds, bounds
from hacpo_jax.report.ensemble import Band, Ensemble

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
      about: one sentence below the picture.
      cross: whether the bounds of cross ratios (True) or of own ones (False) belong in it.
    """

    title: str
    label: str
    metric: str
    level: float | None = None
    log: bool = False
    share: bool = False
    about: str = ""
    cross: bool | None = None


class Style:
    """Which colour is which agent, in all pictures of a report.

    Args:
      shown: the runs; an agent has one colour in all of them, runs of one kind have one kind of
        dash, and where an agent has several peers, a peer has one marker.
    """

    def __init__(self, shown: Sequence[Ensemble]):
        self._agents = list(dict.fromkeys(agent for one in shown for agent in one.agents))
        self._runs = [one.name for one in shown]
        self._many_peers = any(len(one.agents) > 2 for one in shown)

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

    def handles(self, shown: Sequence[Ensemble]) -> list[Line2D]:
        """A legend of all agents of all runs, and of the markers."""
        lines = [
            Line2D(
                [],
                [],
                color=self.color(agent),
                ls=self.dash(one.name),
                lw=2.2,
                label=self.label(one.name, agent),
            )
            for one in shown
            for agent in one.agents
        ]
        peers = [agent for agent in self._agents if self.marker(agent)]
        return lines + [
            Line2D([], [], color="0.3", ls="", marker=self.marker(peer), label=f"peer {peer}")
            for peer in peers
        ]


def panels(rows: int, columns: int, *, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """An empty picture, which pyplot does not know: its state is the caller's, as in a notebook.

    Args:
      rows: number of rows of axes.
      columns: number of columns.
      size: width and height in inches.

    Returns:
      The picture and its axes, `[rows, columns]`.
    """
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw(
    axes: Axes, panel: Panel, shown: Sequence[Ensemble], style: Style, *, legend: bool
) -> bool:
    """Draw a panel's metrics of all agents of all runs.

    Args:
      axes: where.
      panel: what.
      shown: the runs.
      style: colours and dashes.
      legend: name the curves here; a picture of several panels has one legend for all.

    Returns:
      Whether there was anything to draw.
    """
    drawn = False
    for one in shown:
        for agent in one.agents:
            for key in _keys(one, agent, panel):
                peer = key.partition("/")[2]
                drawn |= _curve(
                    axes,
                    one.series(agent, key),
                    color=style.color(agent),
                    dash=style.dash(one.name),
                    marker=style.marker(peer),
                    label=style.label(one.name, agent, peer),
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
    if panel.cross is not None and drawn:
        _bounds(axes, panel.cross, shown)
    if panel.share:
        axes.set_ylim(-0.02, 1.02)
    if not drawn:
        axes.text(
            0.5, 0.5, "not part of this run", transform=axes.transAxes, ha="center", color="0.45"
        )
    elif legend:
        axes.legend(fontsize=9, framealpha=0.85)
    return drawn


def _bounds(axes: Axes, cross: bool, shown: Sequence[Ensemble]) -> None:
    """A line at each bound, and a shade over what a bound passes as it rises within a step."""
    every = [bounds(one, agent, cross=cross) for one in shown for agent in one.agents]
    different: list[Bounds] = list(dict.fromkeys(found for found in every if found is not None))
    low, high = axes.get_ylim()
    for found in different:
        what = "" if found.of == "answer" else f" of each {found.of}'s ratio"
        name = f"clipped{what} below {found.low:g} and above {found.high:g}"
        if found.last_low > found.low:
            axes.axhspan(found.low, found.last_low, color="0.5", alpha=0.12, lw=0, zorder=0)
            name = f"clipped below {found.low:g}, at last {found.last_low:g}, and above"
            name += f" {found.high:g}"
        axes.axhline(found.low, color="0.35", lw=1.2, ls=(0, (1, 1.5)), label=name)
        axes.axhline(found.high, color="0.35", lw=1.2, ls=(0, (1, 1.5)))
        room = 0.08 * (found.high - found.low)
        low, high = min(low, found.low - room), max(high, found.high + room)
    if low > 0 or axes.get_yscale() == "linear":
        axes.set_ylim(low, high)


def _keys(one: Ensemble, agent: str, panel: Panel) -> list[str]:
    return one.keys(agent, panel.metric) if panel.metric.endswith("/") else [panel.metric]


def _curve(axes: Axes, band: Band, *, color: str, dash: str, marker: str, label: str) -> bool:
    """A metric as it is, thin, and its running mean on top where there are many steps; the band of
    several runs around it."""
    steps = band.steps
    if not len(steps):
        return False
    reach = len(steps) // 40
    several = bool((band.high > band.low).any())
    if several:
        low, high = _running_mean(band.low, reach), _running_mean(band.high, reach)
        axes.fill_between(steps, low, high, color=color, alpha=0.15, lw=0)
    elif reach:
        axes.plot(steps, band.mean, color=color, lw=0.8, alpha=0.35)
    axes.plot(
        steps,
        _running_mean(band.mean, reach),
        color=color,
        ls=dash,
        lw=2.0,
        marker=marker if len(steps) > 1 else "o",
        markersize=5,
        markevery=max(len(steps) // 8, 1),
        label=label,
    )
    return True


def _running_mean(values: Sequence[float] | np.ndarray, reach: int) -> np.ndarray:
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
