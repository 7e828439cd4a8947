"""Hugging Face `config.json` to and from `ModelConfig`.

A field of the file is read, known to be harmless, or an error that names it: what this decoder
does not compute is never left out in silence.
"""

import json
from collections.abc import Mapping
from typing import Any

from hacpo_jax.errors import UserError
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.hf_families import (
    FAMILIES,
    HARMLESS,
    READ,
    REFUSED,
    REQUIRED_VALUES,
    Family,
    family_name,
)
from hacpo_jax.models.hf_fields import Fields
from hacpo_jax.models.hf_rope import read_rope, write_rope


def config_from_hf(d: Mapping[str, Any], *, field: str, longest: int | None = None) -> ModelConfig:
    """The model's shape from the contents of a Hugging Face `config.json`.

    Both ways of writing the rotary embedding are read: `rope_theta` with `rope_scaling`, and
    `rope_parameters` (transformers 5).

    Args:
      d: the decoded JSON object.
      field: what the user called this model, for error messages, e.g. `agents.0.model`.
      longest: the longest sequence that the run will hold, prompt and answer together, in tokens.
        Matters to `longrope` alone, whose context stays the original one unless this is longer;
        see `RopeScaling`.

    Raises:
      UserError: the family is unknown, a field is missing, contradictory or unknown, or has a
        value under which this decoder would compute something else.
    """
    fields = Fields(d, field)
    name = family_name(d)
    if name not in list(FAMILIES):
        why = f"not supported: {REFUSED[name]}" if name in list(REFUSED) else "unknown family"
        raise fields.error("model_type", f"{why}; supported: {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    _check_known(fields, family)
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers")
    bias = "attention_bias" in family.reads and fields.flag("attention_bias")
    head_dim = _head_dim(fields, num_heads)
    rope = read_rope(fields, family, head_dim)
    positions = fields.integer("max_position_embeddings")
    if rope.rope_scaling is not None and rope.rope_scaling.kind == "longrope":
        original = rope.rope_scaling.original_max_position
        positions = positions if longest and longest > original else min(positions, original)
    config = ModelConfig(
        model_type=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position_embeddings=positions,
        rope_theta=rope.rope_theta,
        rope_scaling=rope.rope_scaling,
        partial_rotary_factor=rope.partial_rotary_factor,
        rms_norm_eps=fields.number("rms_norm_eps"),
        windows=_windows(fields, family, num_layers),
        qkv_bias=family.always_qkv_bias or bias,
        output_bias=bias,
        mlp_bias="mlp_bias" in family.reads and fields.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
    )
    if config.num_heads % config.num_kv_heads:
        raise fields.error("num_key_value_heads", f"must divide num_attention_heads = {num_heads}")
    return config


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a model, without dtype and special tokens.

    The rotary embedding is written in both ways, so that older and newer readers agree.

    Raises:
      ValueError: the family has no way to say what `config` says.
    """
    family = FAMILIES[config.model_type]
    scaling = config.rope_scaling
    d = {
        "model_type": config.model_type,
        "architectures": [family.architectures[0]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": (
            scaling.max_position
            if scaling and scaling.max_position
            else config.max_position_embeddings
        ),
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_word_embeddings,
        **write_rope(config, family),
        **_write_windows(config, family),
    }
    if "attention_bias" in family.reads:
        d["attention_bias"] = config.output_bias
    if "mlp_bias" in family.reads:
        d["mlp_bias"] = config.mlp_bias
    if config_from_hf(d, field="config", longest=config.max_position_embeddings) != config:
        raise ValueError(f"config = {config}: a {config.model_type} config.json cannot express it")
    return d


def _check_known(fields: Fields, family: Family) -> None:
    """Every field is known to this family, and those not read hold a value that is computed."""
    d = fields.values
    required = {**REQUIRED_VALUES, **family.required_values}
    for name, allowed in required.items():
        if name in d and name not in family.reads and d[name] not in allowed:
            right = json.dumps(allowed[0])
            raise fields.error(name, f"not supported; it must be {right} or absent")
    known = READ | HARMLESS | required.keys() | family.reads | family.harmless
    unknown = sorted(d.keys() - known)
    if unknown:
        also = f" (also unknown: {', '.join(unknown[1:])})" if unknown[1:] else ""
        raise fields.error(
            unknown[0],
            "unknown field, which may change what the model computes; take it out of config.json "
            f"if it does not{also}",
        )
    for name in sorted(family.requires):
        if d.get(name) is None:
            raise fields.error(name, "missing from config.json")
    for name in sorted(family.mentions - d.keys()):
        raise fields.error(name, "missing from config.json; write null for none")
    if d.get("architectures") not in (None, *([name] for name in family.architectures)):
        raise fields.error("architectures", f"must be [{family.architectures[0]!r}]")


def _head_dim(fields: Fields, num_heads: int) -> int:
    hidden = fields.integer("hidden_size")
    if fields.values.get("head_dim") is None and hidden % num_heads:
        raise fields.error(
            "hidden_size", f"must be a multiple of num_attention_heads = {num_heads}"
        )
    head_dim = fields.integer("head_dim", hidden // num_heads)
    if head_dim % 2:
        raise UserError(
            f"{fields.field}: head_dim", head_dim, "must be even, for the rotary embedding"
        )
    return head_dim


_FULL, _SLIDING = "full_attention", "sliding_attention"


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The attention window of each layer, as `ModelConfig` has it."""
    d = fields.values
    size = None
    if d.get("sliding_window") is not None or (family.window_flag and d.get("use_sliding_window")):
        size = fields.integer("sliding_window")
    first = 0
    if family.window_flag and not fields.flag("use_sliding_window"):
        size = None
    elif family.window_flag and d.get("layer_types") is None:
        first = fields.integer("max_window_layers", least=0)
    assumed = [_FULL if size is None or i < first else _SLIDING for i in range(num_layers)]
    types = assumed if d.get("layer_types") is None else d["layer_types"]
    allowed = [_FULL] if size is None else [_FULL, _SLIDING]
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or any(kind not in allowed for kind in types)
    ):
        raise fields.error("layer_types", f"must be {num_layers} times {' or '.join(allowed)}")
    if types != assumed and not family.windows_by_layer:
        raise fields.error("layer_types", f"must be {assumed[0]} in every layer")
    windows = tuple(size if kind == _SLIDING else None for kind in types)
    return windows if any(windows) else ()


def _write_windows(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The fields that `_windows` reads; the check of the round trip finds what they cannot say."""
    if "sliding_window" not in family.reads:
        return {}
    size = next((window for window in config.windows if window is not None), None)
    if family.window_flag and size is None:
        return {"use_sliding_window": False}
    d: dict[str, Any] = {"sliding_window": size}
    if family.windows_by_layer:
        windows = config.windows or (None,) * config.num_layers
        d["layer_types"] = [_FULL if window is None else _SLIDING for window in windows]
    if family.window_flag:
        # Readers that do not know layer_types take every layer from this one on.
        d |= {"use_sliding_window": True, "max_window_layers": config.windows.index(size)}
    return d
