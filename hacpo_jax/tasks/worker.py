"""What a verifier's worker process runs; it must not import jax."""

import contextlib
import functools
import importlib
import inspect
import json
import math
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 * 2**30
_ERROR_CHARS = 300


@dataclass(frozen=True)
class _Term:
    """A function and what its result is multiplied with."""

    weight: float
    function: Callable[[str, str], Any]


def serve(descriptor: str, spec: str) -> None:
    """Imports a verifier, reports on that, and grades answers until the parent is gone.

    Sent as JSON: first why the verifier cannot be used, or null; then the result of `grade` for
    every pair (response, answer) received. Pairs are received as lists of them.

    Args:
      descriptor: of the pipe to the parent.
      spec: JSON, a list of the fields of `pool.Part`.
    """
    connection = Connection(int(descriptor))
    # An interrupt from the keyboard reaches the whole process group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    terms, ready = _terms(json.loads(spec))
    _limit_memory()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # no parent any more
        _send(connection, ready)
        while ready is None:
            for response, answer in connection.recv():
                _send(connection, grade(terms, response, answer))


def grade(terms: Sequence[_Term], response: str, answer: str) -> tuple[str, Any]:
    """Grades one answer; whatever the functions return or raise becomes a number or text.

    Returns:
      `("reward", finite number)`, `("timeout", text)` or `("error", text)`.
    """
    reward = 0.0
    for term in terms:
        try:
            value = term.function(response, answer)
            part = math.nan if isinstance(value, str | bytes) else float(value)  # float("1") is 1
        except TimeoutError as error:
            return "timeout", describe(error)
        except BaseException as error:
            return "error", describe(error)
        if not math.isfinite(part):
            return "error", f"the verifier must return a finite number, not {describe(value)}"
        reward += term.weight * part
    return "reward", reward


def describe(value: object) -> str:
    """Returns the type and the first part of the text of an error or of a wrong value."""
    try:
        text = str(value)
    except Exception:
        text = ""
    return f"{type(value).__name__}: {text}"[:_ERROR_CHARS]


def _terms(parts: Sequence[dict[str, Any]]) -> tuple[list[_Term], str | None]:
    """What is added up, or why it cannot be; of several parts, also which."""
    terms = []
    for part in parts:
        try:
            terms.append(_Term(part["weight"], _load(part["function"], part["options"])))
        except BaseException as error:
            which = f"{part['name'] or part['function']}: " if len(parts) > 1 else ""
            return [], which + describe(error)
    return terms, None


def _load(function: str, options: dict[str, Any]) -> Any:
    module, _, name = function.partition(":")
    loaded = getattr(importlib.import_module(module), name)
    if not callable(loaded):
        raise TypeError(f"{function} is not callable")
    if not options:
        return loaded
    signature = inspect.signature(loaded)
    try:
        signature.bind("", "", **options)
    except TypeError as error:
        known = ", ".join([*signature.parameters][2:]) or "none"
        raise TypeError(f"{error}; its options: {known}") from None
    return functools.partial(loaded, **options)


def _send(connection: Connection, message: object) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _limit_memory() -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():  # other systems than Linux do not enforce the limit
        return
    # Address space that the imports reserved does not count: some libraries map many GiB.
    limit = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
