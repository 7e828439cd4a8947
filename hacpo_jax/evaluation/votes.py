r"""What an answer votes for in a majority vote (self-consistency, arXiv 2203.11171).

Answers agree when their final answers are the same text once it is written one way. The verifier is
not asked: it compares with a gold answer, which may be more than an answer (a task's own data), and
asking it for every pair would cost k² gradings. Nor do right answers count as one class for being
right: then equal wrong answers in different spellings would lose votes that right ones keep.
"""

import re
from collections.abc import Sequence

from hacpo_jax.tasks.boxed import last_boxed

_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?", re.ASCII
)
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|[\s$~]")
_SPELLINGS = {
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
    r"\%": "%",
    r"^\circ": "°",
    "\N{MINUS SIGN}": "-",
}


def vote(response: str, stopped: bool) -> str | None:
    r"""The final answer, written in one way: the last `\boxed{...}`, else the last number, else the
    last line.

    Args:
      response: what the model wrote.
      stopped: False where it was cut off; then only a box is a final answer.

    Returns:
      Text that agreeing answers share, or None where there is no final answer.
    """
    boxed = last_boxed(response)
    if boxed is not None:
        return _one_way(boxed) or None
    lines = response.strip().splitlines()
    if not stopped or not lines:
        return None
    numbers = _NUMBER.findall(response)
    return _one_way(numbers[-1] if numbers else lines[-1]) or None


def classes(
    responses: Sequence[str], stopped: Sequence[bool], right: Sequence[bool]
) -> tuple[list[int], list[float], int]:
    """Answers to one problem by what they vote for.

    Returns:
      Size of each class, share of it that is right, and how many answers have no vote.
    """
    found: dict[str, list[bool]] = {}
    silent = 0
    for response, ended, is_right in zip(responses, stopped, right, strict=True):
        choice = vote(response, ended)
        if choice is None:
            silent += 1
        else:
            found.setdefault(choice, []).append(is_right)
    members = list(found.values())
    return [len(m) for m in members], [sum(m) / len(m) for m in members], silent


def _one_way(text: str) -> str:
    """Without markup, spacing and case; numbers without separators and idle zeros."""
    for spelling, usual in _SPELLINGS.items():
        text = text.replace(spelling, usual)
    text = _SPACING.sub("", _WRAPPED.sub(r"\1", text)).casefold().strip(".")
    if not _NUMBER.fullmatch(text) or "/" in text:
        return text
    sign, digits = ("-" if text[0] == "-" else ""), text.lstrip("-+").replace(",", "")
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    return value if value == "0" else sign + value
