"""Hugging Face checkpoints in safetensors, read into the decoder's parameters."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from hacpo_jax.errors import UserError
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.functional import Params
from hacpo_jax.models.hf_config import config_from_hf
from hacpo_jax.models.hf_fields import read_json
from hacpo_jax.models.hf_layout import EMBEDDING, HEAD, Entry, entries

_log = logging.getLogger(__name__)

Place = Callable[[np.ndarray, tuple[str, ...]], jax.Array]


def on_device(array: np.ndarray, axes: tuple[str, ...]) -> jax.Array:
    """A `Place`: the first device. `jnp.asarray` would copy the array once more on the host."""
    return jax.device_put(array)


_DTYPES = ("F32", "F16", "BF16")
_COMPARED_ROWS = 4096


def load_config(directory: Path, field: str, *, longest: int | None = None) -> ModelConfig:
    """The shape of the model in `directory`, from its `config.json`; reads no weights.

    Raises:
      UserError: see `config_from_hf`; or there is no such file, or it is not JSON.
    """
    d = read_json(directory / "config.json", field)
    return config_from_hf(d, field=field, longest=longest)


def check_weights(directory: Path, config: ModelConfig, field: str) -> None:
    """Compare names, shapes and dtypes of all tensors with `config`; reads only file headers.

    Raises:
      UserError: names every tensor that is missing, not known, or of a wrong shape or dtype.
    """
    with _opened(directory, field) as tensors:
        problems = _problems(tensors, config)
    if problems:
        raise UserError(
            field, str(directory), f"its weights do not fit its config.json: {'; '.join(problems)}"
        )


def inspect_model(directory: Path, field: str, *, longest: int | None = None) -> ModelConfig:
    """The shape of the model in `directory`, its tensors checked by their headers alone.

    The tie flag follows the tensors: a checkpoint that says its head is the embedding, yet holds
    a head with other values, counts as untied.

    Args:
      directory: holds `config.json` and safetensors, in one file or sharded with an index.
      field: what the user called this model, for error messages, e.g. `agents.0.model`.
      longest: see `config_from_hf`.

    Raises:
      UserError: see `load_config` and `check_weights`.
    """
    config = load_config(directory, field, longest=longest)
    check_weights(directory, config, field)
    if config.tie_word_embeddings and not _head_is_embedding(directory, field):
        _log.warning(
            "%s: config.json ties the head to the embedding, but the file holds a different head; "
            "taken as untied",
            field,
        )
        config = dataclasses.replace(config, tie_word_embeddings=False)
    return config


def load_model(
    directory: Path,
    field: str,
    *,
    dtype: DTypeLike = jnp.float32,
    place: Place = on_device,
    longest: int | None = None,
) -> tuple[ModelConfig, Params]:
    """A model and its parameters from a Hugging Face directory, checked first.

    Args:
      directory: see `inspect_model`.
      field: what the user called this model, for error messages, e.g. `agents.0.model`.
      dtype: dtype of the parameters, whatever that of the files.
      place: see `load_params`.
      longest: see `config_from_hf`.

    Raises:
      UserError: see `inspect_model`.
    """
    config = inspect_model(directory, field, longest=longest)
    return config, load_params(directory, config, field, dtype=dtype, place=place)


def load_params(
    directory: Path,
    config: ModelConfig,
    field: str,
    *,
    dtype: DTypeLike,
    place: Place = on_device,
) -> Params:
    """The parameters of a checkpoint that `check_weights` has passed.

    One parameter of ours at a time (all layers stacked) is on the host, in `dtype`, beside what
    `place` keeps there.

    Args:
      directory: holds the safetensors.
      config: decides which tensors are read; a tied model's head is not.
      field: what the user called this model, for error messages.
      dtype: dtype of the parameters, whatever that of the files.
      place: puts a host array, given with its logical axis names, where it shall live.
    """
    with _opened(directory, field) as tensors:
        flat = {}
        for entry in entries(config):
            placed = place(_read(entry, tensors, np.dtype(dtype)), entry.axes)
            # A copy under way holds the host's array; the next is not read before it is done.
            flat[entry.path] = jax.block_until_ready(placed)
    return traverse_util.unflatten_dict(flat)


def _read(entry: Entry, tensors: dict[str, Any], dtype: np.dtype) -> np.ndarray:
    stacked = np.empty((len(entry.names), *entry.shape), dtype)
    for i, name in enumerate(entry.names):
        stacked[i] = entry.from_hf(tensors[name].get_slice(name)[entry.rows])
    return stacked if entry.stacked else stacked[0]


@contextlib.contextmanager
def _opened(directory: Path, field: str) -> Iterator[dict[str, Any]]:
    """The open (memory-mapped) file that holds each tensor, by the tensor's name."""
    with contextlib.ExitStack() as stack:
        tensors = {}
        for path in _files(directory, field):
            try:
                file = stack.enter_context(safe_open(path, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise UserError(
                    field, str(path), f"not a whole safetensors file ({error}); fetch it again"
                ) from error
            tensors.update(dict.fromkeys(file.keys(), file))
        yield tensors


def _files(directory: Path, field: str) -> list[Path]:
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        raise UserError(
            field, str(directory), f"has neither {single.name} nor {index.name}; fetch it again"
        )
    weight_map = read_json(index, field).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(field, str(index), "has no weight_map; fetch it again")
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (directory / name).is_file()]
    if absent:
        raise UserError(
            field, str(directory), f"lacks {', '.join(absent)}, named in {index.name}; fetch again"
        )
    return [directory / name for name in names]


def _problems(tensors: dict[str, Any], config: ModelConfig) -> list[str]:
    wanted = {name: entry.hf_shape for entry in entries(config) for name in entry.names}
    if config.tie_word_embeddings and HEAD in tensors:
        wanted[HEAD] = (config.vocab_size, config.hidden_size)
    # Old checkpoints store the rotary frequencies, which follow from the config.
    stored = {name for name in tensors if not name.endswith(".rotary_emb.inv_freq")}
    slices = {name: tensors[name].get_slice(name) for name in sorted(stored & wanted.keys())}
    found = {
        "missing": sorted(wanted.keys() - stored),
        "not known": sorted(stored - wanted.keys()),
        "wrong shape": [
            f"{name} is {held.get_shape()}, must be {list(wanted[name])}"
            for name, held in slices.items()
            if tuple(held.get_shape()) != wanted[name]
        ],
        "wrong dtype": [
            f"{name} is {held.get_dtype()}, must be one of {'/'.join(_DTYPES)}"
            for name, held in slices.items()
            if held.get_dtype() not in _DTYPES
        ],
    }
    return [f"{kind}: {', '.join(names)}" for kind, names in found.items() if names]


def _head_is_embedding(directory: Path, field: str) -> bool:
    with _opened(directory, field) as tensors:
        if HEAD not in tensors:
            return True
        head, table = (tensors[name].get_slice(name) for name in (HEAD, EMBEDDING))
        rows = table.get_shape()[0]
        starts = range(0, rows, _COMPARED_ROWS)
        blocks = [slice(i, min(i + _COMPARED_ROWS, rows)) for i in starts]
        return all(np.array_equal(head[block], table[block]) for block in blocks)
