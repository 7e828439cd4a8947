"""One HTML page of everything, that needs no other file and runs no script.

What models wrote, and names, are text of strangers: the template escapes all of it, and the page
forbids itself scripts and anything from elsewhere.
"""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from hacpo_jax.evaluation import figures_rows
from hacpo_jax.evaluation.tables import main_lines
from hacpo_jax.report.answers import side_by_side
from hacpo_jax.report.ensemble import Ensemble
from hacpo_jax.report.pictures import PANELS

_WIDE = ("overview", "accuracy", "sharing", "time")
_ALT = {
    "overview": "Reward, capability ratio, cross ratio, and accuracy before and after",
    "accuracy": "Accuracy over training steps",
    "sharing": "Answers of each source that each learner used",
    "time": "Seconds of each phase",
}


def page(shown: Sequence[Ensemble], figures: Mapping[str, Figure]) -> str:
    """The page's HTML.

    Args:
      shown: the runs.
      figures: pictures by file name.
    """
    pictures = {name: _svg(figure) for name, figure in figures.items()}
    panels = [
        {"title": PANELS[name].title, "about": PANELS[name].about, "data": data}
        for name, data in pictures.items()
        if name not in _WIDE
    ]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(
        (Path(__file__).parent / "page.html.jinja").read_text(encoding="utf-8")
    )
    return template.render(
        title=", ".join(one.name for one in shown),
        wide={name: (_ALT[name], pictures[name]) for name in _WIDE if name in pictures},
        panels=panels,
        runs=[_run_row(one) for one in shown],
        accuracy=[row for one in shown for row in _accuracy_rows(one)],
        several_seeds=any(len(one.logs) > 1 for one in shown),
        evaluated=_evaluated(shown),
        problems=side_by_side(shown),
        differences=_differences(shown),
    )


def _svg(figure: Figure) -> str:
    """A picture as a `data:` address; inside an image nothing can run."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


def _run_row(one: Ensemble) -> dict[str, Any]:
    log = one.logs[0]
    algorithms = {agent: one.algorithm(agent) for agent in one.agents}
    names = dict.fromkeys(found.name for found in algorithms.values() if found is not None)
    return {
        "name": one.name,
        "algorithm": ", ".join(names) or "unknown",
        "agents": one.agents,
        "seeds": [str(run.config.seed) for run in one.logs if run.config is not None],
        "steps": max(row["step"] for rows in log.metrics.values() for row in rows),
        "directories": [str(run.directory) for run in one.logs],
    }


def _accuracy_rows(one: Ensemble) -> list[dict[str, Any]]:
    rows = []
    for agent in one.agents:
        for benchmark in one.benchmarks:
            band = one.accuracy(agent, benchmark)
            if not len(band.steps):
                continue
            before, after = float(band.mean[0]), float(band.mean[-1])
            changes = [
                100 * (values[-1] - values[0])
                for _, values in (log.accuracy(agent, benchmark) for log in one.logs)
            ]
            error = np.std(changes, ddof=1) / len(changes) ** 0.5 if len(changes) > 1 else None
            rows.append(
                {
                    "run": one.name,
                    "agent": agent,
                    "benchmark": benchmark,
                    "before": f"{before:.1%}",
                    "after": f"{after:.1%}",
                    "change": f"{np.mean(changes):+.1f}"
                    + ("" if error is None else f" ± {error:.1f}"),
                    "better": np.mean(changes) > 0,
                }
            )
    return rows


def _evaluated(shown: Sequence[Ensemble]) -> list[list[str]]:
    """What `eval` found, if it was run on any of the runs."""
    rows = []
    for log in (log for one in shown for log in one.logs):
        path = None if log.directory is None else log.directory / "evaluation.json"
        if path is not None and path.is_file():
            figures = json.loads(path.read_text())
            # An earlier version wrote no draws.
            rows += figures_rows({**figures, "subject": log.name}) if "draws" in figures else []
    return main_lines(rows) if rows else []


def _differences(shown: Sequence[Ensemble]) -> list[list[str]]:
    """Settings that are not the same in all runs; a heading first."""
    if len(shown) < 2 or any(one.logs[0].config is None for one in shown):
        return []
    settings = [_flat(one.logs[0].config.model_dump(mode="json")) for one in shown]  # type: ignore[union-attr]
    keys = dict.fromkeys(key for found in settings for key in found)
    lines = [
        [key, *(str(found.get(key, "")) for found in settings)]
        for key in keys
        if len({json.dumps(found.get(key)) for found in settings}) > 1
        and key.split(".")[0] not in ("run_dir", "seed", "checkpoint", "tracking")
    ]
    return [["setting", *(one.name for one in shown)], *lines] if lines else []


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings and lists."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, item in items for k, v in _flat(item, f"{prefix}.{key}").items()}
    return {prefix.lstrip("."): value}
