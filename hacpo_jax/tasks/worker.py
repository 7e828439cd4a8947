"""What a verifier's worker process runs; it must not import jax."""

import importlib
import json
import math
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 * 2**30
_ERROR_CHARS = 300


def serve(descriptor: int, function: str) -> None:
    """Imports a verifier, reports on that, and grades answers until the parent is gone.

    Sent as JSON: first why the verifier cannot be used, or null; then the result of `grade` for
    every pair (response, answer) received.

    Args:
      descriptor: of the pipe to the parent.
      function: `package.module:function`, called as f(response, answer).
    """
    connection = Connection(descriptor)
    # An interrupt from the keyboard reaches the whole process group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        verifier = _load(function)
    except BaseException as error:
        _send(connection, describe(error))
        return
    _limit_memory()
    _send(connection, None)
    while True:
        try:
            response, answer = connection.recv()
        except EOFError:
            return
        _send(connection, grade(verifier, response, answer))


def grade(verifier: Callable[[str, str], Any], response: str, answer: str) -> tuple[str, Any]:
    """Grades one answer; whatever the verifier returns or raises becomes a number or text.

    Returns:
      `("reward", finite number)`, `("timeout", text)` or `("error", text)`.
    """
    try:
        value = verifier(response, answer)
        reward = math.nan if isinstance(value, str | bytes) else float(value)  # float("1") is 1
    except TimeoutError as error:
        return "timeout", describe(error)
    except BaseException as error:
        return "error", describe(error)
    if not math.isfinite(reward):
        return "error", f"the verifier must return a finite number, not {describe(value)}"
    return "reward", reward


def describe(value: object) -> str:
    """Returns the type and the first part of the text of an error or of a wrong value."""
    try:
        text = str(value)
    except Exception:
        text = ""
    return f"{type(value).__name__}: {text}"[:_ERROR_CHARS]


def _load(function: str) -> Callable[[str, str], object]:
    module, _, name = function.partition(":")
    loaded = getattr(importlib.import_module(module), name)
    if not callable(loaded):
        raise TypeError(f"{function} is not callable")
    return loaded


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
