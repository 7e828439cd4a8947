"""Meshes that fit a model: sizes checked, and chosen where the config leaves them open."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from hacpo_jax.errors import UserError
from hacpo_jax.parallel.rules import AXES

if TYPE_CHECKING:
    from hacpo_jax.config import MeshConfig
    from hacpo_jax.models import ModelConfig


@dataclasses.dataclass(frozen=True)
class MeshSizes:
    """Devices along each axis; `rows` of a batch lie over `data` and `fsdp`."""

    agent: int = 1
    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.agent, self.data, self.fsdp, self.tensor)

    @property
    def devices(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Parts that the rows of a batch are cut into."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in zip(AXES, self.shape, strict=True))


_WITHOUT_TENSOR = (
    "; or keep it at 1 and share parameters by fsdp, which divides the hidden size alone"
)


def fit(
    settings: "MeshConfig",
    model: "ModelConfig",
    num_agents: int,
    num_devices: int,
    *,
    num_processes: int = 1,
    field: str = "mesh",
) -> MeshSizes:
    """The mesh of a group of agents.

    Where `fsdp` is left open it takes as many devices as divide the hidden size, and `data` the
    rest: sharded parameters cost less memory, and the batch is divided either way.

    Args:
      settings: sizes from the config; null is open.
      model: shape of the agents.
      num_agents: agents in the group.
      num_devices: devices there are, in equal parts of every process.
      num_processes: processes that drive them.
      field: what the user called the settings.

    Raises:
      UserError: the sizes do not multiply to the devices, or do not divide the model; it names
        the sizes that would.
    """
    agent, tensor = settings.agent, settings.tensor
    _check_divides(f"{field}.agent", agent, num_agents, "agents of one architecture")
    for name, length in tensor_axes(model).items():
        _check_divides(f"{field}.tensor", tensor, length, name, _WITHOUT_TENSOR)
    kv_heads = model.num_kv_heads
    if kv_heads % tensor and tensor % kv_heads:
        remedy = f"must divide the {kv_heads} key/value heads, or be a multiple of them"
        raise UserError(f"{field}.tensor", tensor, remedy)
    local = num_devices // num_processes
    if local % (agent * tensor):
        what = "devices" if num_processes == 1 else f"devices of each of {num_processes} processes"
        raise UserError(
            f"{field}.agent * {field}.tensor",
            agent * tensor,
            f"must divide the {local} {what}: {_divisors(local)}",
        )
    rest = num_devices // (agent * tensor)
    data, fsdp = _spread(settings, rest, model.hidden_size, field)
    return MeshSizes(agent, data, fsdp, tensor)


def tensor_axes(model: "ModelConfig") -> dict[str, int]:
    """Axes of a model that `tensor` must divide, by what people call them."""
    return {
        "query heads": model.num_heads,
        "inner size of the MLP": model.intermediate_size,
        "vocabulary": model.vocab_size,
    }


def _spread(settings: "MeshConfig", rest: int, hidden: int, field: str) -> tuple[int, int]:
    """Sizes of `data` and `fsdp` whose product is `rest`."""
    data, fsdp = settings.data, settings.fsdp
    if data is None and fsdp is None:
        fsdp = math.gcd(rest, hidden)
    if fsdp is None and data is not None:
        _check_divides(f"{field}.data", data, rest, "devices that agent and tensor leave")
        fsdp = rest // data
    assert fsdp is not None
    if data is None:
        _check_divides(f"{field}.fsdp", fsdp, rest, "devices that agent and tensor leave")
        data = rest // fsdp
    if data * fsdp != rest:
        raise UserError(
            f"{field}.data * {field}.fsdp",
            data * fsdp,
            f"must be the {rest} devices that agent and tensor leave; set one of them to null",
        )
    _check_divides(f"{field}.fsdp", fsdp, hidden, "hidden size")
    return data, fsdp


def _check_divides(field: str, size: int, length: int, what: str, else_: str = "") -> None:
    if length % size:
        remedy = f"must divide the {what}, {length}: {_divisors(length)}{else_}"
        raise UserError(field, size, remedy)


def _divisors(length: int) -> str:
    """The sizes that would do, as far as anybody has so many devices."""
    found = [n for n in range(1, min(length, 512) + 1) if length % n == 0]
    return f"{', '.join(map(str, found))} would"


def make_mesh(sizes: MeshSizes, devices: Sequence[Any]) -> Mesh:
    """A mesh in which every process holds whole rows: `agent` and `tensor` lie within a process.

    Args:
      sizes: their product is the number of devices, in equal parts of every process.
      devices: JAX devices, those of a process side by side.
    """
    processes = list(dict.fromkeys(device.process_index for device in devices))
    by_process = [[d for d in devices if d.process_index == p] for p in processes]
    cube = np.empty((len(processes), len(by_process[0])), dtype=object)
    cube[:] = by_process
    cube = cube.reshape(len(processes), sizes.agent, -1, sizes.tensor)
    cube = cube.swapaxes(0, 1).reshape(sizes.shape)
    return Mesh(cube, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def local_share(count: int, parts: int) -> int:
    """Entries of each of `parts` when `count` entries and filler are dealt out evenly."""
    return -(-count // parts)


def all_devices() -> list[Any]:
    """Devices of all processes, those of a process side by side."""
    return sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
