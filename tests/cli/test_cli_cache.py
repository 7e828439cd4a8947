"""Where compiled programs are kept."""

from pathlib import Path

import jax
import pytest

from hacpo_jax.cli.cache import use_compilation_cache


@pytest.fixture
def settings(monkeypatch) -> dict:
    """What would be set in JAX."""
    found: dict = {}
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delenv("HACPO_CACHE", raising=False)
    return found


def test_it_is_at_home_unless_told_otherwise(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    use_compilation_cache()
    (path,) = (tmp_path / ".cache" / "hacpo_jax" / "xla").iterdir()
    assert settings == {
        "jax_compilation_cache_dir": str(path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


def test_it_follows_the_environment(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HACPO_CACHE", str(tmp_path / "a"))
    use_compilation_cache()
    assert Path(settings["jax_compilation_cache_dir"]).parent == tmp_path / "a" / "xla"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "b"))
    use_compilation_cache()
    assert settings["jax_compilation_cache_dir"] == str(tmp_path / "b")


def test_a_place_that_cannot_be_written_is_a_warning(settings, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HACPO_CACHE", str(tmp_path / "file"))
    use_compilation_cache()
    assert settings == {}
    err = capsys.readouterr().err
    assert err.startswith("warning: no compilation cache")
    assert err.count("\n") == 1
    assert str(tmp_path / "file") in err
