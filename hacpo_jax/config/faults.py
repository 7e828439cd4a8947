"""What is wrong with a config, told as field, value and remedy in the words of its YAML."""

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hacpo_jax.config.base import AT_KEY, FLAG
from hacpo_jax.errors import MISSING, UserError

_KINDS = ("arithmetic", "reasoning_gym", "jsonl", "parquet", "hub", "preset")
_TAGS = ("<path>", "<new>", "<text>", "<list>", *_KINDS)
_NUMBERS = (
    *("int_type", "int_parsing", "int_from_float", "int_parsing_size"),
    *("float_type", "float_parsing", "finite_number", FLAG),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
)
_LIST = "a list, such as [1, 2]"
_SHOWN = 3  # keys of an example
_MAPPINGS = ("dict_type", "model_type", "model_attributes_type")
_TOLD = {
    ("bool_type", "bool_parsing"): "true or false",
    ("string_type",): "text",
}


def first_fault(
    error: ValidationError, model: type[BaseModel], *, knows_null: bool = True
) -> UserError:
    """The first problem of some data.

    Args:
      error: what validating it as `model` raised.
      model: a section.
      knows_null: whether null can be written where a value is optional, as in YAML.
    """
    errors = error.errors()
    # Agents inherit top-level sections and their faults: the shortest path is the cause.
    first = min(errors, key=lambda e: (e["type"] != "extra_forbidden", len(e["loc"])))
    if first["type"] == "too_short":  # what an item's own fault does to its list, among others
        first = next((e for e in errors if e["loc"][:-1] == first["loc"]), first)
    others = len({(e["loc"][-1:], repr(e["input"])) for e in errors}) - 1
    told = _told(typing.cast(Mapping[str, Any], first), model, knows_null)
    more = f" (and {others} more)" if others else ""
    return UserError(told.field, told.value, told.remedy + more)


