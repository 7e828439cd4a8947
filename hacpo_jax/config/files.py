"""A config's YAML file, laid over those that it extends."""

import os
import typing
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hacpo_jax.errors import UserError

BUILT_IN = Path(__file__).resolve().parents[1] / "configs"
"""Where the configs are that have names."""


def built_in(name: str) -> Path | None:
    """The file of a built-in config called `quickstart`, `quickstart.yaml` or
    `configs/quickstart.yaml`; None where there is none of that name."""
    path = Path(name)
    stem = path.name.removesuffix(".yaml")  # not Path.stem: names hold dots, as in qwen3_1.7b
    file = BUILT_IN / f"{stem}.yaml"
    return file if str(path.parent) in (".", "configs") and file.is_file() else None


def read_config(path: str | Path) -> dict[str, Any]:
    """The plain data of a YAML file.

    `extends: FILE` at the top of it takes everything from another file, named relative to the one
    it stands in, or from a built-in config, by its name as for `--config`: mappings are merged key
    by key, anything else is replaced, lists too. Each file has its own anchors; interpolations are
    left as they are and so mean keys of the whole.

    Raises:
      UserError: a file that cannot be read, or that extends itself.
    """
    path = Path(path)
    return _read(path, ("--config", str(path)), ())


def merged(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` laid over `shared`, mappings key by key; neither is changed."""
    result = {**shared, **own}
    for key in shared.keys() & own.keys():
        if isinstance(shared[key], dict) and isinstance(own[key], dict):
            result[key] = merged(shared[key], own[key])
    return result


def _read(path: Path, named: tuple[str, str], above: tuple[Path, ...]) -> dict[str, Any]:
    """One file and those below it.

    Args:
      path: the file.
      named: where the user named it and how, for errors.
      above: the files that lead here by `extends`.
    """
    where = f"(in {above[-1]}) " if above else ""
    if os.path.realpath(path) in map(os.path.realpath, above):
        circle = " -> ".join(file.name for file in (*above, path))
        raise UserError(*named, f"{where}goes in a circle: {circle}")
    own = _load(path, named, where)
    if "extends" not in own:
        return own
    base = own.pop("extends")
    if not isinstance(base, str) or not base:
        raise UserError("extends", base, f"(in {path}) must name one YAML file")
    beside = path.parent / base
    below = beside if beside.exists() else built_in(base) or beside
    return merged(_read(below, ("extends", base), (*above, path)), own)


def _load(path: Path, named: tuple[str, str], where: str) -> dict[str, Any]:
    try:
        tree = OmegaConf.load(path)
    except OSError as error:
        raise UserError(*named, f"{where}cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(*named, f"{where}is not valid YAML: {error}") from None
    if not OmegaConf.is_dict(tree):
        raise UserError(*named, f"{where}must hold a mapping of sections")
    return typing.cast(dict[str, Any], OmegaConf.to_container(tree, resolve=False))
