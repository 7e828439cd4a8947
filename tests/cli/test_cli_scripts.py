"""The two scripts, as far as they get without installing anything."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = ("launch/quickstart.sh", "launch/test.sh", ".ci/run")


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A fresh checkout, and a folder of the few programs that its scripts may find."""
    shutil.copytree(REPOSITORY / "launch", tmp_path / "launch")
    shutil.copytree(REPOSITORY / ".ci", tmp_path / ".ci")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / "bin").mkdir()
    for program in ("bash", "dirname", "cat"):
        os.symlink(shutil.which(program), tmp_path / "bin" / program)
    return tmp_path


def fake_python(checkout: Path, body: str) -> None:
    path = checkout / "bin" / "python3"
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def refusal(checkout: Path, script: str, **environment: str) -> str:
    done = subprocess.run(
        [checkout / "bin" / "bash", str(checkout / script)],
        env={"PATH": str(checkout / "bin"), **environment},
        cwd=checkout.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_executed(script):
    assert os.access(REPOSITORY / script, os.X_OK)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_accelerator_is_refused(checkout, script):
    assert refusal(checkout, script, HACPO_EXTRA="gpu") == (
        "error: HACPO_EXTRA = 'gpu': must be empty (CPU), cuda or tpu\n"
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_missing_python_is_told_with_its_remedy(checkout, script):
    assert "apt install python3 python3-venv" in refusal(checkout, script)


def test_an_old_python_is_no_python(checkout):
    fake_python(checkout, "exit 1")  # as python3 -c 'sys.exit(version < 3.11)' does
    assert "Python 3.11 or newer is needed" in refusal(checkout, "launch/quickstart.sh")


def test_a_python_without_venv_is_told_with_its_remedy(checkout):
    fake_python(checkout, '[[ "$*" == *version_info* ]]')
    line = refusal(checkout, "launch/quickstart.sh")
    assert "has no venv module. On Debian: sudo apt install python3-venv" in line
    assert not (checkout / ".venv").exists()


def test_a_broken_environment_is_not_removed_but_named(checkout):
    (checkout / ".venv").mkdir()
    assert f"{checkout}/.venv has no Python" in refusal(checkout, "launch/quickstart.sh")
