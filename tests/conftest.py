"""Fixtures that several test folders share."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # What one test has compiled, others and their child processes read; the controller of xdist
    # makes the folder, and its workers inherit the name.
    programs = tempfile.mkdtemp(prefix="hacpo_jax_programs_")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import hypothesis
import jax
import pytest

from hacpo_jax.cpu_compiler import compile_quickly_for_cpus
from hacpo_jax.training import places

compile_quickly_for_cpus()

# A busy machine must not fail a test; what takes time here is the first call, which compiles.
hypothesis.settings.register_profile(
    "no_deadline",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("no_deadline")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Lets go of compiled programs before they use up the mappings that Linux grants a process.

    Each takes about 80 of the 65,530, and a module makes up to 300; beyond them XLA aborts.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > 15_000:
        jax.clear_caches()


@pytest.fixture(scope="module")
def compile_quickly():
    """Compiling well would take several times as long as running badly."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def use_devices():
    """Has runs in this process work on the first so many of the 8 devices."""
    every = places.all_devices

    def use(count: int) -> None:
        places.all_devices = lambda: every()[:count]

    use(1)
    yield use
    places.all_devices = every


@pytest.fixture(autouse=True)
def one_device_unless_told(use_devices):
    """Runs work on one device but in the tests that ask for more."""
    use_devices(1)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Golden pairs and benchmark files kept beside the checkout; it may not exist."""
    return REPOSITORY.parent / "shared"
