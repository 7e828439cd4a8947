"""Rewards by comparing text; worker processes call them, as they do all verifiers."""

import re
from collections import deque

from hacpo_jax.tasks.boxed import last_boxed

_NUMBER = re.compile(r"(?P<sign>(?<![\d\w)])-)?(?P<digits>\d+(?:,\d{3})*(?:\.\d+)?)", re.ASCII)
_SIGNED = re.compile(r"-\s*\\?\$\s*(?=\d)")  # -$5 is a negative number
_PHRASE = re.compile(r"answer\s*(?:is|:)|####", re.IGNORECASE)
_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|tt)?|mbox|math(?:rm|bf|it|bb))\s*\{([^{}]*)\}")
_LETTER = re.compile(r"[\s$*({\[\\]*([A-Za-z])(?![A-Za-z])")
_CHOSEN = re.compile(
    r"answer\s*(?:is|:)[\s*:$\\(\[{]*(?:option|choice)?[\s(]*([A-Z])(?![A-Za-z])", re.I
)
_LINE = re.compile(r"[\s*(\[]*([A-Z])(?:[\s*).\]]*|[).:\]].*)")
_BRACKETED = re.compile(r"\(([A-Z])\)")


def exact_reward(response: str, answer: str) -> float:
    """1.0 if both are equal, white space around them aside, else 0.0."""
    return float(response.strip() == answer.strip())


def last_number_reward(response: str, answer: str) -> float:
    """1.0 if the last number in the response is the last one in the gold answer, else 0.0.

    Unlike `math`, it does not take a sum that merely repeats the question for its result.
    """
    found, wanted = last_number(response), last_number(answer)
    return float(found is not None and found == wanted)


def gsm8k_reward(response: str, answer: str) -> float:
    r"""1.0 if the response's number is that of a GSM8K answer, else 0.0.

    The response's number is, of these, the first that is there: the last in the last `\boxed{...}`,
    the first after the last `####` or `answer is`, the last of all.

    Args:
      response: what the model wrote.
      answer: the number, or a solution that ends in `#### number`.
    """
    wanted = last_number(answer.rpartition("####")[2])
    boxed = last_boxed(response)
    found = None if boxed is None else last_number(boxed)
    if found is None:
        after = deque(_PHRASE.finditer(response), maxlen=1)
        tail = response[after[0].end() :] if after else ""
        number = _NUMBER.search(_SIGNED.sub("-", tail.replace("{,}", ",")))
        found = last_number(response) if number is None else _value(number)
    return float(found is not None and found == wanted)


def choice_reward(response: str, answer: str) -> float:
    r"""1.0 if the response chooses the letter of the gold answer, else 0.0.

    The letter is, of these, the first that is there: that of the last `\boxed{...}`, that after the
    last `answer is` or `answer:`, one that stands alone in the last line or begins it, as in
    `(B) text` and `B. text`, the last one in round brackets.

    Args:
      response: what the model wrote.
      answer: a letter, with or without markup and brackets.
    """
    wanted = _LETTER.match(_COMMAND.sub(r"\1", answer))
    if wanted is None:
        raise ValueError(f"the gold answer must be a letter, not {answer[:40]!r}")
    return float(_chosen(response) == wanted[1].upper())


def format_reward(response: str, answer: str, *, pattern: str | None = None) -> float:
    r"""1.0 if the response has a form, whatever it says, else 0.0.

    Args:
      response: what the model wrote.
      answer: not looked at.
      pattern: regular expression that is found in the response, `.` being any character; without
        it, the form is a `\boxed{...}` that is not empty.
    """
    if pattern is None:
        return float(bool((last_boxed(response) or "").strip()))
    return float(re.search(pattern, response, re.DOTALL) is not None)


def last_number(text: str) -> str | None:
    """The last decimal number, without thousands separators and zeros that do not count."""
    newest = deque(_NUMBER.finditer(_SIGNED.sub("-", text.replace("{,}", ","))), maxlen=1)
    return _value(newest[0]) if newest else None


def _value(number: re.Match[str]) -> str:
    whole, _, fraction = number["digits"].replace(",", "").partition(".")
    value = f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}"
    return value if value == "0." or not number["sign"] else f"-{value}"


def _chosen(response: str) -> str | None:
    boxed = last_boxed(response)
    if boxed is not None:
        letter = _LETTER.match(_COMMAND.sub(r"\1", boxed))
        return None if letter is None else letter[1].upper()
    plain = _COMMAND.sub(r"\1", response)
    phrases = [found for found in deque(_CHOSEN.finditer(plain), maxlen=1) if found[1].isupper()]
    if phrases:
        return phrases[0][1]
    line = _LINE.fullmatch(plain.rstrip().rpartition("\n")[2])
    if line is not None:
        return line[1]
    bracketed = deque(_BRACKETED.finditer(plain), maxlen=1)
    return bracketed[0][1] if bracketed else None
