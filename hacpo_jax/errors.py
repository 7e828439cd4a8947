"""Errors that the command line tells in one line, without a traceback."""


class UserError(ValueError):
    """Bad input, told in one line: which field, which value, and what to do about it.

    The command line prints it without a traceback and exits with 2, so it must be raised before
    anything expensive starts.

    Args:
      field: the config key, argument or file that holds the bad value, e.g. `agents.0.model`.
      value: what was found there.
      remedy: what is wrong with it and what would be right.
    """

    def __init__(self, field: str, value: object, remedy: str):
        super().__init__(" ".join(f"{field} = {value!r}: {remedy}".split()))
        self.field = field
        self.value = value
        self.remedy = remedy


class HostError(RuntimeError):
    """Another process of this run failed, died, or did not come in time; it says which.

    The command line prints it without a traceback and exits with 1.
    """
