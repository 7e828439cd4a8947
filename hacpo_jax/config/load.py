"""From a YAML file and `key=value` words to a checked `Config`."""

import copy
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigIndexError, OmegaConfBaseException
from pydantic import ValidationError

from hacpo_jax.config.faults import first_fault
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
        raise first_fault(error, Config) from None


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
        if re.search(r"[.\[]-\d+([.\[\]]|$)", key):  # OmegaConf would count from the end
            raise IndexError(key)
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
