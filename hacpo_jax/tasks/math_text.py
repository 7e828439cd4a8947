r"""What can be told of a mathematical answer from its text alone, without parsing it."""

import re
from collections import deque
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|tt)?|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}")
_MAX_CHARS = 400  # longer answers are no plain numbers and equal only as they stand

_SPACES = re.compile(r"\\[,;:! ]|~|\\quad|\\qquad|\s+")
_SIZES = re.compile(r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)(?![a-zA-Z])")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_BARE_FRACTION = re.compile(r"\\frac\s*(?:(\d)|\{(\w)\})\s*(?:(\d)|\{(\w)\})")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree(?![a-zA-Z])")
_SIGNS = re.compile(r"\\?%|\\\$")
_SPLIT_GROUPS = re.compile(r",\s*\\!\s*")
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?![\d,])")
_WORDS = r"(?:[a-zA-Z]{3,}|[ckm]?m|in|ft|[ck]?g|mL|L|s|h)(?:\s*(?:/|per|of)?\s*[a-zA-Z]+)*"
_UNIT = re.compile(
    rf"(?<=[\d}}])\s*(?:\\(?:text|mbox|mathrm)\s*\{{[^{{}}]*\}}|{_WORDS})"
    r"(?:\s*\^\s*\{?\d\}?)?\.?$"
)
_NOT_UNITS = re.compile(r"\b(?:and|or|pi|sqrt|sin|cos|tan|log|ln|base|mod|to)\b")
_POWER_OF_TEN = re.compile(
    r"(?:\\times|\\cdot|\*|\u00d7)\s*10\s*(?:\^|\*\*)\s*\{?\s*(-?\d{1,6})\s*\}?$"
)
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,6})?", re.ASCII)
_LAST_NUMBER = re.compile(
    r"(?:(?<=[\s$:])|^)(?P<number>-?\s?(?:\\?\$)?\d+(?:,\d{3})*(?:\.\d+)?)"
    r"(?P<after>\\?%|°)?(?=[\s$.,;:!?)*]|$)",
    re.ASCII,
)
_OPERATORS = re.compile(r"[-+*/^<>|(\[{=&\\]\s*\$?$|\\[a-zA-Z]+\s*\$?$|\d\s+\$?$|,\s*\$?$")
_TAIL_CHARS = 300


@dataclass(frozen=True)
class Number:
    """A plain number.

    Args:
      value: its value; a percent sign is not applied.
      whole: it is an integer without a percent sign, which no rounding can explain.
    """

    value: Decimal
    whole: bool


def plain_form(text: str) -> str:
    """The text without what means nothing: spaces, sizes of brackets, dollars, degrees, units."""
    if len(text) > _MAX_CHARS:
        return text
    text = _SPLIT_GROUPS.sub(",", text.strip().strip("$"))
    text = _SIGNS.sub("", _DEGREES.sub("", _SIZES.sub("", text)))
    text = _BARE_FRACTION.sub(r"\\frac{\1\2}{\3\4}", _FRACTIONS.sub(r"\\frac", text))
    text = _without_unit(_SPACES.sub(" ", text).strip(" .*"))
    text = _GROUPED.sub(lambda number: re.sub(r"[,{}]", "", number.group()), text)
    return _LOOSE_SPACE.sub("", text)


def for_parser(text: str) -> str:
    r"""The text as math-verify reads it best: without units, degrees and `\!` between digits."""
    if len(text) > _MAX_CHARS:
        return text.strip()
    return _without_unit(_DEGREES.sub("", _SPLIT_GROUPS.sub(",", text)).strip())


def plain_number(text: str) -> Number | None:
    """A text that is one decimal number and nothing else, else None."""
    plain = plain_form(text)
    power = _POWER_OF_TEN.search(plain)
    if power is not None:
        plain = f"{plain[: power.start()]}e{power[1]}"
    if len(plain) > _MAX_CHARS or _DECIMAL.fullmatch(plain) is None:
        return None
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    # Digits tell, never the value as an integer: that of 1e999999 would fill the memory.
    digits, _, fraction = plain.partition(".")
    whole = "%" not in text and not fraction.strip("0") and digits.lstrip("+-").isdecimal()
    return Number(value, whole)


def final_number(response: str) -> Number | None:
    """The last number of a response if it stands by itself; None if it does not.

    A number that is part of an expression is none: 2 in `1/2`, in `x + 2` or in `(1, 2)`.
    """
    tail = response[-_TAIL_CHARS:]
    last = deque(_LAST_NUMBER.finditer(tail), maxlen=1)
    if not last:
        return None
    (found,) = last
    rest, before = tail[found.end() :], tail[: found.start("number")]
    if any(character.isdigit() or character in "\\=+/^<>{}|" for character in rest):
        return None
    equals = before.rstrip(" $").endswith("=")
    if not equals and _OPERATORS.search(before) is not None:
        return None
    return plain_number(re.sub(r"[$\\\s](?!%)", "", found.group()))


def _without_unit(text: str) -> str:
    unit = _UNIT.search(text)
    if unit is None or _NOT_UNITS.search(unit.group()):
        return text
    return text[: unit.start()]
