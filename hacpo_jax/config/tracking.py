"""Config of trackers: where a run is shown besides the console and its directory."""

from typing import Literal

from pydantic import Field

from hacpo_jax.config.base import Section


class Wandb(Section):
    """Weights & Biases.

    Attributes:
      project: name of the project.
      entity: user or team; null is the one that is logged in.
      name: how the run is called; null takes the last part of `run_dir`.
      mode: `online`, or `offline` to write into the run directory for a later `wandb sync`.
    """

    project: str = Field(min_length=1)
    entity: str | None = None
    name: str | None = None
    mode: Literal["online", "offline"] = "online"


class Tracking(Section):
    """Showing a run's metrics, evaluations and sample answers elsewhere; needs the extra `track`.

    Attributes:
      tensorboard: write event files to `tensorboard/` in the run directory, a folder per agent.
      wandb: send to Weights & Biases; null does not.
    """

    tensorboard: bool = False
    wandb: Wandb | None = None
