"""Whose work a thread is doing, for whoever tells of it."""

import contextlib
import contextvars
from collections.abc import Iterator

_NAME: contextvars.ContextVar[str | None] = contextvars.ContextVar("whose", default=None)


@contextlib.contextmanager
def work_of(name: str) -> Iterator[None]:
    """What this thread does meanwhile is the work of an agent, or of a group of them."""
    before = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(before)


def whose() -> str | None:
    """The agent or group; None for work of all, or of nobody."""
    return _NAME.get()
