"""An interrupt that Python raises where it is not heard of, and raised again where it is."""

import _thread
import sys
import threading

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
