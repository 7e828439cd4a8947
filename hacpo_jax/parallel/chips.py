"""What an accelerator can do, by the name that JAX gives it."""

import dataclasses
import os
from typing import Any, Protocol

import jax

GIB = 2**30


class Device(Protocol):
    """What is asked of a `jax.Device`, which may be one of a topology that is not there."""

    @property
    def device_kind(self) -> str: ...

    @property
    def platform(self) -> str: ...

    def memory_stats(self) -> dict[str, Any] | None: ...


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device.

    Args:
      name: for people.
      flops: dense bfloat16 FLOP/s at peak, products of matrices only.
      memory: bytes; None where neither the table nor the device tells, and nothing is checked.
      bandwidth: bytes/s between memory and cores.
      link: bytes/s that the device sends to its neighbours, all links together.
      known: False for figures that are a guess.
    """

    name: str
    flops: float
    memory: int | None
    bandwidth: float
    link: float
    known: bool = True


# TPUs: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, "System architecture". Their gigabytes of
# memory are GiB (the page of v4 says so, compilers report 15.75 GiB of the 16 of v5e). Links are
# the page's interconnect bandwidth in one direction: 1600 Gbit/s for v5e, 4800 for v5p, half of
# the 800 GB/s in both directions for v6e; v4 has six links of 50 GB/s.
_TPU_V4 = Chip("TPU v4", 275e12, 32 * GIB, 1.2e12, 300e9)
_TPU_V5E = Chip("TPU v5e", 197e12, 16 * GIB, 819e9, 200e9)
_TPU_V5P = Chip("TPU v5p", 459e12, 95 * GIB, 2.765e12, 600e9)
_TPU_V6E = Chip("TPU v6e", 918e12, 32 * GIB, 1.64e12, 400e9)

# What `device_kind` says: jax/_src/pallas/mosaic/tpu_info.py lists both spellings.
_TPUS = {
    "tpu v4": _TPU_V4,
    "tpu v5 lite": _TPU_V5E,
    "tpu v5e": _TPU_V5E,
    "tpu v5": _TPU_V5P,
    "tpu v5p": _TPU_V5P,
    "tpu v6 lite": _TPU_V6E,
    "tpu v6e": _TPU_V6E,
}

# GPUs: NVIDIA's data sheets of A100, H100, H200 and HGX B200. Sheets give bfloat16 with sparsity;
# these are half of it. Links are NVLink in one direction, half of what the sheets give. The first
# entry all of whose words occur in the device's name is taken.
_GPUS = {
    ("a100", "80gb"): Chip("NVIDIA A100 80 GB", 312e12, 80 * 10**9, 2.039e12, 300e9),
    ("a100",): Chip("NVIDIA A100 40 GB", 312e12, 40 * 10**9, 1.555e12, 300e9),
    ("h100", "pcie"): Chip("NVIDIA H100 PCIe", 756e12, 80 * 10**9, 2.0e12, 300e9),
    ("h100",): Chip("NVIDIA H100", 989e12, 80 * 10**9, 3.35e12, 450e9),
    ("h200",): Chip("NVIDIA H200", 989e12, 141 * 10**9, 4.8e12, 450e9),
    ("b200",): Chip("NVIDIA B200", 2250e12, 180 * 10**9, 7.7e12, 900e9),
}

# A core or two of a server; all fake devices of a process share one memory, hence `link`.
_CPU = Chip("CPU", 1e11, None, 2e10, 1e10, known=False)


def find_chip(device_kind: str) -> Chip | None:
    """The entry of the table for a device's `device_kind`, or None.

    Its memory is that of the vendor's page, None for a CPU.
    """
    kind = device_kind.lower()
    if kind == "cpu":
        return _CPU
    if kind in _TPUS:
        return _TPUS[kind]
    words = (found for names, found in _GPUS.items() if all(name in kind for name in names))
    return next(words, None)


def chip_of(device: Device) -> Chip:
    """What a device can do; one that is not in the table counts as an A100 with its own memory.

    A device that tells its memory is believed: JAX leaves a part of a GPU's to others. CPU devices
    share what the machine has. Devices of a topology that is not there tell nothing.
    """
    chip = find_chip(device.device_kind)
    if chip is None:
        like = _GPUS["a100",]
        chip = dataclasses.replace(like, name=device.device_kind, memory=None, known=False)
    memory = _reported_memory(device)
    if memory is None and device.platform == "cpu":
        memory = _host_memory() // max(len(jax.local_devices(backend="cpu")), 1)
    return chip if memory is None else dataclasses.replace(chip, memory=memory)


def _reported_memory(device: Device) -> int | None:
    try:
        found = device.memory_stats()
    except (jax.errors.JaxRuntimeError, AttributeError, NotImplementedError):
        return None
    return (found or {}).get("bytes_limit") or None


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
