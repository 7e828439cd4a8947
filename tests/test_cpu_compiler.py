"""Which compiler a process on CPUs is told to use."""

import importlib.metadata
import os
import subprocess
import sys

import jaxlib.version
import pytest

from hacpo_jax import cpu_compiler
from hacpo_jax.cpu_compiler import FLAG, compile_quickly_for_cpus


@pytest.fixture
def flags(monkeypatch):
    """Gives the flags after a call with such a release of jaxlib and such variables."""

    def after(release: tuple = (0, 10, 2), plugins: tuple = (), **variables: str) -> str | None:
        for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(jaxlib.version, "__version_info__", release)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: plugins)
        monkeypatch.setattr(cpu_compiler, "find_spec", lambda name: None)
        compile_quickly_for_cpus()
        return os.environ.get("XLA_FLAGS")

    return after


def test_it_is_told_beside_other_flags_and_once(flags):
    assert flags() == f"{FLAG}=false"
    assert flags(XLA_FLAGS="--a=1") == f"--a=1 {FLAG}=false"
    compile_quickly_for_cpus()
    assert os.environ["XLA_FLAGS"] == f"--a=1 {FLAG}=false"


def test_what_the_environment_says_stays(flags):
    assert flags(XLA_FLAGS=f"{FLAG}=true") == f"{FLAG}=true"
    assert flags(XLA_FLAGS="/a/file") == "/a/file"  # XLA would look for "/a/file --xla..."
    assert flags(XLA_FLAGS=" ") == f"{FLAG}=false"


def test_accelerators_and_newer_compilers_are_left_alone(flags):
    assert flags(JAX_PLATFORMS="tpu") is None
    assert flags(JAX_PLATFORMS="tpu,cpu") is None
    assert flags(plugins=("cuda",)) is None
    assert flags(plugins=("cuda",), JAX_PLATFORMS="cpu") == f"{FLAG}=false"
    assert flags((0, 10, 1)) == f"{FLAG}=false"
    assert flags((0, 10, 3)) is flags((0, 11, 0)) is None


def test_xla_takes_the_flag():
    """An unknown flag would end the process."""
    code = (
        "from hacpo_jax.cpu_compiler import compile_quickly_for_cpus as f; f();"
        "import jax; print(jax.jit(lambda x: x + 1)(1))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "2\n"), found.stderr
