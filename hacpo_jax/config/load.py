"""From a YAML file and `key=value` words to a checked `Config`."""

import copy
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigIndexError, OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from hacpo_jax.config.files import merged, read_config
from hacpo_jax.config.schema import Config, check
from hacpo_jax.errors import UserError

_INHERITED = ("optimizer", "algorithm", "mesh")
"""Top-level sections that agents start from."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override, validate.

    Args:
      path: a YAML file; `extends: FILE` in it takes what it does not name from another one.
      overrides: words such as `training.steps=10` or `agents.0.model=DIR`; values are YAML.

    Returns:
      The checked config; agents carry their whole optimizer and algorithm.

    Raises:
      UserError: for an unreadable file, an unknown key (with the nearest right one) or a bad
        value, in one line.
    """
    tree = OmegaConf.create(read_config(path))
    for word in overrides:
        _override(tree, word)
    try:
        data = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError("--config", str(path), f"cannot be resolved: {error}") from None
    return parse_config(typing.cast(dict[str, Any], data))


def parse_config(data: dict[str, Any]) -> Config:
    """Validate plain data, which is left as it is; see `load_config`."""
    data = copy.deepcopy(data)
    for section in _INHERITED:
        _inherit(data, section)
    try:
        return check(Config.model_validate(data))
    except ValidationError as error:
        raise _one_line(error) from None


def save_config(config: Config, path: Path) -> None:
    """Write the resolved config as YAML that `load_config` reads back equal."""
    path.write_text(config_text(config), encoding="utf-8")


def config_text(config: Config) -> str:
    """The resolved config as YAML.

    Agents name what differs from the top-level sections alone: an override of those, when the file
    is read again, reaches the agents too.
    """
    data = config.model_dump(mode="json")
    for agent in data["agents"]:
        for section in _INHERITED:
            agent[section] = _difference(agent[section], data[section])
            if not agent[section]:
                del agent[section]
    tree = OmegaConf.create(_without_interpolation(data))
    return OmegaConf.to_yaml(tree)


def _difference(own: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """What `merged` needs besides `shared` to give `own`, which has the same keys."""
    found = {}
    for key, value in own.items():
        if isinstance(value, dict):
            value = _difference(value, shared[key])
            if value:
                found[key] = value
        elif value != shared[key]:
            found[key] = value
    return found


def _without_interpolation(value: Any) -> Any:
    """Plain data whose `${` OmegaConf takes for text."""
    if isinstance(value, dict):
        return {key: _without_interpolation(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_interpolation(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)
    return value


def _inherit(data: dict[str, Any], section: str) -> None:
    """Agents start from a top-level section and name only what differs."""
    shared, agents = data.get(section), data.get("agents")
    if not isinstance(shared, dict) or not isinstance(agents, list):
        return
    for agent in agents:
        if isinstance(agent, dict):
            own = agent.get(section) or {}
            if isinstance(own, dict):
                agent[section] = merged(shared, own)


def _override(tree, word: str) -> None:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UserError("override", word, "must be key=value, e.g. training.steps=10")
    if key == "extends":
        raise UserError("override", word, "works in YAML files only; pass the file to --config")
    try:
        parsed = OmegaConf.from_dotlist([f"value={value}"])
        # Interpolations stay as they are: they mean keys of the whole tree.
        plain = typing.cast(dict, OmegaConf.to_container(parsed, resolve=False))["value"]
        OmegaConf.update(tree, key, plain, merge=False, force_add=True)
    except (IndexError, ConfigIndexError):
        remedy = (
            "names an entry that its list does not have; the first is 0, and more are added in the "
            "YAML file"
        )
        raise UserError("override", word, remedy) from None
    except (yaml.YAMLError, OmegaConfBaseException, TypeError, ValueError) as error:
        raise UserError("override", word, f"cannot be applied ({error})") from None


def _one_line(error: ValidationError) -> UserError:
    """The first problem, told as field, value and remedy."""
    errors = error.errors()
    # Agents inherit top-level sections and their faults: the shortest path is the cause.
    first = min(errors, key=lambda e: (e["type"] != "extra_forbidden", len(e["loc"])))
    if first["type"] == "too_short":  # what an item's own fault does to its list, among others
        first = next((e for e in errors if e["loc"][:-1] == first["loc"]), first)
    path = [part for part in first["loc"] if part not in _TAGS]
    field = ".".join(map(str, path)) or "config"
    others = len({(e["loc"][-1:], repr(e["input"])) for e in errors}) - 1
    more = f" (and {others} more)" if others else ""
    if first["type"] == "extra_forbidden":
        return UserError(field, first["input"], f"unknown key; {_hint(path)}{more}")
    if first["type"] == "missing":
        return UserError(field, None, f"is required{more}")
    return UserError(field, first["input"], remedy_of(first) + more)


def remedy_of(error: Mapping[str, Any]) -> str:
    """What one of `ValidationError.errors()` asks for, in the words of somebody who knows YAML."""
    for kinds, words in _TOLD.items():
        if error["type"] in kinds:
            return words.format(**error.get("ctx", {}))
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


_TOLD = {
    (
        "dict_type",
        "model_type",
        "model_attributes_type",
    ): "must be a mapping, such as {{key: value}}",
    ("list_type", "tuple_type"): "must be a list, such as [1, 2]",
    ("int_type", "int_parsing", "int_from_float"): "must be a whole number",
    ("float_type", "float_parsing"): "must be a number",
    ("bool_type", "bool_parsing"): "must be true or false",
    ("string_type",): "must be text",
    ("string_pattern_mismatch",): "has characters that it must not have; allowed is {pattern}",
    ("string_too_short", "too_short"): "must not be empty",
    ("union_tag_invalid",): "its {discriminator} must be one of {expected_tags}",
    ("union_tag_not_found",): "must name its {discriminator}",
}
_KINDS = ("arithmetic", "reasoning_gym", "jsonl", "parquet", "hub", "preset")
_TAGS = ("<path>", "<new>", "<text>", "<list>", *_KINDS)


def _hint(path: list) -> str:
    """The nearest key that exists: among its would-be siblings first, then anywhere."""
    keys = sorted({"extends", *_paths(Config)}, key=lambda key: (key.count("."), key))
    parent = [str(part) for part in path[:-1]]
    siblings = [k.rpartition(".")[2] for k in keys if _matches(k.split(".")[:-1], parent)]
    if path[-1] in siblings:
        return "it goes with another kind"
    close = difflib.get_close_matches(str(path[-1]), siblings, n=1)
    if close:
        return f"did you mean {'.'.join([*parent, close[0]])!r}?"
    same_leaf = [k for k in keys if k.rpartition(".")[2] == path[-1]]
    if same_leaf:
        return f"did you mean {same_leaf[0].replace('*', '0')!r}?"
    return f"known are {', '.join(siblings)}"


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
    if origin in (list, tuple, dict):
        inner = [part for part in typing.get_args(annotation) if part is not ...]
        yield from _sections(inner[-1], prefix + ".*")
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _sections(option, prefix)
    elif origin is typing.Annotated:
        yield from _sections(typing.get_args(annotation)[0], prefix)
