"""From a YAML file and `key=value` words to a checked `Config`."""

import difflib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from hacpo_jax.config.schema import Config, check
from hacpo_jax.errors import UserError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override, validate.

    Args:
      path: a YAML file.
      overrides: words such as `training.steps=10` or `agents.0.model=DIR`; values are YAML.

    Returns:
      The checked config; agents carry their whole optimizer section.

    Raises:
      UserError: for an unreadable file, an unknown key (with the nearest right one) or a bad
        value, in one line.
    """
    try:
        tree = OmegaConf.load(path)
    except OSError as error:
        raise UserError("--config", str(path), f"cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError("--config", str(path), f"is not valid YAML: {error}") from None
    if not OmegaConf.is_dict(tree):
        raise UserError("--config", str(path), "must hold a mapping of sections")
    for word in overrides:
        _override(tree, word)
    try:
        data = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError("--config", str(path), f"cannot be resolved: {error}") from None
    return parse_config(typing.cast(dict[str, Any], data))


def parse_config(data: dict[str, Any]) -> Config:
    """Validate plain data; see `load_config`."""
    _inherit_optimizer(data)
    try:
        return check(Config.model_validate(data))
    except ValidationError as error:
        raise _one_line(error) from None


def save_config(config: Config, path: Path) -> None:
    """Write the resolved config as YAML that `load_config` reads back equal."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def _inherit_optimizer(data: dict[str, Any]) -> None:
    """Agents start from the top-level optimizer and name only what differs."""
    shared, agents = data.get("optimizer"), data.get("agents")
    if not isinstance(shared, dict) or not isinstance(agents, list):
        return
    for agent in agents:
        if isinstance(agent, dict):
            own = agent.get("optimizer") or {}
            if isinstance(own, dict):
                agent["optimizer"] = {**shared, **own}


def _override(tree, word: str) -> None:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UserError("override", word, "must be key=value, e.g. training.steps=10")
    try:
        parsed = OmegaConf.from_dotlist([f"value={value}"]).value
        OmegaConf.update(tree, key, parsed, force_add=True)
    except (yaml.YAMLError, OmegaConfBaseException, IndexError, TypeError, ValueError) as error:
        raise UserError("override", word, f"cannot be applied ({error})") from None


def _one_line(error: ValidationError) -> UserError:
    """The first problem, told as field, value and remedy."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = [part for part in first["loc"] if part not in _TAGS]
    field = ".".join(map(str, path)) or "config"
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    if first["type"] == "extra_forbidden":
        near = _nearest(path)
        hint = f"did you mean {near!r}?" if near else "see the config table in the README"
        return UserError(field, first["input"], f"unknown key; {hint}{more}")
    if first["type"] == "missing":
        return UserError(field, None, f"is required{more}")
    message = first["msg"].removeprefix("Value error, ")
    return UserError(field, first["input"], f"{message}{more}")


_TAGS = ("path", "new", "arithmetic", "jsonl")


def _nearest(path: list) -> str | None:
    """The nearest key that exists: among its would-be siblings first, then anywhere."""
    keys = sorted(_paths(Config), key=lambda key: (key.count("."), key))
    parent = [str(part) for part in path[:-1]]
    siblings = [k.rpartition(".")[2] for k in keys if _matches(k.split(".")[:-1], parent)]
    close = difflib.get_close_matches(str(path[-1]), siblings, n=1)
    if close:
        return ".".join([*parent, close[0]])
    same_leaf = [k for k in keys if k.rpartition(".")[2] == path[-1]]
    elsewhere = same_leaf or difflib.get_close_matches(".".join(map(str, path)), keys, n=1)
    return elsewhere[0].replace("*", "0") if elsewhere else None


def _matches(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(
        p in ("*", part) for p, part in zip(pattern, parts, strict=True)
    )


def _paths(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted names of every key below a section; `*` stands for a list index or a free name."""
    names = set()
    for name, info in model.model_fields.items():
        names.add(prefix + name)
        for section, inner in _sections(info.annotation, prefix + name):
            names |= _paths(section, inner + ".")
    return names


def _sections(annotation: Any, prefix: str):
    """Sections reachable through lists, dicts and unions of a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, prefix
        return
    origin = typing.get_origin(annotation)
    if origin in (list, dict):
        yield from _sections(typing.get_args(annotation)[-1], prefix + ".*")
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _sections(option, prefix)
    elif origin is typing.Annotated:
        yield from _sections(typing.get_args(annotation)[0], prefix)
