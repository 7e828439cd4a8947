"""JSON objects of Hugging Face and typed look-ups in them, with errors that name file and key."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from hacpo_jax.errors import UserError


def read_json(path: Path, field: str) -> dict[str, Any]:
    """The object in a file.

    Args:
      path: the file.
      field: what the user called whose it is, for error messages, e.g. `agents.0.model`.

    Raises:
      UserError: there is no such file, or no JSON object in it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(field, str(path), "no such file") from error
    except (OSError, ValueError) as error:
        raise UserError(field, str(path), f"not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(field, str(path), "must hold a JSON object")
    return value


@dataclasses.dataclass(frozen=True)
class Fields:
    """One JSON object, and what the user called it.

    Args:
      values: the decoded object.
      field: for error messages, e.g. `agents.0.model`.
    """

    values: Mapping[str, Any]
    field: str

    def error(self, name: str, remedy: str) -> UserError:
        """An error about the key `name`."""
        return UserError(f"{self.field}: {name}", self.values.get(name), remedy)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; `default` where there is none."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, f"must be a whole number of at least {least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; `default` where there is none."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not _is_positive(value):
            raise self.error(name, "must be a finite number above 0")
        return float(value)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers above 0."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count or not all(map(_is_positive, value)):
            raise self.error(name, f"must be a list of {count} finite numbers above 0")
        return tuple(map(float, value))

    def flag(self, name: str) -> bool:
        """True or false; false where there is neither."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def mapping(self, name: str) -> "Fields":
        """An object; an empty one where there is none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, "must be an object or null")
        return Fields(value or {}, f"{self.field}: {name}")


def _is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30
