"""Interrupts of the command line, in processes of their own."""

import subprocess
import sys

import pytest

LOST = """
import gc, time
from hacpo_jax.interrupts import raise_again

def callback(phase, info):
    gc.callbacks.remove(callback)
    raise {raised}

raise_again()
gc.callbacks.append(callback)
try:
    gc.collect()
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        pass
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""
LEFT = """
import atexit
from hacpo_jax.interrupts import leave
atexit.register(print, "taken down")
print("said")
leave({code})
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("raised", "seconds", "out", "told"),
    [("KeyboardInterrupt", 30, "interrupted", False), ("ValueError('x')", 0, "went on", True)],
)
def test_an_interrupt_in_a_callback_of_the_collector_is_not_lost(raised, seconds, out, told):
    found = run(LOST.format(raised=raised, seconds=seconds))
    assert found.stdout.strip() == out
    assert ("ValueError: x" in found.stderr) is told


@pytest.mark.parametrize(("code", "out"), [(130, "said"), (2, "said\ntaken down")])
def test_an_interrupted_process_ends_at_once_with_what_it_has_said(code, out):
    found = run(LEFT.format(code=code))
    assert (found.returncode, found.stdout.strip()) == (code, out)
