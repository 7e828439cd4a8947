"""The command line: `python -m hacpo_jax.launch [verb] --config FILE [key=value ...]`."""

import importlib
import os
import sys
from collections.abc import Sequence

from hacpo_jax.cli.help import help_text
from hacpo_jax.cli.words import parse
from hacpo_jax.cpu_compiler import compile_quickly_for_cpus
from hacpo_jax.errors import HostError, UserError
from hacpo_jax.hub_retries import tell_once
from hacpo_jax.interrupts import INTERRUPTED, leave, raise_again
from hacpo_jax.text import printable


def main(words: Sequence[str]) -> int:
    """Do what the words after the program's name say.

    Returns:
      The exit code: 0; 2 for bad input and 1 for the failure of another process, each told in one
      line, or for a plan that does not fit; 130 when interrupted.
    """
    # Only tokenizers and configs of transformers are used, so it need not miss torch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    compile_quickly_for_cpus()
    tell_once()
    command = None
    try:
        command = parse(words)
        if command.help:
            print(help_text(command.verb))
            return 0
        # Each verb imports what it needs: JAX takes seconds, and bad words need none of it.
        return importlib.import_module(f"hacpo_jax.cli.{command.verb}").run(command) or 0
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except HostError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        trains = command is not None and command.verb == "train"
        hint = "; the same command goes on from the last checkpoint" if trains else ""
        print(f"interrupted{hint}", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    raise_again()
    leave(main(sys.argv[1:]))
