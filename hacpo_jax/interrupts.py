"""Ctrl-C: heard wherever it falls, and the end of the process that has heard it."""

import _thread
import os
import sys
import threading
from typing import NoReturn

INTERRUPTED = 130
"""What shells give a command that was interrupted: 128 and the signal's number."""

LATER = 0.05
"""Seconds until it is raised again: at once it would be raised within the same callback."""


def raise_again() -> None:
    """From now on an interrupt in a callback of the collector, as JAX has one, is not lost.

    Python prints what such a callback raises and goes on, so that Ctrl-C would do nothing.
    """
    sys.unraisablehook = _heard


def _heard(unraisable) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        timer = threading.Timer(LATER, _thread.interrupt_main)
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(unraisable)


def leave(code: int) -> NoReturn:
    """End this process; everything that was opened has been closed.

    Interrupted it ends at once: a program may be compiled or run still, and taking Python down
    beneath it is a segmentation fault at times.
    """
    if code == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
