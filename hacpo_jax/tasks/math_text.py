r"""What can be told of a mathematical answer from its text alone, without parsing it."""

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|tt)?|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}")
_MAX_CHARS = 400  # longer answers are no plain numbers and equal only as they stand

_SPACES = re.compile(r"\\[,;:! ]|~|\\quad|\\qquad|\s+")
_SIZES = re.compile(r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)(?![a-zA-Z])")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_BARE_FRACTION = re.compile(
    r"\\[dtc]?frac(?![a-zA-Z])\s*(\d|\{\w\}|\\pi(?![a-zA-Z]))\s*(\d|\{\w\}|\\pi(?![a-zA-Z]))"
)
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree(?![a-zA-Z])")
_SIGNS = re.compile(r"\\?%|\\?\$")
_SPLIT_GROUPS = re.compile(r",\s*\\!\s*")
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?![\d,])")
# A letter may be a variable, so units are marked as text, short and known, or words apart.
_UNIT = re.compile(
    r"(?<=[\d}])(?:\s*\\(?:text|mbox|mathrm)\s*\{[^{}]*\}|\s*(?:[ckm]m|kg|ft|mL)"
    r"|\s+[a-zA-Z]{3,}(?:\s*(?:/|per|of)?\s*[a-zA-Z]+)*)(?:\s*\^\s*\{?\d\}?)?\.?$"
)
_NOT_UNITS = re.compile(r"\b(?:and|or|pi|sqrt|sin|cos|tan|log|ln|base|mod|to|[ap]\.?m)\b")
_POWER_OF_TEN = re.compile(
    r"(?:\\times|\\cdot|\*|\u00d7)\s*10\s*(?:\^|\*\*)\s*\{?\s*(-?\d{1,3})\s*\}?$"
)
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_FRACTION = re.compile(
    r"(?P<minus>-)?(?:\\frac\{|\()?(?P<top>-?\d+)(?:\}\{|\)?/\(?)(?P<over>\d+)[})]?", re.ASCII
)
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
      exact: it is an integer or a fraction, without a percent sign and a decimal point.
    """

    value: Fraction
    exact: bool


def plain_form(text: str) -> str:
    """The text without what means nothing: spaces, sizes of brackets, dollars, degrees, units."""
    if len(text) > _MAX_CHARS:
        return text
    text = _SPLIT_GROUPS.sub(",", text.lstrip(" \n\t*").rstrip(" \n\t$*."))
    text = _SIGNS.sub("", _DEGREES.sub("", _SIZES.sub("", text)))
    text = _FRACTIONS.sub(r"\\frac", _BARE_FRACTION.sub(_braced_fraction, text))
    text = _without_unit(_SPACES.sub(" ", text).strip(" .*"))
    text = _GROUPED.sub(lambda number: re.sub(r"[,{}]", "", number.group()), text)
    return _LOOSE_SPACE.sub("", text)


def for_parser(text: str) -> str:
    r"""The text as math-verify reads it best: without units and degrees, with all braces."""
    if len(text) > _MAX_CHARS:
        return text.strip()
    text = _DEGREES.sub("", _SPLIT_GROUPS.sub(",", text)).strip().removesuffix(".")
    return _without_unit(_BARE_FRACTION.sub(_braced_fraction, text))


def plain_number(text: str) -> Number | None:
    """A text that is one integer, decimal number or fraction and nothing else, else None."""
    plain = plain_form(text)
    power = _POWER_OF_TEN.search(plain)
    if power is not None:
        plain = f"{plain[: power.start()]}e{power[1]}"
    # Three digits of an exponent at most: 1e999999 as an integer would fill the memory.
    if _DECIMAL.fullmatch(plain):
        return Number(Fraction(plain), "%" not in text and plain.lstrip("+-").isdecimal())
    fraction = _FRACTION.fullmatch(plain)
    if fraction is None or not int(fraction["over"]):
        return None
    value = Fraction(int(fraction["top"]), int(fraction["over"]))
    return Number(-value if fraction["minus"] else value, "%" not in text)


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


def _braced_fraction(found: re.Match[str]) -> str:
    r"""`\frac59` and `\frac\pi 4` with all their braces."""
    top, over = (part.strip("{}") for part in found.groups())
    return rf"\frac{{{top}}}{{{over}}}"


def _without_unit(text: str) -> str:
    unit = _UNIT.search(text)
    if unit is None or _NOT_UNITS.search(unit.group()):
        return text
    return text[: unit.start()]
