"""Verifiers: from a response and a gold answer to a reward."""

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.pool import ProcessGrader, Verdict

MATH = "hacpo_jax.tasks.math_answers:math_reward"
_NUMBER = re.compile(r"(?P<sign>(?<![\d\w)])-)?(?P<digits>\d+(?:,\d{3})*(?:\.\d+)?)", re.ASCII)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class Counts:
    """How many verdicts were given, and how many of them are invalid for which reason.

    Args:
      answers: verdicts given.
      timeouts: of these, how many ran past a time limit.
      errors: of these, how many failed in another way.
    """

    answers: int = 0
    timeouts: int = 0
    errors: int = 0


class Grader(Protocol):
    """Grades one answer at a time."""

    def schedule(self, response: str, answer: str) -> Callable[[], Verdict]:
        """Starts the grading; the returned function waits for its end."""
        ...

    def close(self) -> None:
        """Frees what the grader holds."""
        ...


class TextGrader:
    """Compares strings by a function that takes linear time, so it works in this process.

    Args:
      is_right: of the response and the gold answer.
    """

    def __init__(self, is_right: Callable[[str, str], bool]):
        self._is_right = is_right

    def schedule(self, response: str, answer: str) -> Callable[[], Verdict]:
        verdict = Verdict(float(self._is_right(response, answer)), valid=True)
        return lambda: verdict

    def close(self) -> None:
        pass


def same_text(response: str, answer: str) -> bool:
    """Whether both are equal, white space around them aside."""
    return response.strip() == answer.strip()


def same_last_number(response: str, answer: str) -> bool:
    """Whether the last number in the response is the last one in the gold answer.

    Unlike `math`, it does not take a sum that merely repeats the question for its result.
    """
    found, wanted = _last_number(response), _last_number(answer)
    return found is not None and found == wanted


def _last_number(text: str) -> str | None:
    """The last decimal number, without thousands separators and zeros that do not count."""
    newest = deque(_NUMBER.finditer(text), maxlen=1)
    if not newest:
        return None
    (last,) = newest
    whole, _, fraction = last["digits"].replace(",", "").partition(".")
    value = f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}"
    return value if value == "0." or not last["sign"] else f"-{value}"


class Grading:
    """The answers of one `Verifier.submit` on their way."""

    def __init__(
        self,
        pending: Sequence[Callable[[], Verdict]],
        order: Sequence[int],
        count: Callable[[Sequence[Verdict]], None],
    ):
        self._pending = pending
        self._order = order
        self._count = count
        self._verdicts: list[Verdict] | None = None

    def result(self) -> list[Verdict]:
        """Waits for all verdicts and returns them in the order of the pairs."""
        if self._verdicts is None:
            distinct = [wait() for wait in self._pending]
            self._verdicts = [distinct[i] for i in self._order]
            self._count(self._verdicts)
        return self._verdicts


class Verifier:
    """Gives rewards to responses; close it or use it as a context manager.

    Args:
      grader: grades single answers.
    """

    def __init__(self, grader: Grader):
        self._grader = grader
        self._counts = Counts()
        self._first_error: str | None = None
        self._lock = threading.Lock()

    def submit(self, pairs: Sequence[tuple[str, str]]) -> Grading:
        """Starts grading and returns at once, so that it can overlap other work.

        Args:
          pairs: (response, gold answer); equal pairs are graded once.
        """
        position: dict[tuple[str, str], int] = {}
        order = [position.setdefault((response, gold), len(position)) for response, gold in pairs]
        return Grading([self._grader.schedule(*pair) for pair in position], order, self._add)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Grades pairs of (response, gold answer) and returns the verdicts in their order."""
        return self.submit(pairs).result()

    @property
    def counts(self) -> Counts:
        """What happened to the answers whose verdicts were asked for so far."""
        return self._counts

    @property
    def first_error(self) -> str | None:
        """Why the first answer that could not be graded could not."""
        return self._first_error

    def close(self) -> None:
        """Ends worker processes within seconds, even those that hang."""
        self._grader.close()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, verdicts: Sequence[Verdict]) -> None:
        errors = [verdict.error for verdict in verdicts if not verdict.valid]
        timeouts = sum(verdict.timed_out for verdict in verdicts)
        invalid = len(errors)
        with self._lock:
            if errors and self._first_error is None:
                self._first_error = errors[0]
            self._counts = Counts(
                self._counts.answers + len(verdicts),
                self._counts.timeouts + timeouts,
                self._counts.errors + invalid - timeouts,
            )


_TEXT = {"exact": same_text, "last_number": same_last_number}


def make_verifier(name: str, *, workers: int = 2, timeout: float = 10.0) -> Verifier:
    """Builds a verifier and starts its worker processes.

    Args:
      name: `exact` (equal text), `last_number` (that of the response is the answer), `math`
        (math-verify) or `package.module:function`, a function of the response and the gold answer
        that returns a finite number. It is imported by worker processes from the present
        `sys.path` and working folder, never by this one.
      workers: worker processes (`exact` and `last_number` need none).
      timeout: seconds that the grading of one answer may take.

    Returns:
      The verifier.

    Raises:
      UserError: a value out of its range, or a function that workers cannot import.
    """
    if workers < 1:
        raise UserError("workers", workers, "must be at least 1")
    if not 0 < timeout < float("inf"):
        raise UserError("timeout", timeout, "must be a positive number of seconds")
    if name in _TEXT:
        return Verifier(TextGrader(_TEXT[name]))
    function = MATH if name == "math" else name
    if _FUNCTION.fullmatch(function) is None:
        raise UserError(
            "verifier", name, "must be 'exact', 'last_number', 'math' or 'package.module:function'"
        )
    return Verifier(ProcessGrader(function, workers=workers, timeout=timeout))
