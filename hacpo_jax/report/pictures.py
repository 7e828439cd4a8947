"""The pictures of a report."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hacpo_jax.report.curves import Panel, Style, draw, panels
from hacpo_jax.report.ensemble import Ensemble
from hacpo_jax.report.sharing import sharing_figure, times_figure

_REWARD = Panel("Reward of each agent's own answers", "mean reward", "reward/mean")
_OMEGA = Panel(
    "Capability ratio ω: the agent against its peer",
    "ω (1 = equally able)",
    "omega/",
    level=1.0,
    log=True,
    about="Above 1 the agent has been rewarded more than its peer over the last steps.",
)
_CROSS = Panel(
    "Cross ratio: peers' answers under the agent",
    "importance ratio (1 = as likely)",
    "ratio/",
    level=1.0,
    log=True,
    cross=True,
    about="How likely the agent finds its peers' answers, beside the peers themselves.",
)
PANELS = {
    "reward": _REWARD,
    "capability": Panel("Capability: mean reward over the window", "capability", "capability"),
    "capability_ratio": _OMEGA,
    "cross_ratio": _CROSS,
    "own_ratio": Panel(
        "Own ratio: own answers when they are learned from",
        "importance ratio",
        "ratio/own",
        level=1.0,
        cross=False,
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
    "gated_prompts": Panel(
        "Gate: problems that only peers solved",
        "share of problems",
        "gated_prompts",
        about="Where a success-gated transfer has something to give.",
    ),
    "kl": Panel("KL to the frozen start", "nats per token", "kl"),
    "entropy": Panel("Entropy of the policy on own answers", "nats per token", "entropy"),
    "response_length": Panel(
        "Length of own answers", "mean tokens, end token included", "response_length/mean"
    ),
    "truncated": Panel("Own answers cut off at the limit", "share", "truncated", share=True),
    "grad_norm": Panel("Gradient norm before clipping", "mean over updates", "grad_norm"),
}
"""Pictures of one panel each, by file name."""


def draw_all(shown: Sequence[Ensemble]) -> dict[str, Figure]:
    """All pictures by file name, `overview` first; what is not part of the runs has none."""
    style = Style(shown)
    figures = {"overview": _overview(shown, style)}
    if any(one.benchmarks for one in shown):
        figures["accuracy"] = _accuracy_over_steps(shown, style)
    for name, panel in PANELS.items():
        figure, grid = panels(1, 1, size=(7, 4.2))
        if draw(grid[0, 0], panel, shown, style, legend=True):
            figures[name] = figure
    for name, figure in {"sharing": sharing_figure(shown), "time": times_figure(shown)}.items():
        if figure is not None:
            figures[name] = figure
    return figures


def _overview(shown: Sequence[Ensemble], style: Style) -> Figure:
    """Reward, capability ratio, cross ratio, and accuracy before and after."""
    figure, grid = panels(2, 2, size=(12, 7.4))
    draw(grid[0, 0], _REWARD, shown, style, legend=False)
    draw(grid[0, 1], _OMEGA, shown, style, legend=False)
    draw(grid[1, 0], _CROSS, shown, style, legend=False)
    _before_and_after(grid[1, 1], shown, style)
    handles = style.handles(shown)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    return figure


def _before_and_after(axes: Axes, shown: Sequence[Ensemble], style: Style) -> None:
    """For each agent and benchmark an arrow from its first accuracy to its last."""
    axes.set_title("Held-out accuracy, before → after", loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("problems solved")
    rows = [
        (one, benchmark, agent, one.accuracy(agent, benchmark))
        for one in shown
        for benchmark in one.benchmarks
        for agent in one.agents
    ]
    rows = [row for row in rows if len(row[3].steps)]
    several = len({benchmark for _, benchmark, *_ in rows}) > 1
    for y, (one, _, agent, band) in enumerate(rows):
        first, last, color = float(band.mean[0]), float(band.mean[-1]), style.color(agent)
        axes.plot([first, last], [y, y], color=color, lw=3, alpha=0.5, ls=style.dash(one.name))
        axes.scatter([first], [y], s=70, facecolor="white", edgecolor=color, linewidth=2, zorder=3)
        axes.scatter([last], [y], s=80, color=color, zorder=4)
        note = f"{first:.0%} → {last:.0%}" if len(band.steps) > 1 else f"{first:.0%}"
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
        (f"{agent}\n{one.name}" if len(shown) > 1 else agent)
        + (f"\n{benchmark}" if several else "")
        for one, benchmark, agent, _ in rows
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25, axis="x")
    if not rows:
        axes.text(0.5, 0.5, "not measured yet", transform=axes.transAxes, ha="center", color="0.45")


def _accuracy_over_steps(shown: Sequence[Ensemble], style: Style) -> Figure:
    """One panel per benchmark."""
    benchmarks = list(dict.fromkeys(name for one in shown for name in one.benchmarks))
    figure, grid = panels(len(benchmarks), 1, size=(7, 0.8 + 3.4 * len(benchmarks)))
    for axes, benchmark in zip(grid[:, 0], benchmarks, strict=True):
        for one in shown:
            for agent in one.agents:
                band, color = one.accuracy(agent, benchmark), style.color(agent)
                axes.fill_between(band.steps, band.low, band.high, color=color, alpha=0.15, lw=0)
                axes.plot(
                    band.steps,
                    band.mean,
                    color=color,
                    ls=style.dash(one.name),
                    lw=2,
                    marker="o",
                    label=style.label(one.name, agent),
                )
        axes.set_title(f"Accuracy on {benchmark}", loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("training step")
        axes.set_ylabel("problems solved")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=9, framealpha=0.85)
    return figure
