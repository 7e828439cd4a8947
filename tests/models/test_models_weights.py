"""Checkpoints in and out: misfits, tie flag, shards, dtypes, and transformers' reading of ours."""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from models_reference import (
    FIXTURES,
    LONGEST,
    NAMES,
    SOURCES,
    expected_logits,
    huggingface_logits,
    logits_of,
    model,
    stored,
)
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from hacpo_jax.errors import UserError
from hacpo_jax.models import (
    check_weights,
    load_config,
    load_model,
    logical_axes,
    save_model,
)

TOKENS = {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 0}


@pytest.fixture
def copied(tmp_path):
    """Copy a tiny checkpoint, with some tensors changed (None: dropped) and config fields set."""

    def copy(name: str, tensors: dict | None = None, **config_fields) -> Path:
        directory = tmp_path / f"copy-of-{name}"
        shutil.copytree(FIXTURES / name, directory)
        held = load_file(directory / "model.safetensors") | (tensors or {})
        held = {key: value for key, value in held.items() if value is not None}
        save_file(held, directory / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((directory / "config.json").read_text()) | config_fields
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    return copy


def assert_trees_equal(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 5_000])
@pytest.mark.parametrize("name", NAMES)
def test_export_restores_every_tensor_of_the_original(tmp_path, name, shard_bytes):
    config, params = model(name)
    out = tmp_path / "deep" / "out"
    save_model(
        out,
        config,
        params,
        dtype=jnp.float32,
        max_shard_bytes=shard_bytes,
        extra_config=TOKENS,
    )
    original = load_file(FIXTURES / name / "model.safetensors")
    written = {}
    for path in sorted(out.glob("*.safetensors")):
        shard = load_file(path)
        assert sum(x.nbytes for x in shard.values()) <= shard_bytes or len(shard) == 1
        assert not written.keys() & shard.keys()
        written |= shard
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"format": "pt"}
    assert_trees_equal(written, original)
    loaded_config, loaded = load_model(out, "out", longest=LONGEST)
    assert loaded_config == config
    assert_trees_equal(loaded, params)
    hf_config = json.loads((out / "config.json").read_text())
    assert hf_config["eos_token_id"] == [2, 5]
    assert hf_config["torch_dtype"] == "float32"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_are_as_readable_as_any_other(tmp_path, mask, mode):
    """safetensors writes files that only their owner may read."""
    before = os.umask(mask)
    try:
        save_model(
            tmp_path / "out",
            *model("llama"),
            dtype="float32",
            max_shard_bytes=9000,
            extra_config={},
        )
    finally:
        os.umask(before)
    files = list((tmp_path / "out").iterdir())
    assert len(files) > 3
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def test_shards_are_indexed(tmp_path):
    config, params = model("llama")
    save_model(
        tmp_path / "out", config, params, dtype="float32", max_shard_bytes=9000, extra_config={}
    )
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    original = load_file(FIXTURES / "llama" / "model.safetensors")
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in original.values())
    assert index["weight_map"].keys() == original.keys()
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "out" / file)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", NAMES)
def test_reloaded_export_gives_equal_logits(tmp_path, name, source):
    """Fault kind: export, then reload: by transformers where torch is there, else by ourselves."""
    save_model(
        tmp_path / "out",
        *model(name),
        dtype=jnp.float32,
        max_shard_bytes=9000,
        extra_config=TOKENS,
    )
    tokens, valid, expected = expected_logits(name, source, tmp_path / "out")
    got = logits_of(*load_model(tmp_path / "out", "out", longest=LONGEST), tokens, valid)
    np.testing.assert_allclose(got[valid], expected[valid], atol=1e-4)
    if source == "live":
        original = huggingface_logits(FIXTURES / name, tokens, valid)
        np.testing.assert_array_equal(expected, original)


