"""Config of the devices: how an agent's arrays lie on them."""

from pydantic import Field

from hacpo_jax.config.base import Section


class Mesh(Section):
    """How the devices are divided; the product of the four is the number of devices.

    Attributes:
      agent: agents of one architecture that are trained side by side, each on its part.
      data: parts of a batch whose devices hold whole parameters; null is what the others leave.
      fsdp: parts of a batch whose devices share parameters and optimizer state; null is as many as
        divide the hidden size.
      tensor: devices that share attention heads, the MLP and the vocabulary.
      offload: keep parameters and optimizer state in host memory while other agents have the
        devices.
    """

    agent: int = Field(default=1, ge=1)
    data: int | None = Field(default=None, ge=1)
    fsdp: int | None = Field(default=None, ge=1)
    tensor: int = Field(default=1, ge=1)
    offload: bool = False
