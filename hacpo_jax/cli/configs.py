"""Configs that come with the package."""

import difflib
from pathlib import Path

from hacpo_jax.config.files import BUILT_IN, built_in
from hacpo_jax.errors import UserError

DEFAULT_CONFIG = "quickstart"
_PAPERS = ("hacpo_", "math_", "mutual_")


def find_config(name: str | None) -> Path:
    """The file that `--config` names.

    Args:
      name: a file, or a built-in config as `quickstart`, `quickstart.yaml` or
        `configs/quickstart.yaml`; None is the quickstart.

    Raises:
      UserError: there is none.
    """
    name = DEFAULT_CONFIG if name is None else name
    path = Path(name)
    if path.exists() and not path.is_dir():
        return path
    found = built_in(name)
    if found is not None:
        return found
    close = difflib.get_close_matches(path.name.removesuffix(".yaml"), built_in_configs(), n=1)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    raise UserError("--config", name, f"no such file; {nearest}built-in configs are {_listed()}")


def built_in_configs() -> dict[str, str]:
    """What each built-in config is, by its name; those that run anywhere come first."""
    names = [path.stem for path in BUILT_IN.glob("*.yaml")]
    names.sort(key=lambda name: (name.startswith(_PAPERS), name))
    return {name: _first_comment(BUILT_IN / f"{name}.yaml") for name in names}


def _first_comment(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines).removeprefix("#").strip()


def _listed() -> str:
    names = list(built_in_configs())
    small = [name for name in names if not name.startswith(_PAPERS)]
    return f"{', '.join(small)}, and with the papers' settings {', '.join(names[len(small) :])}"
