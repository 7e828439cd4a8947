"""The config as a Markdown table: `python -m hacpo_jax.config.table`."""

import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hacpo_jax.config.schema import Config


def config_table() -> str:
    """Every key with its default and meaning, from the docstrings of the sections."""
    rows = [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _rows(Config, "")]
    rows = list(dict.fromkeys(rows))  # what several kinds have in common is told once
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _rows(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    meanings = _meanings(section)
    own_first = sorted(
        section.model_fields.items(),
        key=lambda f: f[0] not in vars(section).get("__annotations__", {}),
    )
    for name, info in own_first:
        key, below = prefix + name, list(_sections(info.annotation))
        # Laid out like `optimizer`, `algorithm`, `mesh` and `task.train`.
        known = key in ("agents.N.optimizer", "agents.N.algorithm", "agents.N.mesh", "task.eval")
        if known or not below or not _is_section_only(info.annotation):
            yield key, _default(name, info), meanings[name]
        if known:
            continue
        for nested, suffix in below:
            yield from _rows(nested, f"{key}{suffix}.")


def _is_section_only(annotation: Any) -> bool:
    """Whether a field holds one kind of section and nothing else: its own row says nothing."""
    if typing.get_origin(annotation) is list:
        annotation = typing.get_args(annotation)[0]
    return isinstance(annotation, type)


def _meanings(section: type[BaseModel]) -> dict[str, str]:
    """Descriptions under "Attributes:" in the docstrings of a section and those it extends."""
    meanings = {}
    for part in reversed(section.__mro__):
        block = inspect.cleandoc(part.__doc__ or "").partition("Attributes:\n")[2]
        entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", block, flags=re.MULTILINE)
        for name, meaning in entries:
            meanings[name] = " ".join(meaning.split()).replace("|", "\\|")
    return meanings


def _default(name: str, info) -> str:
    if info.default is PydanticUndefined:
        return "required"
    if isinstance(info.default, BaseModel):
        return f"as `{name}`"
    return f"`{json.dumps(info.default)}`"


def _sections(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Sections below a field, with what stands between its name and theirs."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
    origin = typing.get_origin(annotation)
    if origin in (list, tuple, dict):
        inner = [part for part in typing.get_args(annotation) if part is not ...]
        for section, suffix in _sections(inner[-1]):
            yield section, (".NAME" if origin is dict else ".N") + suffix
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _sections(option)
    elif origin is typing.Annotated:
        yield from _sections(typing.get_args(annotation)[0])


if __name__ == "__main__":
    print(config_table())
