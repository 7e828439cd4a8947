"""Configs that come with the package."""

from pathlib import Path

import hacpo_jax
from hacpo_jax.errors import UserError

DEFAULT_CONFIG = "quickstart"
BUILT_IN = Path(hacpo_jax.__path__[0]) / "configs"


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
    if path.exists():
        return path
    built_in = BUILT_IN / f"{path.stem}.yaml"
    if built_in.is_file() and path.suffix in ("", ".yaml") and str(path.parent) in (".", "configs"):
        return built_in
    known = ", ".join(sorted(file.stem for file in BUILT_IN.glob("*.yaml")))
    raise UserError("--config", name, f"no such file; built-in configs are {known}")
