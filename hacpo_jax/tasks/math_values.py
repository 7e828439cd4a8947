r"""Answers that are surely not equal, told without a parse by SymPy, which takes milliseconds.

Nothing is evaluated but sums, products, small powers, roots and fractions of plain numbers, as
floating-point numbers by the code below. What it does not know is left to math-verify.
"""

import math
import re

from hacpo_jax.tasks.math_text import plain_form

_MAX_CHARS = 120
_MAX_POWER = 64.0
# Far beyond what rounding explains, and what math-verify lets pass.
_DIFFERENT = 1e-3
_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?|\.\d+)|\\(?P<word>pi|frac|sqrt|cdot|times)(?![a-zA-Z])"
    r"|(?P<sign>[-+*/^(){}\[\]])",
    re.ASCII,
)
_LIST = re.compile(r",|\\cup|\\begin|\\pm|\\infty")
_UNCLEAR = re.compile(
    r"[=<>%;|!_']|\\(?:text|mbox|math|[lg]eq?|approx|equiv|in|to|prime|neq?|%)(?![a-zA-Z])"
)
_WORD = re.compile(r"[a-zA-Z]{3}")
_COMMAND = re.compile(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+")
_NAMED = re.compile(r"^[a-zA-Z]=")
_MEASURE = re.compile(r"[-+\d.{}]+(?:[a-zA-Z/.]+(?:\^\{?\d\}?)?)+")


def surely_differ(first: str, second: str) -> bool:
    """Whether two answers cannot be equal: their values, variables or kinds are others."""
    one, two = (_NAMED.sub("", plain_form(text)) for text in (first, second))
    if max(len(one), len(two)) > _MAX_CHARS or "%" in first or "%" in second:
        return False
    bare = [_COMMAND.sub(" ", text) for text in (one, two)]
    if any(map(_UNCLEAR.search, (one, two))) or any(map(_WORD.search, bare)):
        return False
    if bool(_LIST.search(one)) != bool(_LIST.search(two)):
        return True
    if _LIST.search(one):
        return False
    if _variables(bare[0]) != _variables(bare[1]):
        # 5m may be five metres, which equal 5.
        return not any(_MEASURE.fullmatch(text) for text in (one, two))
    this, that = value(one), value(two)
    if this is None or that is None:
        return False
    return abs(this - that) > _DIFFERENT * max(abs(this), abs(that))


def _variables(text: str) -> set[str]:
    # The imaginary unit and Euler's number are numbers; powers of them may be real.
    return set(re.findall(r"[a-zA-Z]", text)) - {"e", "i"}


def value(text: str) -> float | None:
    r"""The value of an expression in LaTeX made of plain numbers, `\pi`, roots and fractions.

    None if it has anything else in it, or a form that is read in more than one way.
    """
    tokens, end = [], 0
    for token in _TOKEN.finditer(text):
        if token.start() != end:
            return None
        tokens.append(token.group().lstrip("\\"))
        end = token.end()
    if end != len(text) or not tokens:
        return None
    reader = _Reader(tokens)
    try:
        found = reader.sum()
    except (ValueError, ArithmeticError, IndexError):
        return None
    return found if reader.at_end and math.isfinite(found) else None


class _Reader:
    """Reads tokens from left to right; raises `ValueError` where they are not understood."""

    def __init__(self, tokens: list[str]):
        self._tokens = tokens
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._tokens)

    def sum(self) -> float:
        total = self._product()
        while self._next() in ("+", "-"):
            total += self._product() if self._take() == "+" else -self._product()
        return total

    def _product(self) -> float:
        product, plain = self._power()
        while (token := self._next()) is not None and token not in ("+", "-", ")", "}", "]"):
            if token in ("*", "cdot", "times", "/"):
                self._take()
                other, plain = self._power()
                product = product / other if token == "/" else product * other
            elif plain and (token == "frac" or token[0].isdigit()):
                raise ValueError("a mixed number, or two numbers side by side")
            else:
                other, plain = self._power()
                product *= other
        return product

    def _power(self) -> tuple[float, bool]:
        """A factor with its exponent, and whether it is a number as it stands."""
        negative = False
        while self._next() in ("+", "-"):
            negative ^= self._take() == "-"
        plain = (self._next() or " ")[0].isdigit()
        base = self._atom()
        if self._next() == "^":
            self._take()
            exponent, plain = self._argument(), False
            if abs(exponent) > _MAX_POWER:
                raise ValueError("a large power")
            base = base**exponent
            if isinstance(base, complex):
                raise ValueError("a root of a negative number")
        return (-base if negative else base), plain

    def _argument(self) -> float:
        """What stands in braces, or one digit: `2^10` is 2 to the 1, times 0, which is refused."""
        if self._next() == "{":
            return self._group("}")
        token = self._take()
        if len(token) != 1 or not token.isdigit():
            raise ValueError("no single digit")
        return float(token)

    def _atom(self) -> float:
        token = self._take()
        if token in ("(", "{"):
            self._place -= 1
            return self._group(")" if token == "(" else "}")
        if token == "pi":
            return math.pi
        if token == "frac":
            top = self._argument()
            return top / self._argument()
        if token == "sqrt":
            degree = self._group("]") if self._next() == "[" else 2.0
            return math.pow(self._argument(), 1 / degree)
        return float(token)

    def _group(self, closing: str) -> float:
        self._take()
        inside = self.sum()
        if self._take() != closing:
            raise ValueError("unbalanced")
        return inside

    def _next(self) -> str | None:
        return None if self.at_end else self._tokens[self._place]

    def _take(self) -> str:
        token = self._tokens[self._place]
        self._place += 1
        return token
