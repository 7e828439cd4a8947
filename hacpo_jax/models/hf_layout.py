"""Where each parameter lives in a Hugging Face checkpoint, and how its axes are laid out there."""

import dataclasses
import itertools
import math
from typing import Any, cast

import numpy as np
from flax import traverse_util

from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.functional import abstract_params, logical_axes
from hacpo_jax.models.hf_families import FAMILIES
from hacpo_jax.models.lora import without_adapters

Path = tuple[str, ...]

_LAYER = "model.layers.{}."

# Linear layers: name, and how many leading axes of ours are inputs. Theirs are [out, in].
_LINEAR = {
    "layers/attention/q": (_LAYER + "self_attn.q_proj.weight", 1),
    "layers/attention/k": (_LAYER + "self_attn.k_proj.weight", 1),
    "layers/attention/v": (_LAYER + "self_attn.v_proj.weight", 1),
    "layers/attention/o": (_LAYER + "self_attn.o_proj.weight", 2),
    "layers/mlp/gate": (_LAYER + "mlp.gate_proj.weight", 1),
    "layers/mlp/up": (_LAYER + "mlp.up_proj.weight", 1),
    "layers/mlp/down": (_LAYER + "mlp.down_proj.weight", 1),
}

# Linear layers that a fused family keeps in one tensor, one below the other.
_FUSED = {
    _LAYER + "self_attn.qkv_proj.weight": (
        "layers/attention/q",
        "layers/attention/k",
        "layers/attention/v",
    ),
    _LAYER + "mlp.gate_up_proj.weight": ("layers/mlp/gate", "layers/mlp/up"),
}

# Norms and biases, flattened to one axis in theirs.
_VECTORS = {
    "final_norm": "model.norm.weight",
    "layers/attention_norm": _LAYER + "input_layernorm.weight",
    "layers/mlp_norm": _LAYER + "post_attention_layernorm.weight",
    "layers/attention/q_norm": _LAYER + "self_attn.q_norm.weight",
    "layers/attention/k_norm": _LAYER + "self_attn.k_norm.weight",
    "layers/attention/q_bias": _LAYER + "self_attn.q_proj.bias",
    "layers/attention/k_bias": _LAYER + "self_attn.k_proj.bias",
    "layers/attention/v_bias": _LAYER + "self_attn.v_proj.bias",
    "layers/attention/o_bias": _LAYER + "self_attn.o_proj.bias",
    "layers/mlp/gate_bias": _LAYER + "mlp.gate_proj.bias",
    "layers/mlp/up_bias": _LAYER + "mlp.up_proj.bias",
    "layers/mlp/down_bias": _LAYER + "mlp.down_proj.bias",
}

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

# Token tables, laid out alike: [vocab, embed].
_TABLES = {"embedding": EMBEDDING, "head": HEAD}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter of ours, and the tensors of theirs that it is, or is a part of.

    Args:
      path: its keys in the nested dict of parameters.
      axes: its logical axis names, the layer axis included.
      names: names in the checkpoint, one per layer, or a single one outside the layers.
      stacked: our array has a leading layer axis.
      shape: ours, without the layer axis.
      hf_shape: theirs, the whole tensor.
      rows: where it is in their first axis; all of it, unless several of ours share the tensor.
      transposed: theirs is `[out, in]` and ours `[in..., out...]`.
    """

    path: Path
    axes: tuple[str, ...]
    names: tuple[str, ...]
    stacked: bool
    shape: tuple[int, ...]
    hf_shape: tuple[int, ...]
    rows: slice
    transposed: bool

    def from_hf(self, rows: np.ndarray) -> np.ndarray:
        """One layer of our array from its rows of theirs; a view where that is possible."""
        return (rows.T if self.transposed else rows).reshape(self.shape)

    def to_hf(self, array: np.ndarray) -> np.ndarray:
        """Our rows of their tensor from one layer of our array; a view where that is possible."""
        shape = (self.rows.stop - self.rows.start, *self.hf_shape[1:])
        if self.transposed:
            return array.reshape(shape[::-1]).T
        return array.reshape(shape)


def entries(config: ModelConfig) -> list[Entry]:
    """All parameters of `config`, with the tensors that a checkpoint holds for them.

    Parameters that share their tensors follow each other, in the order of their rows.
    """
    config = without_adapters(config)  # these are in no checkpoint of a model
    axes = cast(dict[Path, Any], traverse_util.flatten_dict(logical_axes(config)))
    arrays = cast(dict[Path, Any], traverse_util.flatten_dict(abstract_params(config)))
    layout = [_entry(path, array.shape, axes[path], config) for path, array in arrays.items()]
    return _fuse(layout) if FAMILIES[config.model_type].fused else layout


def _entry(path: Path, shape: tuple[int, ...], axes: tuple[str, ...], config: ModelConfig) -> Entry:
    key = "/".join(path)
    stacked = axes[0] == "layers"
    shape = shape[1:] if stacked else shape
    if key in _LINEAR:
        name, inputs = _LINEAR[key]
        hf_shape = (math.prod(shape[inputs:]), math.prod(shape[:inputs]))
    elif key in _VECTORS:
        name, hf_shape = _VECTORS[key], (math.prod(shape),)
    else:
        name, hf_shape = _TABLES[key], shape
    names = tuple(name.format(i) for i in range(config.num_layers)) if stacked else (name,)
    rows = slice(0, hf_shape[0])
    return Entry(path, axes, names, stacked, shape, hf_shape, rows, key in _LINEAR)


def _fuse(layout: list[Entry]) -> list[Entry]:
    """The same parameters where the file holds several of them in one tensor."""
    by_key = {"/".join(entry.path): entry for entry in layout}
    fused = []
    for name, keys in _FUSED.items():
        parts = [by_key.pop(key) for key in keys]
        ends = list(itertools.accumulate(part.hf_shape[0] for part in parts))
        fused += [
            dataclasses.replace(
                part,
                names=tuple(name.format(i) for i in range(len(part.names))),
                hf_shape=(ends[-1], *part.hf_shape[1:]),
                rows=slice(end - part.hf_shape[0], end),
            )
            for part, end in zip(parts, ends, strict=True)
        ]
    return [*by_key.values(), *fused]
