"""Which rows of a data set are taken: conditions on columns, never code."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from hacpo_jax.errors import UserError

Value = str | bool | int | float


@dataclass(frozen=True)
class Condition:
    """What a column must be for a row to be taken. All that is named must hold.

    A column that is null meets no condition. Values are compared as numbers if the one that is
    asked for is a number, else as text, in which flags are `true` and `false`.

    Args:
      column: a key of the row, or a path of keys such as `meta.level`.
      equals: the value.
      one_of: the values of which it is one.
      matches: a regular expression that is found in its text.
      at_least: its least number.
      at_most: its greatest number.
      negate: take the rows that do not meet the condition instead.
    """

    column: str
    equals: Value | None = None
    one_of: Sequence[Value] | None = None
    matches: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    negate: bool = False

    def __post_init__(self):
        tests = (self.equals, self.one_of, self.matches, self.at_least, self.at_most)
        if all(test is None for test in tests):
            remedy = "a condition needs equals, one_of, matches, at_least or at_most"
            raise UserError("filter", self.column, remedy)
        if self.matches is not None:
            compile_pattern(self.matches, "filter")

    def holds(self, row: Mapping[str, Any], find: Callable[[Mapping[str, Any], str], Any]) -> bool:
        """Whether a row is taken; `find` looks a column up."""
        return self._met(find(row, self.column)) != self.negate

    def _met(self, found: Any) -> bool:
        if found is None:
            return False
        if self.equals is not None and not _same(found, self.equals):
            return False
        if self.one_of is not None and not any(_same(found, value) for value in self.one_of):
            return False
        if self.matches is not None and re.search(self.matches, _text(found)) is None:
            return False
        if self.at_least is None and self.at_most is None:
            return True
        number = _number(found)
        if number is None:
            return False
        return (self.at_least is None or number >= self.at_least) and (
            self.at_most is None or number <= self.at_most
        )


def compile_pattern(pattern: str, field: str) -> re.Pattern[str]:
    """Compiles a user's regular expression, or raises `UserError` about `field`."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(field, pattern, f"not a regular expression: {error}") from error


def _same(found: Any, value: Value) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(found) == Decimal(str(value))
    return _text(found) == _text(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any) -> Decimal | None:
    try:
        number = Decimal(value) if isinstance(value, str) else None
    except InvalidOperation:
        return None
    return number if number is not None and number.is_finite() else None