def _told(error: Mapping[str, Any], model: type[BaseModel], knows_null: bool) -> UserError:
    """One of `ValidationError.errors()`."""
    loc, kind, context = list(error["loc"]), error["type"], error.get("ctx", {})
    value = error["input"]
    if kind in (AT_KEY, FLAG):
        loc, value = [*loc, context["key"]], context["value"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        loc, value = [*loc, "kind"], context.get("tag", MISSING)
    path = [part for part in loc if part not in _TAGS]
    field = ".".join(map(str, path)) or "config"
    info = _field(model, loc)
    if kind == "extra_forbidden":
        return UserError(field, value, f"unknown key; {_hint(model, path)}")
    if kind == "missing":
        return UserError(field, MISSING, f"is required; write {field}={_form(info)}")
    if kind == "union_tag_not_found":
        return UserError(field, value, f"is required; it is one of {', '.join(_KINDS)}")
    if kind == "union_tag_invalid":
        return UserError(field, value, f"must be one of {', '.join(_KINDS)}")
    return UserError(field, value, _remedy(error, info, knows_null))


def _remedy(error: Mapping[str, Any], info: FieldInfo | None, knows_null: bool) -> str:
    """What a value must be, and what it is where nothing is written."""
    kind, of_item = error["type"], isinstance(error["loc"][-1], int)
    usual = "" if of_item else _default(info)
    if kind == AT_KEY:
        return error["msg"]
    if kind in ("string_too_short", "too_short"):
        return f"must not be empty{usual}"
    words = next((words for kinds, words in _TOLD.items() if kind in kinds), None)
    if info is not None and kind in _NUMBERS:
        words = _number(info)
    elif kind in _MAPPINGS:
        words = _mapping(info, of_item)
    elif kind in ("list_type", "tuple_type"):
        sections = info is not None and [*_sections(info.annotation, "")]
        words = f"a list, such as [{_keys(sections[0][0])}]" if sections else _LIST
    if words is not None:
        optional = info is not None and not of_item and type(None) in _kinds(info)
        return f"must be {'null or ' if optional and knows_null else ''}{words}{usual}"
    said = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return said + (usual if kind == "literal_error" else "")


def _number(info: FieldInfo) -> str:
    """Which numbers a field takes, e.g. `a whole number, 1 or more`."""
    return f"a {'whole ' if int in _kinds(info) else ''}number{_span(info)}"


def _span(info: FieldInfo) -> str:
    """The range of a field's numbers."""
    bounds = {
        name: str(getattr(constraint, name))
        for constraint in info.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(constraint, name)
    }
    match bounds:
        case {"ge": low, "le": high}:
            return f" from {low} to {high}"
        case {"ge": low, "lt": high}:
            return f" from {low} to below {high}"
        case {"gt": low, "le": high}:
            return f" above {low} and at most {high}"
        case {"ge": low}:
            return f", {low} or more"
        case {"gt": low}:
            return f" above {low}"
    return ""


def _form(info: FieldInfo | None) -> str:
    """What may be written for a field that has no default."""
    if info is None:
        return "VALUE"
    if {int, float} & {*_kinds(info)}:
        return f"N, {_number(info)}"
    if typing.get_origin(info.annotation) is list:
        return "[...]"
    return "{...}" if [*_sections(info.annotation, "")] else "TEXT"


def _mapping(info: FieldInfo | None, of_item: bool) -> str:
    """A mapping that a field, or an item of it, might hold."""
    sections = [] if info is None else [section for section, _ in _sections(info.annotation, "")]
    example = _keys(sections[0]) if sections else "{key: value}"
    if info is None or of_item:
        return f"a mapping, such as {example}"
    if typing.get_origin(info.annotation) is dict and sections:
        example = f"{{NAME: {example}}}"
    text = "text, or " if _takes_text(info.annotation) else ""
    return f"{text}a mapping, such as {example}"


def _keys(section: type[BaseModel]) -> str:
    """A mapping with the keys that a section must have, or with its first one."""
    fields = section.model_fields
    keys = [key for key in fields if fields[key].is_required()] or [*fields][:1]
    if "kind" in fields:  # the other keys go with it
        keys = ["kind"]
    more = ", ..." if len(keys) > _SHOWN else ""
    return f"{{{', '.join(f'{key}: ...' for key in keys[:_SHOWN])}{more}}}"


def _takes_text(annotation: Any) -> bool:
    options = typing.get_args(annotation)
    return annotation is str or any(
        _takes_text(option)
        for option in options
        if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated)
    )


def _default(info: FieldInfo | None) -> str:
    """What a field is where nothing is written, if that is something to write."""
    usual = None if info is None else info.default
    if usual in (None, PydanticUndefined, (), {}) or isinstance(usual, BaseModel):
        return ""
    if isinstance(usual, tuple):
        usual = f"[{', '.join(map(str, usual))}]"
    return f"; the default is {str(usual).lower() if isinstance(usual, bool) else usual}"


def _kinds(info: FieldInfo) -> tuple[Any, ...]:
    return typing.get_args(info.annotation) or (info.annotation,)


def _field(model: type[BaseModel], loc: Sequence[int | str]) -> FieldInfo | None:
    """The field at a path of `ValidationError.errors()`; None where there is none."""
    sections, found = [model], None
    for part in loc:
        if part in _KINDS:
            sections = [s for s in sections if part in _own_kinds(s)] or sections
        if isinstance(part, int) or part in _TAGS:
            continue
        owner = next((section for section in sections if part in section.model_fields), None)
        if owner is None:  # the name of a benchmark, or a key that there is not
            found = None
            continue
        found = owner.model_fields[part]
        sections = [section for section, _ in _sections(found.annotation, "")]
    return found


def _own_kinds(section: type[BaseModel]) -> tuple[str, ...]:
    kind = section.model_fields.get("kind")
    return () if kind is None else typing.get_args(kind.annotation)


def _hint(model: type[BaseModel], path: list) -> str:
    """The nearest key that exists: among its would-be siblings first, then anywhere."""
    keys = sorted({"extends", *_paths(model)}, key=lambda key: (key.count("."), key))
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
