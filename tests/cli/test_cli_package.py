"""What comes with the package: configs, and every module in the wheel."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hacpo_jax.cli.configs import BUILT_IN, find_config
from hacpo_jax.config import load_config

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def test_the_promised_configs_are_there():
    assert {"quickstart", "smollm2_state"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_built_in_configs_are_valid_and_found_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for spelling in (name, f"{name}.yaml", f"configs/{name}.yaml"):
        assert find_config(spelling) == BUILT_IN / f"{name}.yaml"
    assert load_config(find_config(name)).run_dir


def test_the_quickstart_runs_when_no_config_is_named():
    assert find_config(None) == BUILT_IN / "quickstart.yaml"


def test_a_file_goes_before_a_built_in_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.yaml").write_text("seed: 1\n")
    assert find_config("quickstart.yaml").read_text() == "seed: 1\n"
    assert find_config("quickstart") == BUILT_IN / "quickstart.yaml"


def test_the_configs_folder_of_the_repository_holds_the_same_files():
    assert sorted(path.name for path in (REPOSITORY / "configs").iterdir()) == sorted(
        path.name for path in BUILT_IN.iterdir()
    )


def test_the_wheel_holds_every_module_config_and_template(tmp_path):
    copy = tmp_path / "copy"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "hacpo_jax", copy / "hacpo_jax", ignore=skip)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, copy)
    program = "from setuptools import build_meta; print(build_meta.build_wheel('wheel'))"
    # A checkout may lie inside another repository, whose files are no part of this one.
    environment = {**os.environ, "GIT_DIR": str(tmp_path / "none")}
    (copy / "wheel").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (copy / "wheel").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("hacpo_jax/")}
    kinds = ("**/*.py", "configs/*.yaml", "models/*.json", "report/*.jinja")
    files = [path for kind in kinds for path in (REPOSITORY / "hacpo_jax").glob(kind)]
    assert held == {str(path.relative_to(REPOSITORY)) for path in files}
