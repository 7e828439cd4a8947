"""What quickstart runs came to, as the README's table: python benchmarks/quickstart.py RUN...

One row for each run directory: held-out accuracy of every agent before and after, the mean ratio of
peers' answers and the mean share of them that carried a gradient, over steps and agents, and the
seconds of the run.
"""

import argparse
import json
import statistics
from pathlib import Path

from collaboration_study.results import cross_ratios

from hacpo_jax.errors import UserError
from hacpo_jax.report import read_log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    changes: dict[str, list[float]] = {}
    try:
        rows = [row_of(directory, changes) for directory in parser.parse_args().runs]
    except UserError as error:
        parser.error(str(error))
    titles = [f"{agent}, held-out %" for agent in changes]
    heading = ["run", *titles, "cross ratio", "peers' answers with a gradient", "seconds"]
    means = [f"**{statistics.fmean(values):+.1f} points**" for values in changes.values()]
    last = ["**mean change**", *means, "", "", ""]
    for cells in (heading, ["---"] * len(heading), *rows, last):
        print(f"| {' | '.join(cells)} |")


def row_of(directory: Path, changes: dict[str, list[float]]) -> list[str]:
    """One run's cells; what each agent gained, in points, is put to its `changes`."""
    log = read_log(directory, directory.name)
    (benchmark,) = log.benchmarks
    cells, ratios, shares = [], [], []
    for agent in log.metrics:
        before, *_, after = (100 * value for value in log.accuracy(agent, benchmark)[1])
        changes.setdefault(agent, []).append(after - before)
        cells.append(f"{before:.1f} → {after:.1f}")
        ratios += cross_ratios(log, agent)
        shares += log.series(agent, "cross_gradient_fraction")[1]
    seconds = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["seconds"]
    means = [f"{statistics.fmean(ratios):.2f}", f"{statistics.fmean(shares):.0%}"]
    return [directory.name, *cells, *means, f"{seconds:.0f}"]


if __name__ == "__main__":
    main()
