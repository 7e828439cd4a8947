"""Examples from JSON Lines files, one JSON object a line."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.boxed import last_boxed
from hacpo_jax.tasks.examples import Example

_SHOWN_BAD_ROWS = 3
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class BadRow:
    """A row that was left out: its line number, counted from 1, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class JsonlExamples:
    """The examples of a file in the file's order, and the rows that gave none."""

    examples: tuple[Example, ...]
    bad_rows: tuple[BadRow, ...]


@dataclass(frozen=True)
class _Columns:
    """Which columns make an example; see `load_jsonl`."""

    prompt: tuple[str, ...]
    answer: str
    solution: str | None
    id: str | None
    answer_pattern: re.Pattern[str] | None
    boxed: bool


class _RowError(ValueError):
    """A fault of one row."""


def load_jsonl(
    path: str | Path,
    *,
    prompt: str | Sequence[str] = "prompt",
    answer: str = "answer",
    solution: str | None = None,
    id_column: str | None = None,
    answer_pattern: str | None = None,
    boxed: bool = False,
    max_bad_fraction: float = 0.01,
) -> JsonlExamples:
    r"""Reads examples from a JSON Lines file.

    A column is a key of the row's object or a path of keys such as `reward_model.ground_truth`. It
    holds text, a number (kept in the digits of the file) or a list of these (joined with `", "`).
    Empty lines are not rows.

    Args:
      path: the file, UTF-8.
      prompt: column of the problem, or several columns, joined with a space; those of several that
        are null or empty in a row add nothing.
      answer: column of the gold answer, or of the text that contains it.
      solution: column of the supervised text; the answer when None.
      id_column: column of names, unique in the file; `<file stem>:<line>` when None.
      answer_pattern: regular expression searched in the answer column, whose first group (the whole
        match without one) is the answer, e.g. `#### (.*)`.
      boxed: take the answer from the last `\boxed{...}` of the answer column.
      max_bad_fraction: largest share of bad rows to go on with, 0 to 1. A row is bad when it is not
        a JSON object, lacks a column, has an empty prompt or answer, or repeats an id.

    Returns:
      The examples and the bad rows.

    Raises:
      UserError: the file cannot be read, nothing is left in it, too many rows are bad, or an
        argument is out of its range.
    """
    path = Path(path)
    if not 0 <= max_bad_fraction <= 1:
        raise UserError("max_bad_fraction", max_bad_fraction, "must be within 0 to 1")
    if boxed and answer_pattern is not None:
        raise UserError("answer_pattern", answer_pattern, "cannot be combined with boxed; drop one")
    columns = _Columns(
        prompt=(prompt,) if isinstance(prompt, str) else tuple(prompt),
        answer=answer,
        solution=solution,
        id=id_column,
        answer_pattern=None if answer_pattern is None else _compile(answer_pattern),
        boxed=boxed,
    )

    examples: dict[str, Example] = {}
    bad_rows: list[BadRow] = []
    for number, line in enumerate(_read(path).removeprefix(_BOM).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            example = _example(_parse_row(line), columns, default_id=f"{path.stem}:{number}")
            if example.id in examples:
                raise _RowError(f"the id {example.id!r} was seen before")
            examples[example.id] = example
        except _RowError as error:
            bad_rows.append(BadRow(number, str(error)))

    rows = len(examples) + len(bad_rows)
    if not examples:
        found = _tally(bad_rows, rows) if rows else "it has no rows"
        raise UserError("path", str(path), f"an empty dataset: {found}")
    if len(bad_rows) > max_bad_fraction * rows:
        remedy = f"{_tally(bad_rows, rows)}, more than the share {max_bad_fraction}; mend the rows"
        raise UserError("path", str(path), f"{remedy} or the column names")
    return JsonlExamples(tuple(examples.values()), tuple(bad_rows))


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError("answer_pattern", pattern, f"not a regular expression: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError("path", str(path), f"cannot be read: {error.strerror}") from error


def _tally(bad_rows: list[BadRow], rows: int) -> str:
    shown = "; ".join(f"line {row.line}: {row.reason}" for row in bad_rows[:_SHOWN_BAD_ROWS])
    more = "; ..." if len(bad_rows) > _SHOWN_BAD_ROWS else ""
    return f"{len(bad_rows)} of {rows} rows are bad" + (f" ({shown}{more})" if shown else "")


def _refuse_constant(name: str) -> NoReturn:
    raise _RowError(f"not JSON: {name} is not a number")


def _parse_row(line: bytes) -> dict[str, Any]:
    try:
        # Numbers stay text: 27.0 must not become 27, nor 0.1 a binary fraction.
        row = json.loads(
            line.decode(), parse_float=str, parse_int=str, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise _RowError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _RowError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise _RowError(f"not a JSON object but a {type(row).__name__}")
    return row


def _example(row: dict[str, Any], columns: _Columns, default_id: str) -> Example:
    prompts = [_text(row, name, optional=len(columns.prompt) > 1) for name in columns.prompt]
    prompt = " ".join(filter(None, prompts))
    answer = _extract(_text(row, columns.answer), columns).strip()
    if not prompt.strip():
        raise _RowError(f"empty prompt in {' and '.join(map(repr, columns.prompt))}")
    if not answer:
        raise _RowError(f"empty answer in {columns.answer!r}")
    return Example(
        id=default_id if columns.id is None else _text(row, columns.id),
        prompt=prompt,
        answer=answer,
        solution="" if columns.solution is None else _text(row, columns.solution),
    )


def _extract(text: str, columns: _Columns) -> str:
    if columns.boxed:
        found = last_boxed(text)
        if found is None:
            raise _RowError(rf"no \boxed{{}} in {columns.answer!r}")
        return found
    if columns.answer_pattern is not None:
        match = columns.answer_pattern.search(text)
        if match is None:
            raise _RowError(f"no {columns.answer_pattern.pattern!r} in {columns.answer!r}")
        return match.group(1 if columns.answer_pattern.groups else 0) or ""
    return text


def _text(row: dict[str, Any], column: str, optional: bool = False) -> str:
    """The text in a column; null counts as empty text where `optional`."""
    value = _find(row, column)
    if value is None and optional:
        return ""
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        raise _RowError(f"{column!r} must be text, a number or a list of these")
    text = ", ".join(values)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _RowError(f"{column!r} is not valid Unicode: a lone surrogate") from error
    return text


def _find(row: dict[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for key in column.split("."):
        if not isinstance(value, dict) or key not in value:
            raise _RowError(f"no column {column!r} (columns: {', '.join(row)})")
        value = value[key]
    return value
