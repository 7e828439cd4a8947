"""Multiple choice: choices of every usual layout, lettered A, B, C and so on."""

import random
import string
from collections.abc import Sequence
from typing import Any, Literal

from hacpo_jax.tasks.rows import RowError

AnswerKind = Literal["label", "text", "index"]
LETTERS = string.ascii_uppercase


def read_choices(values: Sequence[Any]) -> list[tuple[str, str]]:
    """Labels and texts of the choices in a row.

    Args:
      values: what stands in the choices' columns: one list of texts, one `{label: [...], text:
        [...]}` (ARC, CommonsenseQA and OpenBookQA on the hub), one list of `{label, text}` (the
        same as their makers publish them), or a text each (SciQ). Without labels they are A, B, C.

    Raises:
      RowError: it is none of these, or there are less than two or too many.
    """
    found: Any = values[0] if len(values) == 1 else list(values)
    labels: Any = None
    if isinstance(found, dict):
        labels, found = found.get("label"), found.get("text")
    elif isinstance(found, list) and all(isinstance(item, dict) for item in found):
        labels = [item.get("label") for item in found]
        found = [item.get("text") for item in found]
    texts = _texts(found)
    if not 2 <= len(texts) <= len(LETTERS):
        raise RowError(f"{len(texts)} choices; there must be 2 to {len(LETTERS)}")
    names = list(LETTERS[: len(texts)]) if labels is None else _texts(labels)
    if len(names) != len(texts) or len(set(names)) < len(names):
        raise RowError("the choices need one label each, all different")
    return list(zip(names, texts, strict=True))


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise RowError("choices must be a list of texts, or texts with labels")
    return [text.strip() for text in values]


def letter_choices(
    choices: Sequence[tuple[str, str]], answer: str, kind: AnswerKind, shuffle: str | None
) -> tuple[str, str]:
    """The choices as lines `A. text`, and the letter of the right one.

    Args:
      choices: labels and texts.
      answer: the right one.
      kind: whether `answer` is its label, its text or its index, counted from 0.
      shuffle: what their order is drawn from; None keeps it.

    Raises:
      RowError: no choice, or more than one, is the answer.
    """
    answer = answer.strip()
    if kind == "index":
        named = [str(i) == answer for i in range(len(choices))]
    else:
        named = [answer == (label if kind == "label" else text) for label, text in choices]
    if sum(named) != 1:
        known = ", ".join(label if kind == "label" else text for label, text in choices)
        what = (
            f"index below {len(choices)}" if kind == "index" else f"{kind} of one choice: {known}"
        )
        raise RowError(f"the answer {answer!r} is not the {what}")
    order = list(range(len(choices)))
    if shuffle is not None:
        random.Random(shuffle).shuffle(order)
    lines = [f"{letter}. {choices[i][1]}" for letter, i in zip(LETTERS, order, strict=False)]
    return "\n".join(lines), LETTERS[order.index(named.index(True))]
