"""Rows of data sets, from JSON Lines, Parquet or a data set of the hub, all in one form."""

import codecs
import decimal
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.extras import import_extra

SUFFIXES = (".jsonl", ".parquet")
_SHOWN_FILES = 8


class RowError(ValueError):
    """A fault of one row."""


@dataclass(frozen=True)
class Row:
    """One row as it was found.

    Args:
      id: where it stands; its name if no column has one.
      file: the file, or the subset of a data set; empty if there is only one.
      line: its number, counted from 1.
      columns: its values, or why there are none. Numbers are text in the digits of the file: 27.0
        must not become 27, nor 0.1 a binary fraction.
    """

    id: str
    file: str
    line: int
    columns: dict[str, Any] | RowError


def file_rows(path: str | Path, split: str | None, subsets: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of a JSON Lines or Parquet file, or of a folder's files of one split.

    Args:
      path: a file, or a folder that holds `SPLIT.jsonl`, `SPLIT.parquet`, or such files in parts
        (`SPLIT-00000-of-00002.parquet`), by themselves, in `data/` or in `SPLIT/`.
      split: which of a folder's files; means nothing for a file.
      subsets: folders of which each is searched in the same way, where any of them exists.

    Raises:
      UserError: nothing is there, or it cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return _rows_of(path, path.stem, "")
    files = _files(path, split, subsets)
    return (
        row
        for file in files
        for row in _rows_of(
            file,
            file.relative_to(path).with_suffix("").as_posix(),
            file.relative_to(path).as_posix() if len(files) > 1 else "",
        )
    )


def _files(folder: Path, split: str | None, subsets: Sequence[str]) -> list[Path]:
    if split is None:
        remedy = "is a folder, which cannot be read without a split; name that, or a file"
        raise UserError("path", str(folder), remedy)
    roots = [folder / name for name in subsets if (folder / name).is_dir()] or [folder]
    found = []
    for root in roots:
        for pattern in (f"{split}.*", f"{split}-*", f"data/{split}-*", f"{split}/*"):
            files = sorted(file for file in root.glob(pattern) if file.suffix in SUFFIXES)
            if files:
                found += files
                break
    if not found:
        there = sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES)
        names = ", ".join(str(p.relative_to(folder)) for p in there[:_SHOWN_FILES]) or "none"
        remedy = f"has no .jsonl or .parquet file of the split {split!r}; such files in it: {names}"
        raise UserError("path", str(folder), remedy)
    return found


def _rows_of(path: Path, name: str, shown: str) -> Iterator[Row]:
    rows = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
    return (Row(f"{name}:{line}", shown, line, columns) for line, columns in rows)


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | RowError]]:
    """Numbered rows; empty lines are none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError("path", str(path), f"cannot be read: {error.strerror}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError("path", str(path), "is UTF-16; save it as UTF-8")
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, _parse(line)
            except RowError as error:
                yield number, error


def _parse(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(
            line.decode(), parse_float=str, parse_int=str, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        wrong = f"0x{line[error.start]:02x} at byte {error.start + 1}"
        raise RowError(f"not UTF-8 ({wrong}): save the file as UTF-8") from error
    except RecursionError as error:
        raise RowError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise RowError(f"not a JSON object but a {type(row).__name__}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise RowError(f"not JSON: {name} is not a number")


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    parquet = import_extra("pyarrow.parquet", "data", field="path", value=str(path))
    pyarrow = import_extra("pyarrow", "data", field="path", value=str(path))
    try:
        with parquet.ParquetFile(path) as file:
            yield from numbered(batch.to_pylist() for batch in file.iter_batches())
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError("path", str(path), f"cannot be read as Parquet: {error}") from error


def numbered(batches: Iterable[Sequence[dict[str, Any]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of Arrow batches as Python objects, counted from 1, in the form that rows have here."""
    rows = (row for batch in batches for row in batch)
    for number, row in enumerate(rows, start=1):
        yield number, {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Numbers as text, as in JSON Lines; what is not a number is nothing."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
        return str(value)
    return value
