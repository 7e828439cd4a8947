"""The decoder's parameters, written as a Hugging Face checkpoint in safetensors."""

import itertools
import json
import math
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from hacpo_jax.errors import UserError
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.functional import Params, abstract_params
from hacpo_jax.models.hf_config import config_from_hf, config_to_hf
from hacpo_jax.models.hf_layout import Entry, entries


def save_model(
    directory: Path,
    config: ModelConfig,
    params: Params,
    *,
    dtype: DTypeLike,
    max_shard_bytes: int = 5_000_000_000,
    extra_config: Mapping[str, Any],
) -> None:
    """Write `config.json` and safetensors that `transformers` and vLLM load.

    Everything is written beside `directory` and moved there at the end, so a crash leaves nothing
    that looks like a checkpoint. Tokenizer files are the caller's, and come after.

    Args:
      directory: absent or empty.
      config: the model's shape.
      params: its parameters, addressable from this process.
      dtype: dtype of the file: float32, bfloat16 or float16.
      max_shard_bytes: a file holds at most this many bytes of tensors, or a single tensor.
      extra_config: more fields for `config.json`, above all `bos_token_id`, `eos_token_id` and
        `pad_token_id`: readers assume their own when these are absent.

    Raises:
      UserError: `directory` has content, or `extra_config` has a field `load_config` would refuse.
      ValueError: `params` do not have the shapes of `config`, or `extra_config` contradicts it.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError("export directory", str(directory), "must be new or empty")
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, abstract_params(config)):
        raise ValueError("params: shapes or names differ from those of config")
    partial = directory.parent / f".{directory.name}.{uuid.uuid4().hex}.partial"
    partial.mkdir(parents=True)
    try:
        save_model_config(partial, config, dtype=dtype, extra_config=extra_config)
        _write_tensors(partial, entries(config), params, np.dtype(dtype), max_shard_bytes)
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save_model_config(
    directory: Path, config: ModelConfig, *, dtype: DTypeLike, extra_config: Mapping[str, Any]
) -> None:
    """Write `config.json` alone into an existing directory; see `save_model`."""
    hf_config = config_to_hf(config) | {"torch_dtype": np.dtype(dtype).name}
    clashes = sorted(hf_config.keys() & extra_config.keys())
    if clashes:
        raise ValueError(f"extra_config: {', '.join(clashes)} follow from config and dtype")
    hf_config |= extra_config
    config_from_hf(hf_config, field="extra_config")
    _write_json(directory / "config.json", hf_config)


def _write_tensors(
    directory: Path, layout: list[Entry], params: Params, dtype: np.dtype, max_shard_bytes: int
) -> None:
    sizes = [
        (name, math.prod(parts[0].hf_shape) * dtype.itemsize)
        for names, parts in _by_tensor(layout)
        for name in names
    ]
    shard_of = _assign([size for _, size in sizes], max_shard_bytes)
    count = shard_of[-1] + 1
    files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    if count == 1:
        files = ["model.safetensors"]
    else:
        index = {
            "metadata": {"total_size": sum(size for _, size in sizes)},
            "weight_map": {name: files[i] for (name, _), i in zip(sizes, shard_of, strict=True)},
        }
        _write_json(directory / "model.safetensors.index.json", index)
    numbered = zip(shard_of, _tensors(layout, params, dtype), strict=True)
    for i, group in itertools.groupby(numbered, key=lambda pair: pair[0]):
        shard = dict(tensor for _, tensor in group)
        save_file(shard, directory / files[i], metadata={"format": "pt"})
        # safetensors lets nobody but the owner read its files; ours are like any other.
        (directory / files[i]).chmod((directory / "config.json").stat().st_mode & 0o777)


def _assign(sizes: list[int], limit: int) -> list[int]:
    """The shard of each tensor: in order, a new one wherever `limit` bytes would be exceeded."""
    shards, shard, filled = [], 0, 0
    for size in sizes:
        if filled and filled + size > limit:
            shard, filled = shard + 1, 0
        filled += size
        shards.append(shard)
    return shards


def _by_tensor(layout: list[Entry]) -> list[tuple[tuple[str, ...], list[Entry]]]:
    """Names of tensors in the file, one per layer, with the parameters that they hold."""
    grouped = itertools.groupby(layout, key=lambda entry: entry.names)
    return [(names, list(parts)) for names, parts in grouped]


def _tensors(
    layout: list[Entry], params: Params, dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray]]:
    """Names and tensors as in the file; what one tensor holds is on the host, of all layers."""
    flat = traverse_util.flatten_dict(params)
    for names, parts in _by_tensor(layout):
        arrays = [np.asarray(flat[part.path]) for part in parts]
        for i, name in enumerate(names):
            layers = [array[i] if parts[0].stacked else array for array in arrays]
            rows = [part.to_hf(x).astype(dtype) for part, x in zip(parts, layers, strict=True)]
            # save_file writes the buffer as it lies in memory, so a transposed view will not do.
            yield name, np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
