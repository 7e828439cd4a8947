"""Saving and restoring everything that changes, with Orbax: written whole or not at all."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from hacpo_jax.errors import UserError
from hacpo_jax.training.step import RunState


class Checkpoints:
    """The checkpoints of one run; writing goes on in the background.

    The start (step 0, after warm starts) is kept beside the latest ones: the frozen reference
    policies are its parameters.

    Args:
      directory: where they live.
      keep: how many of the latest to keep.
    """

    def __init__(self, directory: Path, keep: int):
        policy = checkpoint_managers.AnyPreservationPolicy(
            [checkpoint_managers.LatestN(keep), checkpoint_managers.CustomSteps([0])]
        )
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policy, cleanup_tmp_directories=True
            ),
        )
        self._directory = directory

    def latest(self) -> int | None:
        """Steps done at the newest whole checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, state: RunState) -> None:
        """Start writing a checkpoint; the state may be donated right after."""
        self._manager.save(state.step, args=ocp.args.StandardSave(_snapshot(state)))

    def restore(self, like: RunState, step: int) -> RunState:
        """The state at `step`.

        Args:
          like: a state of the same agents, or its shapes.
          step: steps done.

        Raises:
          UserError: the checkpoint is damaged or of other agents.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _tree(like))
        path = str(self._directory / str(step))
        try:
            held = _shapes(self._manager.item_metadata(step).tree)
            # A restore that fails half-way leaves its other reads to complain on their own.
            if (difference := _difference(held, _shapes(abstract))) is not None:
                raise UserError("checkpoint", path, f"is of other agents: {difference}")
            tree = self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
        except UserError:
            raise
        except Exception as error:  # Orbax raises plain ones for damaged arrays
            remedy = f"is damaged, delete it to go on from an earlier one: {str(error)[:300]}"
            raise UserError("checkpoint", path, remedy) from error
        return RunState(
            int(tree["step"]),
            int(tree["blocks"]),
            tuple(tree["learners"]),
            np.asarray(tree["history"]),
        )

    def close(self) -> None:
        """Wait until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    """Shape of every array, by its path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _difference(held: dict, wanted: dict) -> str | None:
    """The first array that is not the same on both sides; parameters before what hangs on them."""
    names = held.keys() | wanted.keys()
    for name in sorted(names, key=lambda name: (".params." not in name, name)):
        if held.get(name) != wanted.get(name):
            return f"{name} is {held.get(name)} there and {wanted.get(name)} here"
    return None


def _tree(state: RunState) -> dict:
    return {
        "step": np.asarray(state.step, np.int32),
        "blocks": np.asarray(state.blocks, np.int32),
        "learners": list(state.learners),
        "history": state.history,
    }


def _snapshot(state: RunState) -> dict:
    """The state as a tree that later updates cannot touch.

    On CPU Orbax would write from the very buffers that the next update is free to reuse.
    """
    tree = _tree(state)
    if jax.default_backend() == "cpu":
        tree["learners"] = jax.tree.map(jnp.copy, tree["learners"])
    return tree
