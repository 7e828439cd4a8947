"""A kind of device that is not there is told in one line by every verb that needs devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from hacpo_jax.errors import UserError
from hacpo_jax.parallel.platforms import start_platform


@pytest.fixture
def command(tmp_path):
    """Runs the command line in an empty folder with variables of the environment."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_PLATFORM", "XLA_"))}
        return subprocess.run(
            [sys.executable, "-m", "hacpo_jax.launch", *words],
            env=kept | {"HACPO_CACHE": str(tmp_path / "cache"), **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("words", "platforms"),
    [
        ("train", "CPU"),
        ("train", "cuda"),
        ("eval --config quickstart", "nonsense"),
        ("generate prompt=x model=a", "cpu,nonsense"),
        ("export RUN out=exported", "nonsense"),
    ],
)
def test_a_platform_that_is_not_there(command, tiny_run, tmp_path, words, platforms):
    found = command(*words.replace("RUN", str(tiny_run)).split(), JAX_PLATFORMS=platforms)
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: JAX_PLATFORMS = '{platforms}': ")
    assert found.stderr.endswith("; write JAX_PLATFORMS=cpu, or unset it\n")
    assert found.stderr.count("\n") == 1 and "Traceback" not in found.stderr
    assert not (tmp_path / "runs").exists() and not (tmp_path / "exported").exists()


def test_verbs_without_devices_do_not_look_for_them(command, tiny_run: Path, tmp_path):
    words = ("report", str(tiny_run), f"out={tmp_path / 'report'}")
    assert command(*words, JAX_PLATFORMS="nonsense").returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "way_out"),
    [
        ("JAX_PLATFORM_NAME", "gpu", "write JAX_PLATFORM_NAME=cpu, or unset it"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=0", "unset it"),
    ],
)
def test_another_variable_beside_a_right_platform(command, tiny_run, variable, value, way_out):
    words = ("export", str(tiny_run), "out=exported")
    found = command(*words, JAX_PLATFORMS="cpu", **{variable: value})
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {variable} = '{value}")
    assert found.stderr.endswith(f"; {way_out}\n") and found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "name", "reason"),
    [
        (
            RuntimeError(
                "Unable to initialize backend 'tpu': in use. (set JAX_PLATFORMS='' to choose)"
            ),
            "JAX_PLATFORMS",
            "in use",
        ),
        (RuntimeError("Unknown backend: 'gpu' requested"), "JAX_PLATFORM_NAME", "Unknown backend"),
        (AssertionError(), "JAX_PLATFORMS", "no such device is here"),
    ],
)
def test_what_jax_says_is_passed_on(monkeypatch, raised, name, reason):
    def devices():
        raise raised

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv(name, "some")
    with pytest.raises(UserError, match=rf"^{name} = 'some': .* \({reason}.*\); write {name}=cpu"):
        start_platform()
