"""What devices are taken for, by what JAX calls them."""

import dataclasses
from typing import Any

import jax
import pytest

from hacpo_jax.parallel.chips import GIB, chip_of, find_chip

# Device kind, TFLOP/s, bytes of memory and GB/s, from the vendors' pages.
KNOWN = [
    ("TPU v4", 275, 32 * GIB, 1200),
    ("TPU v5 lite", 197, 16 * GIB, 819),
    ("TPU v5e", 197, 16 * GIB, 819),
    ("TPU v5", 459, 95 * GIB, 2765),
    ("TPU v5p", 459, 95 * GIB, 2765),
    ("TPU v6 lite", 918, 32 * GIB, 1640),
    ("NVIDIA A100-SXM4-40GB", 312, 40e9, 1555),
    ("NVIDIA A100-SXM4-80GB", 312, 80e9, 2039),
    ("NVIDIA A100 80GB PCIe", 312, 80e9, 2039),
    ("NVIDIA H100 80GB HBM3", 989, 80e9, 3350),
    ("NVIDIA H100 PCIe", 756, 80e9, 2000),
    ("NVIDIA H200", 989, 141e9, 4800),
    ("NVIDIA B200", 2250, 180e9, 7700),
]


@dataclasses.dataclass
class Device:
    device_kind: str
    platform: str = "gpu"
    stats: Any = None

    def memory_stats(self):
        if isinstance(self.stats, Exception):
            raise self.stats
        return self.stats


@pytest.mark.parametrize(("kind", "tera", "memory", "giga"), KNOWN)
def test_known_kinds(kind, tera, memory, giga):
    chip = find_chip(kind)
    assert chip is not None and chip.known
    assert (chip.flops, chip.memory, chip.bandwidth) == (tera * 1e12, memory, giga * 1e9)
    assert chip_of(Device(kind)) == chip


def test_a_device_that_tells_its_memory_is_believed():
    assert chip_of(Device("NVIDIA H200", stats={"bytes_limit": 10**11})).memory == 10**11


@pytest.mark.parametrize(
    "stats", [None, {}, {"bytes_limit": 0}, NotImplementedError(), jax.errors.JaxRuntimeError("no")]
)
def test_unknown_kinds_are_a_guess_without_a_limit(stats):
    assert find_chip("Abacus 9") is None
    chip = chip_of(Device("Abacus 9", stats=stats))
    assert (chip.name, chip.memory, chip.known) == ("Abacus 9", None, False)
    assert chip.flops > 0 and chip.bandwidth > 0 and chip.link > 0
    assert chip_of(Device("Abacus 9", stats={"bytes_limit": 7})).memory == 7


def test_cpu_devices_share_the_memory_of_the_machine():
    with open("/proc/meminfo") as lines:
        total = next(int(line.split()[1]) * 1024 for line in lines if "MemTotal" in line)
    devices = jax.devices("cpu")
    memory = chip_of(devices[0]).memory
    assert memory is not None and memory == pytest.approx(total / len(devices), rel=0.01)
