"""`plan`: whether a run fits devices that are not there."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hacpo_jax.cli.configs import find_config
from hacpo_jax.cli.words import Command, refuse_paths
from hacpo_jax.config import load_config
from hacpo_jax.errors import MISSING, UserError

if TYPE_CHECKING:
    from hacpo_jax.parallel.plan import Plan

_JSON = "json="


def run(command: Command) -> int:
    """Compile every program, and print what each needs.

    Returns:
      1 if something does not fit, else 0.
    """
    refuse_paths(command)
    if command.topology is None:
        raise UserError(
            "--topology", MISSING, "is required: name devices, such as v5e:4x4 or cpu:8"
        )
    files = [word.removeprefix(_JSON) for word in command.settings if word.startswith(_JSON)]
    settings = [word for word in command.settings if not word.startswith(_JSON)]
    path = _writable(files[-1]) if files else None
    config = load_config(find_config(command.config), settings)
    _prepare_jax(command.topology)

    import jax

    from hacpo_jax.cli.cache import use_compilation_cache
    from hacpo_jax.parallel.plan import plan
    from hacpo_jax.parallel.plan_table import as_json, lines, table
    from hacpo_jax.parallel.topology import cpu_devices, topology_devices
    from hacpo_jax.terminal import rich_console

    devices = topology_devices(command.topology)
    if cpu_devices(command.topology) is None:
        # JAX would write programs for devices that are not there, and fail to read them.
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        use_compilation_cache()
    notes = rich_console(stderr=True)
    found: Plan = plan(
        config,
        devices,
        tell=lambda name, program: notes.print(f"compiling {program} of {name}", style="dim"),
    )
    console = rich_console()
    if not console.is_terminal:  # a file has no width
        console.width = 200
    console.print(table(found, command.topology))
    for line in lines(found):
        console.print(line, highlight=False)
    if path is not None:
        text = json.dumps(as_json(found, command.topology), indent=1)
        path.write_text(text + "\n", encoding="utf-8")
    return 0 if found.fits else 1


def _writable(name: str) -> Path:
    path = Path(name)
    if not name or path.is_dir() or not path.parent.is_dir():
        raise UserError("json", name, "must name a file in a directory that is there")
    return path


def _prepare_jax(topology: str) -> None:
    """Environment of a JAX that has not started: on CPUs, as many as the topology asks for."""
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # else it asks the cloud which TPU it is on
    os.environ["JAX_PLATFORMS"] = "cpu"
    kind, _, count = topology.partition(":")
    if kind == "cpu" and re.fullmatch(r"[1-9]\d{0,2}", count):
        option = "--xla_force_host_platform_device_count"
        kept = [o for o in os.environ.get("XLA_FLAGS", "").split() if not o.startswith(option)]
        os.environ["XLA_FLAGS"] = " ".join([*kept, f"{option}={count}"])
