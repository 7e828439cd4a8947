"""`export`: agents of a run as Hugging Face directories."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from hacpo_jax.cli.words import Command, parse_options, refuse_config
from hacpo_jax.config.base import Section
from hacpo_jax.errors import MISSING, UserError


class _Options(Section):
    out: str
    agent: str | None = None
    step: int | None = Field(default=None, ge=0)
    dtype: Literal["float32", "bfloat16"] = "float32"


def run(command: Command) -> None:
    """Write the agents that the command names."""
    refuse_config(command)
    options = parse_options(_Options, command.settings)
    if len(command.paths) != 1:
        remedy = "name one: export RUN_DIR out=DIR"
        raise UserError("run directory", " ".join(command.paths) or MISSING, remedy)
    path, out = Path(command.paths[0]), Path(options.out)

    from hacpo_jax.training.run_dir import saved_config

    config = saved_config(path)
    names = [agent.name for agent in config.agents]

    import jax.numpy as jnp

    from hacpo_jax.agents import export_agent
    from hacpo_jax.models.lora import member
    from hacpo_jax.parallel.platforms import start_platform
    from hacpo_jax.training.saved_run import choose_step, find_agent, saved_groups, saved_params

    wanted = names if options.agent is None else [find_agent(config, options.agent)]
    for name in wanted:
        _check_target(out / name)
    step = choose_step(path, options.step)
    start_platform()
    groups = saved_groups(path, config)
    for group, stacked in zip(groups, saved_params(path, groups, step, config.seed), strict=True):
        for i, agent in enumerate(group.agents):
            if agent.name not in wanted:
                continue
            export_agent(
                agent, member(stacked, i), out / agent.name, dtype=jnp.dtype(options.dtype)
            )
            print(f"{agent.name} after step {step}: {out / agent.name}")


def _check_target(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError("out", str(directory), "exists already; remove it or choose another")
