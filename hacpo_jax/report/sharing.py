"""Who learned from whom: how many answers of each source, and whether they pull the same way."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hacpo_jax.report.curves import panels
from hacpo_jax.report.ensemble import Ensemble
from hacpo_jax.report.run_log import RunLog


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Learners down, sources across; means over runs, NaN where nothing is known.

    Args:
      agents: names, in both directions.
      taken: `[A, A]` answers that entered a learner's updates, over the whole run.
      used: `[A, A]` of these, those that neither the clip nor the cap kept from teaching.
      cosine: `[A, A]` mean cosine between the gradients on the source's and on own answers.
    """

    agents: list[str]
    taken: np.ndarray
    used: np.ndarray
    cosine: np.ndarray


def sharing(one: Ensemble) -> Sharing | None:
    """What a run's metrics and diagnostics say; None where they count no answers by source."""
    parts = [_of_run(log, one.agents) for log in one.logs]
    taken, used, cosine = (np.mean([part[i] for part in parts], axis=0) for i in range(3))
    return None if np.isnan(taken).all() else Sharing(one.agents, taken, used, cosine)


def _of_run(log: RunLog, agents: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    taken, used, cosine = (np.full((len(agents), len(agents)), np.nan) for _ in range(3))
    for k, learner in enumerate(agents):
        for j, source in enumerate(agents):
            name = "own" if j == k else source
            rows = [row for row in log.metrics[learner] if row.get(f"samples/{name}") is not None]
            if rows:
                taken[k, j] = sum(row[f"samples/{name}"] for row in rows)
                used[k, j] = sum(row[f"samples/{name}"] * _kept(row, name) for row in rows)
            looks = [row for row in log.diagnostics if row["agent"] == learner]
            found = [row.get(f"cosine/{source}") for row in looks]
            found = [value for value in found if value is not None]
            if found:
                cosine[k, j] = np.mean(found)
        rescues = [row["rescue/sequences"] for row in log.metrics[learner] if _rescued(row)]
        if rescues and len(agents) == 2:  # with more peers, whose they were is not written down
            j = 1 - k
            taken[k, j] = np.nan_to_num(taken[k, j]) + sum(rescues)
            used[k, j] = np.nan_to_num(used[k, j]) + sum(rescues)
    return taken, used, cosine


def _rescued(row: dict) -> bool:
    return row.get("rescue/sequences") is not None


def _kept(row: dict, name: str) -> float:
    lost = [row.get(f"{kind}/{name}") or 0.0 for kind in ("clip_fraction", "capped_fraction")]
    return max(1.0 - sum(lost), 0.0)


def sharing_figure(shown: Sequence[Ensemble]) -> Figure | None:
    """A matrix for each kind of run that shares anything; None where none does."""
    found = [(one, sharing(one)) for one in shown]
    known = [(one, matrix) for one, matrix in found if matrix is not None]
    if not known:
        return None
    count = max(len(matrix.agents) for _, matrix in known)
    size = (2.0 + 1.5 * count, 1.6 + 0.95 * count)
    figure, grid = panels(1, len(known), size=(size[0] * len(known), size[1]))
    most = max(float(np.nanmax(matrix.used)) for _, matrix in known)
    for axes, (one, matrix) in zip(grid[0], known, strict=True):
        axes.imshow(np.nan_to_num(matrix.used), cmap="Blues", vmin=0, vmax=1.25 * max(most, 1))
        for place in np.ndindex(matrix.used.shape):
            text, dark = _cell(matrix, place), matrix.used[place] > 0.7 * most
            color = "white" if dark else "0.15"
            axes.text(place[1], place[0], text, ha="center", va="center", color=color, fontsize=9)
        axes.set_xticks(range(len(matrix.agents)), [f"of {name}" for name in matrix.agents])
        axes.set_yticks(range(len(matrix.agents)), [f"{name}\nlearns" for name in matrix.agents])
        axes.set_title(
            "Answers used" + (f": {one.name}" if len(shown) > 1 else ""),
            loc="left",
            fontsize=11,
            fontweight="bold",
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def _cell(matrix: Sharing, place: tuple[int, ...]) -> str:
    if np.isnan(matrix.taken[place]):
        return "nothing"
    lines = [f"{matrix.used[place]:,.0f}", f"of {matrix.taken[place]:,.0f}"]
    if not np.isnan(matrix.cosine[place]):
        lines.append(f"cosine {matrix.cosine[place]:+.2f}")
    return "\n".join(lines)


PHASES = ("rollout", "rescore", "verify", "share", "diagnose", "update")
_PHASE_COLORS = ("#56B4E9", "#0072B2", "#F0E442", "#E69F00", "#CC79A7", "#009E73")


def times_figure(shown: Sequence[Ensemble]) -> Figure | None:
    """Seconds of each phase in a step; None where no time was taken."""
    rows = [
        (f"{agent}\n{one.name}" if len(shown) > 1 else agent, _seconds(one, agent))
        for one in shown
        for agent in one.agents
    ]
    rows = [(name, seconds) for name, seconds in rows if seconds]
    if not rows:
        return None
    figure, grid = panels(1, 1, size=(7, 1.5 + 0.55 * len(rows)))
    axes = grid[0, 0]
    start = np.zeros(len(rows))
    for phase, color in zip(PHASES, _PHASE_COLORS, strict=True):
        width = np.array([seconds.get(phase, 0.0) for _, seconds in rows])
        if width.any():
            axes.barh(range(len(rows)), width, left=start, color=color, label=phase, height=0.6)
        start += width
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("mean seconds of a step, the first left out")
    axes.set_title("Time by phase", loc="left", fontsize=11, fontweight="bold")
    axes.grid(alpha=0.25, axis="x")
    figure.legend(loc="outside lower center", ncols=6, fontsize=9)
    return figure


def _seconds(one: Ensemble, agent: str) -> dict[str, float]:
    """Mean seconds of the phases that there are, of all steps but the first, which compiles."""
    rows = [row for log in one.logs for row in log.metrics[agent][1:] or log.metrics[agent]]
    means = {
        phase: float(np.mean([row.get(f"time/{phase}") or 0.0 for row in rows])) for phase in PHASES
    }
    return {phase: seconds for phase, seconds in means.items() if seconds}
