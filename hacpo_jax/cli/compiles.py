"""Programs are told of as they have been compiled, which is where a run's first minutes go."""

import contextlib
from collections.abc import Callable, Iterator

import jax

from hacpo_jax.training.whose import whose

LEAST_SECONDS = 1.0
"""Programs that took less, many and small, are not told of."""
PROGRAMS = {
    "new_weights": "new weights",
    "stack": "weights side by side",
    "optimizer_state": "optimizer state",
    "warm_start_update": "warm start",
    "gather_weights": "gather",
    "weights_apart": "gather",
    "_answer_keys": "random numbers",
    "prefill": "prefill",
    "enter": "prefill",
    "resize_ring": "decode",
    "decode": "decode",
    "no_log_probs": "score",
    "score_cut": "score",
    "nothing_found": "update",
    "accumulate": "update",
    "apply": "optimizer",
    "_look": "diagnostics",
    "_cosines": "diagnostics",
}
"""What the functions that are compiled are called; `plan` calls those that it compiles so too."""
_EVENT = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def listening(hear: Callable[[str, float], None]) -> Iterator[None]:
    """Hear of every program that is compiled, or read from the cache, meanwhile.

    Args:
      hear: is given its name and the seconds that it took; from any thread that compiles.
    """

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if event == _EVENT:
            name = str(details.get("fun_name", "a program")).removeprefix("jit(").rstrip(")")
            hear(name, duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextlib.contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of every large program that is compiled, or read from the cache, meanwhile, and at the
    end how many programs there were and what they took together.

    Args:
      tell: is given one line; from any thread that compiles.
    """
    seconds: list[float] = []  # appended to by several threads, which lists allow

    def hear(name: str, took: float) -> None:
        seconds.append(took)
        if took >= LEAST_SECONDS:
            program, who = PROGRAMS.get(name, "a part of a step"), whose()
            tell(f"compiled {program}{f' of {who}' if who else ''} in {took:.0f} s")

    try:
        with listening(hear):
            yield
    finally:
        if seconds:
            tell(f"{len(seconds)} programs compiled or read in {sum(seconds):.0f} s together")
