"""`train`: a whole run, from the first check to the plots."""

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_jax.cli.configs import find_config
from hacpo_jax.cli.words import Command, refuse_paths
from hacpo_jax.config import Config, config_text, load_config

if TYPE_CHECKING:
    from hacpo_jax.parallel.hosts import Hosts


def run(command: Command) -> None:
    """Train, or show what a finished run came to."""
    refuse_paths(command)
    config = load_config(find_config(command.config), command.settings)

    from hacpo_jax.parallel.hosts import Flags, start

    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(start(Flags(**command.hosts)))  # before anything calls JAX
        hosts.agree("config", config_text(config))
        if not hosts.is_first:  # one of them shows the run
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        _train(config, hosts, command.quiet)


def _train(config: Config, hosts: "Hosts", quiet: bool) -> None:
    from hacpo_jax.cli.cache import use_compilation_cache
    from hacpo_jax.cli.compiles import told
    from hacpo_jax.parallel.platforms import start_platform
    from hacpo_jax.report import write_report
    from hacpo_jax.training.console import Console
    from hacpo_jax.training.trainer import train

    with contextlib.closing(Console(quiet=quiet)) as console, told(console.note):
        summary = hosts.broadcast("summary", _finished(config) if hosts.is_first else None)
        if summary is None:
            start_platform()
            use_compilation_cache()
            summary = train(config, console, hosts)
        else:
            console.note(f"{config.run_dir} is complete; set run_dir or training.steps to do more")
        console.summary(summary, config.run_dir)
        if hosts.is_first:
            pictures = write_report([Path(config.run_dir)])
            console.note(f"report: {pictures[0]}")


def _finished(config: Config) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do.

    Raises:
      UserError: the run directory belongs to another config.
    """
    from hacpo_jax.training.run_dir import RunDirectory

    path = Path(config.run_dir) / "summary.json"
    if not path.is_file():
        return None
    RunDirectory(config).close()
    try:
        summary = json.loads(path.read_text())
    except json.JSONDecodeError:  # train writes it again
        return None
    return summary if summary["steps"] == config.training.steps else None