def test_sharded_parameters_export_alike(tmp_path):
    """Fault kind: reshapes on the way out when the head axis is sharded."""
    config, params = model("qwen3")
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))

    def place(x, axes):
        spec = ("tensor" if axis in ("heads", "kv_heads") else None for axis in axes)
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    placed = jax.tree.map(place, params, logical_axes(config))
    save_model(tmp_path / "out", config, placed, dtype=jnp.float32, extra_config=TOKENS)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert_trees_equal(written, load_file(FIXTURES / "qwen3" / "model.safetensors"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_files(tmp_path, dtype):
    config, params = model("qwen2")
    save_model(tmp_path / "out", config, params, dtype=dtype, extra_config=TOKENS)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {str(x.dtype) for x in written.values()} == {dtype}
    rounded = jax.tree.map(lambda x: x.astype(dtype).astype(jnp.float32), params)
    assert_trees_equal(load_model(tmp_path / "out", "out")[1], rounded)
    held = load_model(tmp_path / "out", "out", dtype=jnp.bfloat16)[1]
    assert {x.dtype for x in jax.tree.leaves(held)} == {jnp.dtype(jnp.bfloat16)}


def test_parameters_go_where_they_are_placed():
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
    seen = {}

    def place(array, axes):
        assert isinstance(array, np.ndarray)
        spec = PartitionSpec(*("tensor" if axis == "mlp" else None for axis in axes))
        seen[axes] = array.shape
        return jax.device_put(array, NamedSharding(mesh, spec))

    config, params = load_model(FIXTURES / "llama", "m", place=place)
    assert_trees_equal(params, model("llama")[1])
    assert seen["layers", "embed", "mlp"] == (2, config.hidden_size, config.intermediate_size)
    assert params["layers"]["mlp"]["up"].sharding.shard_shape((2, 32, 24)) == (2, 32, 12)


def test_every_misfit_is_listed_at_once(copied):
    """Fault kind: 2 layers in the file, 3 in the config; and what else may go wrong, together."""
    directory = copied(
        "qwen3",
        {
            "model.norm.weight": np.ones(25, np.float32),
            "model.layers.0.self_attn.q_norm.weight": None,
            "model.layers.0.mlp.gate_up_proj.weight": np.ones((2, 2), np.float32),
            "model.embed_tokens.weight": np.ones((48, 24), np.int8),
        },
        num_hidden_layers=3,
        layer_types=["full_attention"] * 3,
    )
    with pytest.raises(UserError) as caught:
        check_weights(directory, load_config(directory, "agents.0.model"), "agents.0.model")
    message = str(caught.value)
    assert message.startswith("agents.0.model = ")
    assert message.count("model.layers.2.") == 11  # 4 projections, 3 of the MLP, 4 norms
    missing, unknown, shapes, dtypes = message.split("config.json: ")[1].split("; ")
    assert missing.startswith("missing: model.layers.0.self_attn.q_norm.weight, ")
    assert unknown == "not known: model.layers.0.mlp.gate_up_proj.weight"
    assert shapes == "wrong shape: model.norm.weight is [25], must be [24]"
    assert dtypes.startswith("wrong dtype: model.embed_tokens.weight is I8")


def test_misfits_of_fused_tensors_are_listed_once(copied):
    """Three parameters of ours share a tensor; separate ones of another family are not known."""
    name = "model.layers.0.self_attn.qkv_proj.weight"
    changed = {
        name: None,
        "model.layers.1.mlp.gate_up_proj.weight": np.ones((24, 32), np.float32),
        "model.layers.0.self_attn.q_proj.weight": np.ones((32, 32), np.float32),
    }
    directory = copied("phi3", changed)
    with pytest.raises(UserError) as caught:
        check_weights(directory, load_config(directory, "m"), "m")
    missing, unknown, shapes = str(caught.value).split("config.json: ")[1].split("; ")
    assert missing == f"missing: {name}"
    assert unknown == "not known: model.layers.0.self_attn.q_proj.weight"
    # 24 rows of gate and 24 of up.
    assert shapes == (
        "wrong shape: model.layers.1.mlp.gate_up_proj.weight is [24, 32], must be [48, 32]"
    )


def test_stored_rotary_frequencies_are_ignored(copied):
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    assert_trees_equal(load_model(copied("llama", frequencies), "m")[1], model("llama")[1])


@pytest.mark.parametrize("rows", [4096, 20])  # 48 rows: one block, or two and a part of one
def test_tied_with_an_equal_head_stays_tied(copied, monkeypatch, rows):
    monkeypatch.setattr("hacpo_jax.models.weights._COMPARED_ROWS", rows)
    table = load_file(FIXTURES / "qwen2" / "model.safetensors")["model.embed_tokens.weight"]
    config, params = load_model(copied("qwen2", {"lm_head.weight": table}), "m")
    assert config.tie_word_embeddings
    assert_trees_equal(params, model("qwen2")[1])


@pytest.mark.parametrize("rows", [4096, 20])
def test_tied_with_another_head_becomes_untied(copied, tmp_path, caplog, monkeypatch, rows):
    """Fault kind: a head trained apart from the embedding; the tie flag matches the tensors."""
    monkeypatch.setattr("hacpo_jax.models.weights._COMPARED_ROWS", rows)
    table = load_file(FIXTURES / "qwen2" / "model.safetensors")["model.embed_tokens.weight"]
    head = table.copy()
    head[-1, -1] += 1.0
    directory = copied("qwen2", {"lm_head.weight": head})
    config, params = load_model(directory, "agents.0.model")
    assert not config.tie_word_embeddings
    assert "agents.0.model" in caplog.text
    np.testing.assert_array_equal(params["head"], head)
    np.testing.assert_array_equal(params["embedding"], table)
    save_model(tmp_path / "out", config, params, dtype=jnp.float32, extra_config=TOKENS)
    again_config, again = load_model(tmp_path / "out", "out")
    assert not again_config.tie_word_embeddings
    assert_trees_equal(again, params)
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    )


def test_untied_without_a_head_is_an_error(copied):
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        load_model(copied("llama", {"lm_head.weight": None}), "m")


def test_damaged_files_are_named(copied):
    directory = copied("llama")
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors.*not a whole safetensors file"):
        load_model(directory, "m")
    weights.unlink()
    with pytest.raises(UserError, match="has neither"):
        load_model(directory, "m")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(UserError, match=r"lacks model-1\.safetensors"):
        load_model(directory, "m")
    index.write_text("{}")
    with pytest.raises(UserError, match="weight_map"):
        load_model(directory, "m")
    (directory / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json.*not readable as JSON"):
        load_config(directory, "m")
    (directory / "config.json").write_text("[]")
    with pytest.raises(UserError, match="must hold a JSON object"):
        load_config(directory, "m")
    (directory / "config.json").unlink()
    with pytest.raises(UserError, match="no such file"):
        load_config(directory, "m")


def test_export_refuses_what_it_would_spoil(tmp_path):
    config, params = model("llama")
    (tmp_path / "precious.txt").write_text("kept")
    save = {"dtype": jnp.float32, "extra_config": TOKENS}
    with pytest.raises(UserError, match="must be new or empty"):
        save_model(tmp_path, config, params, **save)
    out = tmp_path / "out"
    stacked = jax.tree.map(lambda x: x[None], params)
    with pytest.raises(ValueError, match="params"):
        save_model(out, config, stacked, **save)
    with pytest.raises(ValueError, match="vocab_size"):
        save_model(out, config, params, dtype=jnp.float32, extra_config={"vocab_size": 3})
    with pytest.raises(UserError, match="sliding_window"):
        save_model(out, config, params, dtype=jnp.float32, extra_config={"sliding_window": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("hacpo_jax.models.export.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_model(tmp_path / "out", *model("llama"), dtype="float32", extra_config={})
    assert not list(tmp_path.iterdir())


def test_held_out_fixture_values_are_not_trivial():
    """Norms and biases that are ones and zeros would hide a tensor that is never read."""
    for name in NAMES:
        for key, value in load_file(FIXTURES / name / "model.safetensors").items():
            assert np.std(value) > 0.1, (name, key)
        assert np.abs(stored(name)["logits"]).max() > 1.0
