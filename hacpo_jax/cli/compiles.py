"""Programs are told of as they have been compiled, which is where a run's first minutes go."""

import contextlib
from collections.abc import Callable, Iterator

import jax

LEAST_SECONDS = 1.0
"""Programs that took less, many and small, are not told of."""
_EVENT = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of every large program that is compiled, or read from the cache, meanwhile.

    Args:
      tell: is given one line; from any thread that compiles.
    """

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if event == _EVENT and duration_secs >= LEAST_SECONDS:
            name = str(details.get("fun_name", "a program")).removeprefix("jit(").rstrip(")")
            tell(f"compiled {name} in {duration_secs:.0f} s")

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
