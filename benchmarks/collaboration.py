"""Whether sharing answers helps: algorithms against each other on the quickstart's task.

Every algorithm starts from the same warm-started agents, once for each setting and seed, and gets
the same budget. Runs are kept: the same command goes on where an earlier one ended.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path

import yaml
from collaboration_study.execute import (
    Failure,
    make_run,
    make_start,
    run_status,
    start_is_made,
)
from collaboration_study.figure import draw_figure
from collaboration_study.plan import ALGORITHMS, BUDGETS, SETTINGS, Start, StudyRun, plan
from collaboration_study.results import read_results
from collaboration_study.tables import document

from hacpo_jax.cli.configs import find_config
from hacpo_jax.errors import UserError


def main(words: list[str]) -> int:
    """Run the study.

    Returns:
      The exit code: 0; 1 when a run failed; 2 for bad input; 130 when interrupted.
    """
    options = _options(words)
    base = yaml.safe_load(find_config("quickstart").read_text(encoding="utf-8"))
    try:
        runs = plan(
            base,
            settings=options.setting,
            algorithms=options.algorithms,
            seeds=options.seeds,
            steps=options.steps,
            budget=options.budget,
            out=options.out,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        _show(runs)
        return 0
    try:
        failed = _execute(runs, base)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        _write(runs, options, words)
    if failed:
        print(f"{failed} of {len(runs)} runs failed; the same command tries them again")
    return 1 if failed else 0


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    pick = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument(
        "--algorithms",
        choices=ALGORITHMS,
        default=["hacpo", "gspo", "gspo_x2", "naive"],
        help=f"of {', '.join(ALGORITHMS)}",
        **pick,
    )
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", default=[0, 1, 2])
    parser.add_argument(
        "--setting",
        choices=SETTINGS,
        default=["complementary", "model"],
        help=f"how the two agents differ, of {', '.join(SETTINGS)}",
        **pick,
    )
    parser.add_argument(
        "--budget",
        choices=BUDGETS,
        default="steps",
        help="what all algorithms have in common; updates are those of one learner",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=40,
        metavar="N",
        help="of an algorithm with the usual group size; for updates, of one that shares answers",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/collaboration"), metavar="DIR")
    parser.add_argument("--dry-run", action="store_true", help="show the runs and do nothing")
    options = parser.parse_args(words)
    for name in ("algorithms", "seeds", "setting"):
        setattr(options, name, list(dict.fromkeys(getattr(options, name))))
    return options


def _show(runs: list[StudyRun]) -> None:
    """What the study would do."""
    for start in _starts(runs):
        made = "made already" if start_is_made(start) else "to be made"
        print(f"start of {start.setting}, seed {start.seed}: {made}")
    for run in runs:
        training = run.config.training
        answers = training.steps * training.prompts_per_step * training.group_size
        print(
            f"{run.name}: {training.steps} steps, {answers:,} answers and {run.updates:,} updates"
            f" of each agent ({run_status(run.directory, run.config)})"
        )


def _starts(runs: list[StudyRun]) -> list[Start]:
    return list({run.start.directory: run.start for run in runs}.values())


def _execute(runs: list[StudyRun], base: dict) -> int:
    """Make what is missing, and count the runs that cannot be had."""
    failed, broken = 0, set()
    for number, run in enumerate(runs, 1):
        started, place = time.monotonic(), f"[{number}/{len(runs)}] {run.name}"
        status = run_status(run.directory, run.config)
        if status == "finished":
            print(f"{place}: finished already, skipped", flush=True)
            continue
        try:
            if run.start.directory in broken:
                raise Failure("no start")
            if not start_is_made(run.start):
                _prepare(run.start, base, broken)
                started = time.monotonic()
            make_run(run)
        except Failure as failure:
            failed += 1
            print(f"{place}: FAILED: {failure}", flush=True)
            continue
        how = "went on and finished" if status == "started" else "finished"
        print(f"{place}: {how} in {time.monotonic() - started:.0f} s", flush=True)
    return failed


def _prepare(start: Start, base: dict, broken: set[Path]) -> None:
    """Make a start, and remember that it cannot be made."""
    started = time.monotonic()
    try:
        make_start(start, base)
    except Failure:
        broken.add(start.directory)
        raise
    seconds = time.monotonic() - started
    print(f"start of {start.setting}, seed {start.seed}: made in {seconds:.0f} s", flush=True)


def _write(runs: list[StudyRun], options: argparse.Namespace, words: list[str]) -> None:
    """The table and the figure of all runs that are finished."""
    finished = [run for run in runs if run_status(run.directory, run.config) == "finished"]
    if not finished:
        return
    results = [result for run in finished for result in read_results(run)]
    results.sort(key=lambda r: (options.setting.index(r.setting), _place(options, r.algorithm)))
    name = f"{options.budget}_{options.steps}"
    table, figure = options.out / f"{name}.md", options.out / f"{name}.png"
    title = f"{options.steps} steps, equal {options.budget}"
    command = shlex.join(["python", "benchmarks/collaboration.py", *words])
    missing = len(runs) - len(finished)
    text = document(results, runs, title=title, command=command, missing=missing)
    table.write_text(text, encoding="utf-8")
    draw_figure(results, figure)
    print(f"table: {table}\nfigure: {figure}")


def _place(options: argparse.Namespace, algorithm: str) -> int:
    return options.algorithms.index(algorithm)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
