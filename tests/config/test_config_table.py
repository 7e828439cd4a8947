"""The README's table of the config is the one that the schema gives."""

import pathlib

from hacpo_jax.config import Config
from hacpo_jax.config.table import config_table

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_readme_holds_the_table():
    assert config_table() in README.read_text(), "run: python -m hacpo_jax.config.table"


def test_every_key_is_told_with_its_default_and_meaning():
    rows = [line.split(" | ") for line in config_table().splitlines()[2:]]
    keys = [row[0].removeprefix("| ") for row in rows]
    for key in ("`seed`", "`agents.N.model.head_dim`", "`algorithm.hacpo.clip_low`"):
        assert key in keys
    assert all(len(row) == 3 and row[2].rstrip("| ") for row in rows)
    for section in Config.model_fields:
        assert any(key.startswith(f"`{section}") for key in keys)
