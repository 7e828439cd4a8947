"""From what the user calls a model to a directory: which files are taken, which are refused."""

import pytest
from models_reference import FIXTURES

from hacpo_jax.errors import UserError
from hacpo_jax.models import resolve_model


def test_local_directory_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked"))
    assert resolve_model(str(FIXTURES / "llama"), "m") == FIXTURES / "llama"


def test_pickled_weights_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds pytorch_model\.bin but no \*\.safetensors"):
        resolve_model(str(tmp_path), "m")
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"has no \*\.safetensors"):
        resolve_model(str(tmp_path), "m")
    with pytest.raises(UserError, match="is a file"):
        resolve_model(str(tmp_path / "config.json"), "m")


def test_gguf_is_out_of_scope(tmp_path, monkeypatch):
    """A file, a directory, and a hub id whose download brought nothing that could be used."""
    directory = tmp_path / "some-model"
    directory.mkdir()
    (directory / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    (directory / "config.json").write_text("{}")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(empty))
    for name in (directory, directory / "model-Q4_K_M.gguf", "some/model-GGUF"):
        with pytest.raises(UserError, match=r"GGUF is out of scope.*made from, as safetensors"):
            resolve_model(str(name), "agents.0.model")


@pytest.mark.parametrize("name", ["no/such", "not/a/hub/id"])
def test_neither_directory_nor_on_the_hub(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no such directory, and not found on the hub") as caught:
        resolve_model(name, "agents.0.model")
    assert str(caught.value).startswith(f"agents.0.model = {name!r}")


@pytest.mark.parametrize("name", ["./runs/absent", "/no/such", "~/no/such"])
def test_a_path_is_never_asked_of_the_hub(name):
    with pytest.raises(UserError) as caught:
        resolve_model(name, "agents.0.model")
    assert str(caught.value) == f"agents.0.model = {name!r}: no such directory"


def test_download_takes_safetensors_only(monkeypatch):
    asked = {}

    def snapshot_download(hub_id, **options):
        asked.update(options, hub_id=hub_id)
        return str(FIXTURES / "llama")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve_model("some/model", "m") == FIXTURES / "llama"
    assert asked["hub_id"] == "some/model"
    from huggingface_hub.utils import filter_repo_objects

    files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.model",
        "tokenizer.json",
        "merges.txt",
        "chat_template.jinja",
        "pytorch_model.bin",
        "model.gguf",
        "modeling_custom.py",
        "consolidated.safetensors",
        "onnx/config.json",
        "original/consolidated.00.pth",
    ]
    patterns = {key: asked[key] for key in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(files, **patterns)) == files[:7]
