"""Results as Markdown, in the layout of HACPO's table 1 (arXiv 2603.02604): agents and algorithms
down, benchmarks and their average across."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

BEFORE = "before training"


@dataclasses.dataclass(frozen=True)
class Row:
    """What one agent came to.

    Args:
      agent: its name.
      algorithm: how it was trained, or `before training`.
      subject: the run, checkpoint or model it comes from.
      scores: figures of each benchmark, from `Graded.summary`.
      headlines: which figure of each benchmark the table shows.
    """

    agent: str
    algorithm: str
    subject: str
    scores: Mapping[str, Mapping[str, Any]]
    headlines: Mapping[str, str]

    def cell(self, benchmark: str) -> tuple[float, float | None] | None:
        """The benchmark's figure and its standard error, shares of 1; None was not measured."""
        if benchmark not in self.scores:
            return None
        scores, name = self.scores[benchmark], self.headlines[benchmark]
        return scores[name], scores[f"{name}/se"]

    def average(self, benchmarks: Sequence[str]) -> tuple[float, float | None] | None:
        """Mean over benchmarks, whose errors are independent; None where one is missing."""
        cells = [self.cell(name) for name in benchmarks]
        found = [cell for cell in cells if cell is not None]
        if len(found) < len(cells):
            return None
        errors = [error for _, error in found if error is not None]
        whole = len(errors) == len(found)
        spread = math.sqrt(sum(e**2 for e in errors)) / len(found) if whole else None
        return sum(value for value, _ in found) / len(found), spread


def figures_rows(figures: Mapping[str, Any]) -> list[Row]:
    """The rows of what is written to `evaluation.json`."""
    headlines = {name: draws["headline"] for name, draws in figures["draws"].items()}
    return [
        Row(agent, figures["algorithms"][agent] or BEFORE, figures["subject"], scores, headlines)
        for agent, scores in figures["agents"].items()
    ]


def results_table(rows: Sequence[Row]) -> str:
    """Markdown: percent with standard errors, an agent's best in bold, then every figure.

    Args:
      rows: of any number of subjects; those of one agent come together, in order.
    """
    agents = list(dict.fromkeys(row.agent for row in rows))
    rows = sorted(rows, key=lambda row: agents.index(row.agent))
    lines = main_lines(rows)
    left = 3 if lines[0][2] == "from" else 2
    return f"{markdown(lines, left)}\n\nEvery figure:\n\n{_details(rows)}\n"


def main_lines(rows: Sequence[Row]) -> list[list[str]]:
    """Heading and rows of the main table; the best of an agent that has several is `**bold**`."""
    benchmarks = list(dict.fromkeys(name for row in rows for name in row.scores))
    columns = [[row.cell(name) for row in rows] for name in benchmarks]
    heads = [_heading(name, rows) for name in benchmarks]
    if len(benchmarks) > 1:
        columns.append([row.average(benchmarks) for row in rows])
        heads.append("average")
    cells = [_column(rows, column) for column in columns]
    names = [[row.agent, row.algorithm] for row in rows]
    if len({tuple(name) for name in names}) < len(names):  # two subjects of one kind
        names = [[*name, row.subject] for name, row in zip(names, rows, strict=True)]
    lines = [["agent", "algorithm", "from"][: len(names[0])] + heads]
    lines += [[*name, *row] for name, row in zip(names, zip(*cells, strict=True), strict=True)]
    return lines


def _heading(benchmark: str, rows: Sequence[Row]) -> str:
    """The benchmark, and what its figure is."""
    row = next(row for row in rows if benchmark in row.scores)
    name = row.headlines[benchmark]
    samples = row.scores[benchmark]["samples"]
    return f"{benchmark} ({f'avg@{samples}' if name == 'accuracy' else name})"


def _column(rows: Sequence[Row], column: Sequence[tuple[float, float | None] | None]) -> list[str]:
    """Cells of one column; the best of an agent that has several is bold."""
    texts = []
    for row, cell in zip(rows, column, strict=True):
        rivals = [c for r, c in zip(rows, column, strict=True) if r.agent == row.agent and c]
        if cell is None:
            texts.append("—")
            continue
        best = len(rivals) > 1 and cell[0] == max(value for value, _ in rivals)
        value = f"**{100 * cell[0]:.1f}**" if best else f"{100 * cell[0]:.1f}"
        texts.append(value if cell[1] is None else f"{value} ± {100 * cell[1]:.1f}")
    return texts


def _details(rows: Sequence[Row]) -> str:
    counted = {
        name: None
        for row in rows
        for scores in row.scores.values()
        for name in scores
        if name.startswith(("best@", "maj@")) and not name.endswith("/se")
    }
    heads = ["agent", "from", "benchmark", "problems", "answers to each", "avg"]
    lines = [[*heads, *counted, "tokens", "cut off", "invalid"]]
    for row in rows:
        for benchmark, scores in row.scores.items():
            values = [scores.get(name) for name in ("accuracy", *counted)]
            lines.append(
                [
                    row.agent,
                    row.subject,
                    benchmark,
                    str(scores["problems"]),
                    str(scores["samples"]),
                    *("—" if value is None else f"{100 * value:.1f}" for value in values),
                    f"{scores['response_length/mean']:.1f}",
                    f"{100 * scores['truncated']:.1f}",
                    str(scores["invalid"]),
                ]
            )
    return markdown(lines, left=3)


def markdown(lines: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table of a heading and rows; the first `left` columns hold text."""
    rows = [[_plain(cell) for cell in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in (rows[0], rule, *rows[1:])
    )


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
