"""What a person sees: one live table in a terminal, whole lines in a log, little when quiet."""

import io

import pytest
from rich.console import Console as RichConsole

from hacpo_jax.text import time_left
from hacpo_jax.training.console import Console, Pace


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def row(step: int, agent: str, peer: str) -> dict:
    return {
        "step": step,
        "agent": agent,
        "reward/mean": 0.5,
        "capability": 0.25,
        f"omega/{peer}": 2.0,
        "ratio/own": 1.0,
        f"ratio/{peer}": 0.75,
        "response_length/mean": 12.0,
        "entropy": None,
        "grad_norm": 0.01,
    }


def show(console: Console, clock: Clock, steps: int) -> None:
    console._steps = steps
    accuracy = {"benchmark": "sums", "problems": 4, "invalid": 0}
    console.evaluation(0, [{"agent": "red", "accuracy": 0.25, **accuracy}])
    for step in range(1, steps + 1):
        clock.now += 60.0 if step == 1 else 10.0
        console.step(step, [row(step, "red", "blue"), row(step, "blue", "red")])
        if step == 1:
            console.warning("look out")
            console.note("by the way")


def lines(terminal: bool, *, quiet: bool = False, steps: int = 3) -> str:
    out, clock = io.StringIO(), Clock()
    rich = RichConsole(file=out, force_terminal=terminal, width=120, highlight=False)
    console = Console(quiet=quiet, out=rich, clock=clock)
    show(console, clock, steps)
    console.close()
    return out.getvalue()


def test_a_log_has_whole_lines_and_no_escape_codes():
    text = lines(False)
    assert "\x1b" not in text and "\r" not in text
    steps = [line for line in text.splitlines() if line.startswith("step 2/3")]
    assert steps[0] == (
        "step 2/3 red: reward 0.500, capability 0.250, omega 2.000, own ratio 1.000, "
        "peer ratio 0.750, length 12.000, entropy -, grad norm 0.01"
    )
    # One more step of 10 s; the first, of 60 s, has compiled.
    assert steps[1].endswith("grad norm 0.01; about 10 s left")
    assert "step 0: red on sums: 25.0% of 4 problems" in text
    assert "warning: look out\n" in text


def test_a_terminal_has_one_table_of_agents_by_step():
    text = lines(True)
    assert "\x1b[" in text
    last = text[text.rindex("┏") :]
    assert text.count("look out") == text.count("by the way") == 1
    for word in ("step", "agent", "reward", "omega", "held out", "red", "blue", "25.0%"):
        assert word in last
    assert [line.split("│")[1].strip() for line in last.splitlines() if "red" in line] == list(
        "123"
    )
    assert "step 3 of 3" in last


def test_the_live_table_does_not_grow_without_end():
    text = lines(True, steps=30)
    last = text[text.rindex("┏") :]
    assert sum("red" in line for line in last.splitlines()) == 6
    assert "│ 30" in last and "│ 24" not in last


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_warnings_alone(terminal):
    text = lines(terminal, quiet=True)
    assert text.strip() == "warning: look out"


def test_a_warning_moves_no_cursor():
    """A verifier may tell what a model wrote."""
    out = io.StringIO()
    rich = RichConsole(file=out, force_terminal=True, width=120, highlight=False)
    Console(out=rich).warning("ValueError: \x1b[2Jgone\x07")
    assert out.getvalue() == "warning: ValueError: \\x1b[2Jgone\\x07\n"


def test_the_pace_is_that_of_the_latest_steps():
    clock = Clock()
    pace = Pace(clock)
    clock.now += 300
    assert pace.left(10) == ""  # most of it was compiling
    for _ in range(3):
        clock.now += 6
    assert pace.left(100) == "about 30 min left"
    for _ in range(20):
        clock.now += 2
        text = pace.left(30)
    assert text == "about 60 s left"
    assert pace.left(0) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.4, "about 12 s left"), (600, "about 10 min left"), (9000, "about 2.5 h left")],
)
def test_time_left_in_words(seconds, text):
    assert time_left(seconds) == text
