"""Examples from JSON Lines and Parquet files and from data sets of the hub."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.hub import hub_rows
from hacpo_jax.tasks.layout import Columns, Layout, find_column
from hacpo_jax.tasks.rows import Row, RowError, file_rows

_SHOWN_BAD_ROWS = 3
_MEND = "mend the rows or the column names"


@dataclass(frozen=True)
class BadRow:
    """A row that was left out: its line number, counted from 1, why, and the file if of several."""

    line: int
    reason: str
    file: str = ""

    def __str__(self):
        return f"{self.file}{' ' if self.file else ''}line {self.line}: {self.reason}"


@dataclass(frozen=True)
class LoadedExamples:
    """The examples of a data set in their order, and the rows that gave none."""

    examples: tuple[Example, ...]
    bad_rows: tuple[BadRow, ...]
    rows: int
    """Those that were wanted, good or bad; those that a filter leaves out are not."""


def load_jsonl(
    path: str | Path, *, split: str | None = None, **layout: Unpack[Layout]
) -> LoadedExamples:
    """Reads examples from JSON Lines, UTF-8, one object a line. Empty lines are not rows.

    Args:
      path: a file, or a folder with `SPLIT.jsonl` or its parts; see `rows.file_rows`.
      split: which files of a folder.
      **layout: see `Layout`.

    Returns:
      The examples and the bad rows.

    Raises:
      UserError: a file cannot be read, nothing is left in it, too many rows are bad, or an argument
        is out of its range.
    """
    return examples_of(file_rows(path, split), layout, field="path", value=str(path))


def load_parquet(
    path: str | Path, *, split: str | None = None, **layout: Unpack[Layout]
) -> LoadedExamples:
    """Reads examples from Parquet files, which needs the extra `data`; else as `load_jsonl`.

    A bad row's line is its number in the file, counted from 1.
    """
    path = Path(path)
    if path.is_file() and path.suffix != ".parquet":
        raise UserError("path", str(path), "a Parquet file's name ends in .parquet")
    return examples_of(file_rows(path, split), layout, field="path", value=str(path))


def load_hub(
    dataset: str,
    *,
    split: str,
    subset: str | Sequence[str] | None = None,
    revision: str | None = None,
    **layout: Unpack[Layout],
) -> LoadedExamples:
    """Reads examples of a data set of the hub by the `datasets` library, from the extra `data`.

    Args:
      dataset: a hub id, or a directory that `datasets` can read.
      split: such as `train`; `train[:100]` takes a part.
      subset: its configuration, or several, one after another.
      revision: a branch, tag or commit of the hub.
      **layout: see `Layout`.

    Raises:
      UserError: as `load_jsonl`, or the hub cannot be reached.
    """
    rows = hub_rows(dataset, split, subset, revision)
    return examples_of(rows, layout, field="dataset", value=dataset)


def examples_of(rows: Iterable[Row], layout: Layout, *, field: str, value: str) -> LoadedExamples:
    """Makes examples of rows and holds what is wrong with them against the limit.

    Raises:
      UserError: about `field`, which is `value`: nothing is left, or too many rows are bad.
    """
    most = layout.get("max_bad_fraction", 0.01)
    if not 0 <= most <= 1:
        raise UserError("max_bad_fraction", most, "must be within 0 to 1")
    limit = layout.get("limit")
    if limit is not None and limit < 1:
        raise UserError("limit", limit, "must be at least 1")
    columns, conditions = Columns.of(layout), tuple(layout.get("filter", ()))
    examples: dict[str, Example] = {}
    bad_rows: list[BadRow] = []
    seen = 0
    for row in rows:
        seen += 1
        try:
            if isinstance(row.columns, RowError):
                raise row.columns
            if not all(one.holds(row.columns, _find_for_filter) for one in conditions):
                continue
            example = columns.example(row)
            if example.id in examples:
                raise RowError(f"the id {example.id!r} was seen before")
            examples[example.id] = example
        except RowError as error:
            bad_rows.append(BadRow(row.line, str(error), row.file))

    wanted = len(examples) + len(bad_rows)
    if not examples:
        found = f"{_tally(bad_rows, wanted)}; {_MEND}"
        if not wanted:
            found = "it has no rows; name a file that has, or write it again"
        if seen and not wanted:
            found = f"the filter leaves none of {seen} rows; change filter"
        raise UserError(field, value, f"an empty dataset: {found}")
    if len(bad_rows) > most * wanted:
        remedy = f"{_tally(bad_rows, wanted)}, more than the share {most}; {_MEND}"
        raise UserError(field, value, remedy)
    return LoadedExamples(_ordered(examples, layout), tuple(bad_rows), wanted)


def _find_for_filter(row: Mapping[str, Any], column: str) -> Any:
    """As `find_column`; says who looks for the column."""
    try:
        return find_column(row, column)
    except RowError as error:
        raise RowError(f"filter: {error}") from None


def _ordered(examples: dict[str, Example], layout: Layout) -> tuple[Example, ...]:
    ordered, seed = list(examples.values()), layout.get("shuffle_seed")
    if seed is not None:
        random.Random(seed).shuffle(ordered)
    return tuple(ordered[: layout.get("limit")])


def _tally(bad_rows: list[BadRow], rows: int) -> str:
    shown = "; ".join(map(str, bad_rows[:_SHOWN_BAD_ROWS]))
    more = "; ..." if len(bad_rows) > _SHOWN_BAD_ROWS else ""
    return f"{len(bad_rows)} of {rows} rows are bad" + (f" ({shown}{more})" if shown else "")
