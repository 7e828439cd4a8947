"""`report`: plots of runs."""

from pathlib import Path

from hacpo_jax.cli.words import Command, parse_options, refuse_config
from hacpo_jax.config.base import Section
from hacpo_jax.errors import MISSING, UserError


class _Options(Section):
    out: str | None = None


def run(command: Command) -> None:
    """Plot the runs that the command names."""
    refuse_config(command)
    options = parse_options(_Options, command.settings)
    if not command.paths:
        raise UserError("run directory", MISSING, "is required: report RUN_DIR ...")

    from hacpo_jax.report import write_report

    runs = [Path(path) for path in command.paths]
    for picture in write_report(runs, None if options.out is None else Path(options.out)):
        print(picture)
