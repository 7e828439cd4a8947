"""Writing a report: pictures as PNG files, and everything on one page."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from hacpo_jax.errors import UserError
from hacpo_jax.report.ensemble import ensembles
from hacpo_jax.report.page import page
from hacpo_jax.report.pictures import draw_all
from hacpo_jax.report.run_log import read_log
from hacpo_jax.training.run_dir import replace_text

PAGE = "report.html"


def write_report(run_dirs: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Put runs on one page, on top of each other; those that differ in their seed are one curve.

    Args:
      run_dirs: directories of runs.
      out: where files go; None is `report/` of the first run.

    Returns:
      The page, which needs no other file, and its pictures, `overview.png` first.

    Raises:
      UserError: a directory has no metrics, or files cannot be written.
    """
    logs = [read_log(path, name) for path, name in zip(run_dirs, _names(run_dirs), strict=True)]
    shown, out = ensembles(logs), run_dirs[0] / "report" if out is None else out
    # Names of runs and benchmarks are text: a $ in them starts no formula.
    with matplotlib.rc_context({"text.parse_math": False}):
        figures = draw_all(shown)
        paths = [out / f"{name}.png" for name in figures]
        try:
            out.mkdir(parents=True, exist_ok=True)
            for path, figure in zip(paths, figures.values(), strict=True):
                figure.savefig(path, dpi=130)
            replace_text(out / PAGE, page(shown, figures))
        except OSError as error:
            raise UserError("out", str(out), f"cannot be written ({error.strerror})") from None
    return [out / PAGE, *paths]


def _names(run_dirs: Sequence[Path]) -> list[str]:
    """The last part of each path, or the whole path where that is not enough to tell them apart."""
    short = [path.resolve().name for path in run_dirs]
    names = short if len(set(short)) == len(short) else [str(path) for path in run_dirs]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UserError("run directory", name, "is named twice")
    return names
