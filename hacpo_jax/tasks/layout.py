"""From a row's columns to an example."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.boxed import last_boxed
from hacpo_jax.tasks.choices import AnswerKind, letter_choices, read_choices
from hacpo_jax.tasks.conditions import Condition, compile_pattern
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.rows import Row, RowError


class Layout(TypedDict, total=False):
    r"""Which columns make an example, and which rows are taken. Every key may be left out.

    A column is a key of the row or a path of keys, and of positions in lists, such as
    `reward_model.ground_truth`. It holds text, a number or a list of these (joined with `", "`).

    Attributes:
      prompt: column of the problem, or several columns, joined with a space; those of several that
        are null or empty in a row add nothing. `prompt` by default.
      answer: column of the gold answer, or of the text that contains it. `answer` by default.
      solution: column of the supervised text; the answer by default.
      id_column: column of names, unique in the data; by default `<file>:<line>`.
      answer_pattern: regular expression searched in the answer column, whose first group (the whole
        match without one) is the answer, e.g. `#### (.*)`.
      boxed: take the answer from the last `\boxed{...}` of the answer column.
      choices: column of the choices of a multiple-choice problem, or a column for each; see
        `choices.read_choices`. They are lettered, and the right letter is the answer.
      choice_answer: whether the answer column holds the right one's `label` (by default), its
        `text` or its `index`, counted from 0.
      shuffle_choices: seed of their order, drawn for each row by its name; kept by default.
      template: text of the problem, in which `{prompt}`, `{choices}` and the names of the prompt's
        columns in braces are replaced; by default the prompt, with the choices below it.
      filter: conditions that a row must meet to be taken; the rest is no part of the data.
      shuffle_seed: seed of the order of the examples; that of the file by default.
      limit: take this many examples, after shuffling; all by default.
      max_bad_fraction: largest share of bad rows to go on with, 0 to 1, 0.01 by default. A row is
        bad when it cannot be read, lacks a column, has an empty prompt or answer, or repeats an id.
    """

    prompt: str | Sequence[str]
    answer: str
    solution: str | None
    id_column: str | None
    answer_pattern: str | None
    boxed: bool
    choices: str | Sequence[str] | None
    choice_answer: AnswerKind
    shuffle_choices: int | None
    template: str | None
    filter: Sequence[Condition]
    shuffle_seed: int | None
    limit: int | None
    max_bad_fraction: float


@dataclass(frozen=True)
class Columns:
    """The part of a `Layout` that makes one example of one row, checked."""

    prompt: tuple[str, ...]
    answer: str
    solution: str | None
    id: str | None
    answer_pattern: re.Pattern[str] | None
    boxed: bool
    choices: tuple[str, ...]
    choice_answer: AnswerKind
    shuffle_choices: int | None
    template: str
    places: re.Pattern[str]

    @classmethod
    def of(cls, layout: Layout) -> "Columns":
        """Checks a layout.

        Raises:
          UserError: a regular expression or a template that cannot be used, or two ways of finding
            the answer.
        """
        pattern, boxed = layout.get("answer_pattern"), layout.get("boxed", False)
        if boxed and pattern is not None:
            raise UserError("answer_pattern", pattern, "cannot be combined with boxed; drop one")
        prompt, choices = _names(layout.get("prompt", "prompt")), _names(layout.get("choices"))
        places = ["prompt", *prompt, *(["choices"] if choices else [])]
        template = layout.get("template")
        if template is None:
            template = "{prompt}\n{choices}" if choices else "{prompt}"
        found = re.compile("|".join(re.escape(f"{{{name}}}") for name in places))
        if found.search(template) is None:
            named = ", ".join(f"{{{name}}}" for name in dict.fromkeys(places))
            raise UserError("template", template, f"must contain one of {named}")
        return cls(
            prompt=prompt,
            answer=layout.get("answer", "answer"),
            solution=layout.get("solution"),
            id=layout.get("id_column"),
            answer_pattern=None if pattern is None else compile_pattern(pattern, "answer_pattern"),
            boxed=boxed,
            choices=choices,
            choice_answer=layout.get("choice_answer", "label"),
            shuffle_choices=layout.get("shuffle_choices"),
            template=template,
            places=found,
        )

    def example(self, row: Row) -> Example:
        """Makes an example of a row.

        Raises:
          RowError: the row has not what it needs.
        """
        if isinstance(row.columns, RowError):
            raise row.columns
        columns = row.columns
        name = row.id if self.id is None else _text(columns, self.id)
        several = len(self.prompt) > 1
        parts = {column: _text(columns, column, optional=several) for column in self.prompt}
        prompt = " ".join(filter(None, parts.values()))
        if not prompt.strip():
            raise RowError(f"empty prompt in {' and '.join(map(repr, self.prompt))}")
        answer = self._answer(_text(columns, self.answer)).strip()
        if not answer:
            raise RowError(f"empty answer in {self.answer!r}")
        choices = ""
        if self.choices:
            shuffle = None if self.shuffle_choices is None else f"{self.shuffle_choices}:{name}"
            read = read_choices([find_column(columns, column) for column in self.choices])
            choices, answer = letter_choices(read, answer, self.choice_answer, shuffle)
        values = {**parts, "prompt": prompt, "choices": choices}
        return Example(
            id=name,
            # One pass: what is put in is not searched for places again.
            prompt=self.places.sub(lambda place: values[place.group()[1:-1]], self.template),
            answer=answer,
            solution="" if self.solution is None else _text(columns, self.solution),
        )

    def fit(self, row: Row) -> bool:
        """Whether a row has the columns that an example needs."""
        try:
            for column in (*self.prompt, self.answer, *self.choices):
                find_column({} if isinstance(row.columns, RowError) else row.columns, column)
        except RowError:
            return False
        return True

    def _answer(self, text: str) -> str:
        if self.boxed:
            found = last_boxed(text)
            if found is None:
                raise RowError(rf"no \boxed{{}} in {self.answer!r}")
            return found
        if self.answer_pattern is not None:
            match = self.answer_pattern.search(text)
            if match is None:
                raise RowError(f"no {self.answer_pattern.pattern!r} in {self.answer!r}")
            return match.group(1 if self.answer_pattern.groups else 0) or ""
        return text


def find_column(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column, or at a path of keys and list positions.

    Raises:
      RowError: there is no such column.
    """
    if column in row:
        return row[column]
    value: Any = row
    for key in column.split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            raise RowError(f"no column {column!r} (columns: {', '.join(row)})")
    return value


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _text(row: Mapping[str, Any], column: str, optional: bool = False) -> str:
    """The text in a column; null counts as empty text where `optional`."""
    value = find_column(row, column)
    if value is None and optional:
        return ""
    values: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        raise RowError(f"{column!r} must be text, a number or a list of these")
    text = ", ".join(values)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"{column!r} is not valid Unicode: a lone surrogate") from error
    return text
