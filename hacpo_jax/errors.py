"""Errors that the command line tells in one line, without a traceback."""

import enum


class Missing(enum.Enum):
    """What stands for the value of a field that was not given at all."""

    MISSING = "missing"


MISSING = Missing.MISSING


class UserError(ValueError):
    """Bad input, told in one line: which field, which value, and what to do about it.

    The command line prints it without a traceback and exits with 2, so it must be raised before
    anything expensive starts.

    Args:
      field: the config key, argument or file that holds the bad value, e.g. `agents.0.model`.
      value: what was found there, told as YAML has it: None as null; `MISSING` if nothing was.
      remedy: what is wrong with it and what would be right.
    """

    def __init__(self, field: str, value: object, remedy: str):
        found = "" if value is MISSING else f" = {_written(value)}"
        super().__init__(" ".join(f"{field}{found}: {remedy}".split()))
        self.field = field
        self.value = value
        self.remedy = remedy


def _written(value: object) -> str:
    """A value as whoever writes YAML, or a word of a command, knows it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


class HostError(RuntimeError):
    """Another process of this run failed, died, or did not come in time; it says which.

    The command line prints it without a traceback and exits with 1.
    """
