"""Where tables and lines go: a terminal, a log, or a notebook."""

from typing import Any

from rich.console import Console


def rich_console(**options: Any) -> Console:
    """A console of rich that takes a notebook for a log: whole lines without escape codes.

    rich would write HTML there, with a copy as text in colours; told not to, it would take
    Jupyter's FORCE_COLOR for a terminal.

    Args:
      **options: of `rich.console.Console`.
    """
    console = Console(**options)
    if not console.is_jupyter:
        return console
    return Console(**options, force_jupyter=False, force_terminal=False)
