"""Verifiers: from a response and a gold answer to a reward."""

import difflib
import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.conditions import compile_pattern
from hacpo_jax.tasks.pool import Part, ProcessGrader, Verdict

_TEXT = "hacpo_jax.tasks.text_rewards"
BUILT_IN = {
    "exact": f"{_TEXT}:exact_reward",
    "last_number": f"{_TEXT}:last_number_reward",
    "gsm8k": f"{_TEXT}:gsm8k_reward",
    "choice": f"{_TEXT}:choice_reward",
    "format": f"{_TEXT}:format_reward",
    "math": "hacpo_jax.tasks.math_answers:math_reward",
    "reasoning_gym": "hacpo_jax.tasks.gym_reward:gym_reward",
    "auto": "hacpo_jax.tasks.auto_reward:auto_reward",
}
"""Verifiers that have names; each gives a reward of 0 to 1."""
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
    """Grades answers; see `ProcessGrader`."""

    @property
    def restarts(self) -> int:
        """How many times it had to be put in order."""
        ...

    def schedule(self, pairs: Sequence[tuple[str, str]]) -> Callable[[], list[Verdict]]:
        """Starts the grading; the returned function waits for its end."""
        ...

    def close(self) -> None:
        """Frees what the grader holds."""
        ...


class Grading:
    """The answers of one `Verifier.submit` on their way."""

    def __init__(
        self,
        pending: Callable[[], list[Verdict]],
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
            distinct = self._pending()
            self._verdicts = [distinct[i] for i in self._order]
            self._count(self._verdicts)
        return self._verdicts


class Verifier:
    """Gives rewards to responses; close it or use it as a context manager.

    Args:
      grader: grades distinct answers.
    """

    def __init__(self, grader: Grader):
        self._grader = grader
        self._counts = Counts()
        self._first_errors: dict[str | None, str] = {}
        self._lock = threading.Lock()

    def submit(self, pairs: Sequence[tuple[str, str]], source: str | None = None) -> Grading:
        """Starts grading and returns at once, so that it can overlap other work.

        Args:
          pairs: (response, gold answer); equal pairs are graded once.
          source: whose responses they are; see `first_error_of`.
        """
        position: dict[tuple[str, str], int] = {}
        order = [position.setdefault((response, gold), len(position)) for response, gold in pairs]
        count = functools.partial(self._add, source)
        return Grading(self._grader.schedule(list(position)), order, count)

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
        return next(iter(self._first_errors.values()), None)

    def first_error_of(self, source: str) -> str | None:
        """The same of the answers that were submitted as those of `source`."""
        return self._first_errors.get(source)

    @property
    def restarts(self) -> int:
        """How many worker processes were replaced because they hung or died."""
        return self._grader.restarts

    def close(self) -> None:
        """Ends worker processes within seconds, even those that hang."""
        self._grader.close()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, source: str | None, verdicts: Sequence[Verdict]) -> None:
        errors = [verdict.error or "" for verdict in verdicts if not verdict.valid]
        timeouts = sum(verdict.timed_out for verdict in verdicts)
        invalid = len(errors)
        with self._lock:
            if errors:
                self._first_errors.setdefault(source, errors[0])
            self._counts = Counts(
                self._counts.answers + len(verdicts),
                self._counts.timeouts + timeouts,
                self._counts.errors + invalid - timeouts,
            )


class NamedPart(Protocol):
    """A part of a weighted sum as the config has it; see `config.VerifierPart`."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def model_extra(self) -> dict[str, Any] | None: ...


def make_verifier(
    name: str | Sequence[NamedPart | Mapping[str, Any]], *, workers: int = 2, timeout: float = 10.0
) -> Verifier:
    """Builds a verifier and starts its worker processes.

    Args:
      name: one of `BUILT_IN`, or `package.module:function`, a function of the response and the gold
        answer that returns a finite number, which worker processes import from the present
        `sys.path` and working folder, never this one; or a list of `{"name": ..., "weight": ...}`,
        whose weighted rewards are added up (weight 1 by default; further keys are keywords of the
        function, such as `pattern` of `format`).
      workers: worker processes.
      timeout: seconds that the grading of one answer may take, all parts of a sum together.

    Returns:
      The verifier.

    Raises:
      UserError: a value out of its range, or a function that workers cannot import.
    """
    if workers < 1:
        raise UserError("workers", workers, "must be at least 1")
    if not 0 < timeout < float("inf"):
        raise UserError("timeout", timeout, "must be a positive number of seconds")
    if isinstance(name, str):
        parts = [_part(name)]
    else:
        parts = [_listed(i, _fields(part)) for i, part in enumerate(name)]
    if not parts:
        raise UserError("verifier", [], "an empty list; name at least one verifier")
    return Verifier(ProcessGrader(parts, workers=workers, timeout=timeout))


def _listed(index: int, fields: dict[str, Any]) -> Part:
    """A part of a sum, whose faults are told by where it stands."""
    try:
        return _part(**fields)
    except UserError as error:
        key = "name" if error.field == "verifier" else error.field
        raise UserError(f"verifier.{index}.{key}", error.value, error.remedy) from None


def _fields(part: NamedPart | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(part, Mapping):
        return dict(part)
    return {"name": part.name, "weight": part.weight, **(part.model_extra or {})}


def _part(name: str = "", weight: float = 1.0, **options: Any) -> Part:
    if not 0 < weight < float("inf"):
        raise UserError("weight", weight, f"of {name!r}: must be a positive number")
    function = BUILT_IN.get(name, name)
    if _FUNCTION.fullmatch(function) is None:
        close = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"did you mean {close[0]!r}? It " if close else ""
        known = ", ".join(map(repr, BUILT_IN))
        raise UserError("verifier", name, f"{hint}must be {known} or 'package.module:function'")
    if name == "format" and isinstance(options.get("pattern"), str):
        compile_pattern(options["pattern"], "pattern")
    return Part(function, weight, options, name)
