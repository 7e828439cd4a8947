"""Reading a run's directory without disturbing the run, which may still be going on."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from etils import epath

from hacpo_jax.agents import AgentGroup, base_params, group_agents, saved_agents
from hacpo_jax.config import Config
from hacpo_jax.errors import UserError
from hacpo_jax.models import Adapted, abstract_trained, trained_axes
from hacpo_jax.models.lora import Params, with_base
from hacpo_jax.parallel.layout import Layout, one_device

AGENTS = "agents"
"""Folder of a run with one folder of each agent: a Hugging Face directory without the weights."""


def saved_groups(run_dir: Path, config: Config) -> tuple[AgentGroup, ...]:
    """A run's agents as they are trained together, from its directory alone.

    Args:
      run_dir: the run's directory.
      config: its config.

    Raises:
      UserError: see `hacpo_jax.agents.saved_agents`.
    """
    agents = saved_agents(config.agents, run_dir / AGENTS, longest=config.longest_sequence)
    return tuple(group_agents(agents))


def find_agent(config: Config, name: str) -> str:
    """`name`, if one of the agents is called so.

    Raises:
      UserError: none is.
    """
    names = [agent.name for agent in config.agents]
    if name not in names:
        raise UserError("agent", name, f"the run has {', '.join(names)}")
    return name


def saved_steps(run_dir: Path) -> list[int]:
    """Steps done at each of a run's whole checkpoints, in order."""
    directory = (run_dir / "checkpoints").absolute()
    return sorted(ocp.utils.checkpoint_steps(directory)) if directory.is_dir() else []


def choose_step(run_dir: Path, step: int | None) -> int:
    """Steps done at one of a run's checkpoints; the latest where `step` is None.

    Raises:
      UserError: there is no such checkpoint.
    """
    steps = saved_steps(run_dir)
    if not steps:
        raise UserError("run directory", str(run_dir), "has no checkpoint yet")
    if step is None:
        return steps[-1]
    if step not in steps:
        kept = ", ".join(map(str, steps))
        raise UserError("step", step, f"no checkpoint of {run_dir} there; it keeps {kept}")
    return step


def saved_params(
    run_dir: Path,
    groups: tuple[AgentGroup, ...],
    step: int,
    seed: int,
    layouts: Sequence[Layout] | None = None,
) -> list[Params | Adapted]:
    """Parameters `[A, ...]` of each group at a checkpoint; no optimizer state is read.

    Args:
      run_dir: the run's directory.
      groups: its agents, as `prepare` groups them.
      seed: the run's seed, from which the base of adapters on a new model was drawn.
      step: one of its checkpoints, see `choose_step`.
      layouts: where each group's lie; None is one device.

    Raises:
      UserError: the checkpoint is damaged or of other agents.
    """
    layouts = [one_device()] * len(groups) if layouts is None else layouts
    pairs = list(zip(groups, layouts, strict=True))
    wanted = {"learners": [{"params": _stacked_shapes(*pair)} for pair in pairs]}
    path = run_dir / "checkpoints" / str(step)
    arguments = ocp.args.PyTreeRestore(
        item=wanted,
        restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
        partial_restore=True,
    )
    item = epath.Path(path.absolute() / "default")
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as reader:
        try:
            _compare(_shapes(reader.metadata(item).tree), _shapes(wanted))
            tree = reader.restore(item, args=arguments)
        except (ValueError, KeyError, TypeError, OSError) as error:
            remedy = f"does not hold these agents or is damaged: {str(error)[:300]}"
            raise UserError("checkpoint", str(path), remedy) from error
    return [
        with_base(learner["params"], base_params(group, seed, layout=layout))
        for learner, (group, layout) in zip(tree["learners"], pairs, strict=True)
    ]


def _stacked_shapes(group: AgentGroup, layout: Layout):
    count = len(group.agents)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), abstract_trained(group.model)
    )
    return layout.abstract(shapes, trained_axes(group.model), lead=("agents",))


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters in a tree of arrays, by their paths."""
    learners = [learner["params"] for learner in tree["learners"]]
    flat, _ = jax.tree_util.tree_flatten_with_path(learners)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
        for path, leaf in flat
    }


def _compare(there: dict[str, tuple[int, ...]], here: dict[str, tuple[int, ...]]) -> None:
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise ValueError(f"{name} is {there.get(name)} there and {here.get(name)} here")
