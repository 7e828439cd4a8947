r"""Mathematical equality of answers, by math-verify.

Only worker processes import this module: parsing reads model output with SymPy, which may evaluate
it, never end, or use up the memory.
"""

import contextlib
import functools
import logging
import re
import signal
from collections.abc import Iterator
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import FiniteSet

from hacpo_jax.tasks.boxed import last_boxed
from hacpo_jax.tasks.math_text import (
    TEXT_COMMAND,
    final_number,
    for_parser,
    plain_form,
    plain_number,
)
from hacpo_jax.tasks.math_values import surely_differ

# Processor time for one answer: unlike the limits of math-verify, which are switched off for it, a
# busy machine does not use it up. The pool's wall clock is for what no signal interrupts.
# The timer is the virtual one: where libtpu is loaded, its profiler sends SIGPROF at any time.
CPU_SECONDS = 2.0
# Without a box the answer is looked for in the end of a response: the search is quadratic.
SEARCHED_CHARS = 4096

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the limits switched off
_NO_LIMIT = 0  # for math-verify
_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_BARE_WORDS = re.compile(r"(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z ,.'-]*")
_ANSWER_PHRASE = re.compile(r"answer\s*(?:is|:)\s*:?|####", re.IGNORECASE)


def math_reward(response: str, answer: str) -> float:
    r"""Returns 1.0 if the response's final answer equals the gold answer, else 0.0.

    The final answer is the last `\boxed{...}`, else the last number or expression. An answer that
    cannot be parsed or compared is a wrong answer. Degrees, units, percent and dollar signs and
    thousands separators do not count. Gold answers that are words, such as `\text{east}`, are
    compared as text: as mathematics they would be products of letters.

    Args:
      response: what the model wrote.
      answer: the gold answer in LaTeX, with or without `$` or `\boxed`.

    Raises:
      TimeoutError: parsing and comparing took longer than `CPU_SECONDS`.
    """
    boxed = last_boxed(response)
    final = _last_line_answer(response) if boxed is None else boxed
    gold_boxed = last_boxed(answer)
    gold = answer.strip() if gold_boxed is None else gold_boxed.strip()
    if gold and (gold == final.strip() or plain_form(gold) == plain_form(final)):
        return 1.0
    quick = _quick_number(gold, final if boxed is not None else response, boxed is not None)
    if quick is not None:
        return float(quick)
    # Several values may stand in a box each.
    if boxed is not None and response.count(r"\boxed") == 1 and surely_differ(gold, boxed):
        return 0.0
    if _is_text(gold):
        return float(_text_key(gold) == _text_key(final))
    try:
        with _limited_time():
            targets = _parse_gold(gold)
            if targets:
                return float(_equal(targets, response, boxed))
    except _OutOfTimeError:
        raise TimeoutError("the answer could not be parsed and compared in time") from None
    return float(_text_key(gold) == _text_key(final))


class _OutOfTimeError(BaseException):
    """Raised by the timer; SymPy and math-verify catch every `Exception` in many places."""


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _quick_number(gold: str, text: str, is_whole: bool) -> bool | None:
    """Whether two plain numbers are equal, without a parse; None if not both are such."""
    wanted = plain_number(gold)
    if wanted is None:
        return None
    found = plain_number(text) if is_whole else final_number(text)
    if found is None:
        return None
    if found.value == wanted.value:
        return True
    # One may be a share and the other in percent, or one be rounded: math-verify knows.
    return False if found.exact and wanted.exact else None


def _equal(targets: tuple[Any, ...], response: str, boxed: str | None) -> bool:
    if boxed is None:
        return _compare(targets, response[-SEARCHED_CHARS:])
    if _compare(targets, rf"\boxed{{{for_parser(boxed)}}}"):
        return True
    # The parts of a gold answer of several values may stand in a box each.
    several = any(isinstance(target, FiniteSet) for target in targets)
    return several and _compare(targets, response[-SEARCHED_CHARS:])


def _compare(targets: tuple[Any, ...], text: str) -> bool:
    try:
        found = parse(text, _EXTRACTION, parsing_timeout=_NO_LIMIT, raise_on_error=True)
        return verify(list(targets), found, timeout_seconds=None, raise_on_error=True)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        # SymPy raises many kinds of errors on expressions without a value, such as 1/0.
        return False


@functools.lru_cache(maxsize=256)
def _parse_gold(gold: str) -> tuple[Any, ...]:
    text = for_parser(gold)
    delimited = "$" in text.replace(r"\$", "")
    text = text if delimited else f"${text}$"
    return tuple(parse(text, _EXTRACTION, parsing_timeout=_NO_LIMIT, raise_on_error=True))


def _is_text(gold: str) -> bool:
    plain = gold.strip("$ .,()")
    wrapped = TEXT_COMMAND.fullmatch(plain)
    if wrapped is not None:
        return any(character.isalpha() for character in wrapped[1])
    return _BARE_WORDS.fullmatch(plain) is not None


def _text_key(text: str) -> tuple[str, ...]:
    """Words without markup, case, brackets and spacing; the order of a list is not compared."""
    plain = TEXT_COMMAND.sub(r"\1", text).casefold()
    parts = (" ".join(part.split()).strip(" .()$*\"'") for part in plain.split(","))
    return tuple(sorted(filter(None, parts)))


def _last_line_answer(response: str) -> str:
    lines = response.rstrip().rsplit("\n", 1)
    return _ANSWER_PHRASE.split(lines[-1])[-1]


# The first comparison imports grammars and much of SymPy: not on the clock of a first answer.
math_reward(r"\boxed{\sqrt{2} + x}", r"x + \sqrt{2}")
