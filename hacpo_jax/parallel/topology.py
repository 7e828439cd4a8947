"""Devices that are not there, to compile programs for."""

import importlib.util
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from hacpo_jax.errors import UserError

FIELD = "--topology"
MOST_CPUS = 512
MOST_ALONG_AN_AXIS = 16

_TPU = re.compile(r"(v\d+[a-z]*):\d+(x\d+){1,2}")
_FLAT = ("v5e", "v6e")  # slices of two dimensions
_CPU = re.compile(r"cpu:(\d+)")
# The compiler comes with the driver, which looks for a TPU unless it is told, writes warnings of
# what it does not find, and wants to be the only one on the machine.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

_KNOWN = "such as v5e:4x4, v6e:2x4, v5p:2x2x4, v4:2x2x2 or cpu:8"


def cpu_devices(name: str) -> int | None:
    """How many fake CPU devices a topology asks for; None where it is not one of CPUs.

    JAX makes them when it starts, so that `XLA_FLAGS` must ask for them before.
    """
    found = _CPU.fullmatch(name)
    return int(found[1]) if found else None


def topology_devices(name: str) -> list[Any]:
    """The devices of a topology, those of a process side by side.

    Args:
      name: `v5e:4x4` and the like: a kind of TPU and chips along each axis; or `cpu:N`, N devices
        of this process, which must have as many.

    Raises:
      UserError: there is no such topology, or TPU programs cannot be compiled here.
    """
    count = cpu_devices(name)
    if count is not None:
        if not 0 < count <= MOST_CPUS:
            raise UserError(FIELD, name, f"must be from cpu:1 to cpu:{MOST_CPUS}")
        devices = jax.local_devices(backend="cpu")
        if count > len(devices):
            raise UserError(FIELD, name, f"there are {len(devices)} CPU devices in this process")
        return devices[:count]
    if not _TPU.fullmatch(name):
        raise UserError(FIELD, name, f"must name a kind of TPU and chips along its axes, {_KNOWN}")
    kind, _, sizes = name.partition(":")
    if kind in _FLAT and max(map(int, sizes.split("x"))) > MOST_ALONG_AN_AXIS:
        # The compiler would abort the process.
        raise UserError(FIELD, name, f"{kind} has at most {MOST_ALONG_AN_AXIS} chips along an axis")
    if importlib.util.find_spec("libtpu") is None:
        remedy = "needs the compiler for TPUs; pip install 'hacpo-jax[tpu]' (no TPU is needed)"
        raise UserError(FIELD, name, remedy)
    for variable, value in _NO_TPU.items():
        os.environ.setdefault(variable, value)
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **_options(name))
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise UserError(FIELD, name, f"no such topology ({reason}); {_KNOWN}") from None
    return sorted(found.devices, key=lambda device: (device.process_index, device.id))


def _options(name: str) -> dict[str, Any]:
    """As on a TPU itself: a host has up to 2 x 2 chips, and a chip is one device, whose two cores
    would else be two in a v4."""
    kind, _, sizes = name.partition(":")
    across, down, *_ = map(int, sizes.split("x"))
    options: dict[str, Any] = {"chips_per_host_bounds": (min(across, 2), min(down, 2), 1)}
    return options | ({"chip_config_name": "megacore"} if kind == "v4" else {})
