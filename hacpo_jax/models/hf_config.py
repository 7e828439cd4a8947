"""Hugging Face `config.json`: read into a `ModelConfig`, and written back.

Every field is either read here, known not to touch the mathematics, or must hold the one value
this decoder computes. Anything else is an error, never a silent approximation.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hacpo_jax.errors import UserError
from hacpo_jax.models.config import ModelConfig, RopeScaling

_READ = {
    "model_type",
    "architectures",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
}

_HARMLESS = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_from_model_config",
    "_model_name_or_path",
    "_name_or_path",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
}

# Fields that change the mathematics, with the values under which they do not.
_REQUIRED_VALUES = {
    "hidden_act": ("silu",),
    "attention_dropout": (0,),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1, None),
    "quantization_config": (None,),
    "chunk_size_feed_forward": (0,),
    "is_encoder_decoder": (False,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "rope_interleaved": (False,),
}

_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


@dataclasses.dataclass(frozen=True)
class _Family:
    """What is peculiar to one `model_type`."""

    architecture: str
    reads: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    # Where the class of transformers assumes something else than hidden / heads, or than as many
    # key heads as query heads, the file must say it.
    requires: frozenset[str] = frozenset()
    always_qkv_bias: bool = False
    qk_norm: bool = False


_WINDOW_SIZES = frozenset({"sliding_window", "max_window_layers"})  # unused without a window

_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", reads=frozenset({"attention_bias", "mlp_bias"})),
    "qwen2": _Family(
        "Qwen2ForCausalLM",
        harmless=_WINDOW_SIZES,
        requires=frozenset({"num_key_value_heads"}),
        always_qkv_bias=True,
    ),
    "qwen3": _Family(
        "Qwen3ForCausalLM",
        reads=frozenset({"attention_bias"}),
        harmless=_WINDOW_SIZES,
        requires=frozenset({"num_key_value_heads", "head_dim"}),
        qk_norm=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class _Fields:
    """Typed look-ups in one JSON object, with errors that name the key."""

    values: Mapping[str, Any]
    field: str

    def error(self, name: str, remedy: str) -> UserError:
        return UserError(f"{self.field}: {name}", self.values.get(name), remedy)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "must be a whole number of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.error(name, "must be a finite number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def mapping(self, name: str) -> "_Fields":
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, "must be an object or null")
        return _Fields(value or {}, f"{self.field}: {name}")


def config_from_hf(d: Mapping[str, Any], *, field: str) -> ModelConfig:
    """The model's shape from the contents of a Hugging Face `config.json`.

    Both ways of writing the rotary embedding are read: `rope_theta` with `rope_scaling`, and
    `rope_parameters` (transformers 5).

    Args:
      d: the decoded JSON object.
      field: what the user called this model, for error messages, e.g. `agents.0.model`.

    Raises:
      UserError: the family is unknown, a field is missing, contradictory or unknown, or has a
        value under which this decoder would compute something else.
    """
    fields = _Fields(d, field)
    if d.get("model_type") not in list(_FAMILIES):
        raise fields.error("model_type", f"unknown family; supported: {', '.join(_FAMILIES)}")
    family = _FAMILIES[d["model_type"]]
    _check_known(fields, family)
    num_heads = fields.integer("num_attention_heads")
    bias = "attention_bias" in family.reads and fields.flag("attention_bias")
    theta, scaling = _rope(fields)
    config = ModelConfig(
        model_type=d["model_type"],
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=_head_dim(fields, num_heads),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=fields.number("rms_norm_eps"),
        qkv_bias=family.always_qkv_bias or bias,
        output_bias=bias,
        mlp_bias="mlp_bias" in family.reads and fields.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
    )
    _check_consistent(fields, config)
    return config


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a model, without dtype and special tokens.

    The rotary embedding is written in both ways, so that older and newer readers agree.

    Raises:
      ValueError: the family has no way to say what `config` says.
    """
    family = _FAMILIES[config.model_type]
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        rope = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope["low_freq_factor"] = scaling.low_freq_factor
            rope["high_freq_factor"] = scaling.high_freq_factor
            rope["original_max_position_embeddings"] = scaling.original_max_position
    d = {
        "model_type": config.model_type,
        "architectures": [family.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope if scaling is not None else None,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
    }
    if "attention_bias" in family.reads:
        d["attention_bias"] = config.output_bias
    if "mlp_bias" in family.reads:
        d["mlp_bias"] = config.mlp_bias
    if family.harmless:
        d["use_sliding_window"] = False
    if config_from_hf(d, field="config") != config:
        raise ValueError(f"config = {config}: a {config.model_type} config.json cannot express it")
    return d


def _check_known(fields: _Fields, family: _Family) -> None:
    """Every field is known to this family, and those not read hold a value that is computed."""
    d = fields.values
    for name, allowed in _REQUIRED_VALUES.items():
        if name in d and d[name] not in allowed:
            raise fields.error(name, f"not supported; it must be {allowed[0]!r} or absent")
    known = _READ | _HARMLESS | _REQUIRED_VALUES.keys() | family.reads | family.harmless
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
    if d.get("architectures") not in (None, [family.architecture]):
        raise fields.error("architectures", f"must be [{family.architecture!r}]")


def _head_dim(fields: _Fields, num_heads: int) -> int:
    hidden = fields.integer("hidden_size")
    if fields.values.get("head_dim") is None and hidden % num_heads:
        raise fields.error(
            "hidden_size", f"must be a multiple of num_attention_heads = {num_heads}"
        )
    return fields.integer("head_dim", hidden // num_heads)


def _check_consistent(fields: _Fields, config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            "num_key_value_heads", f"must divide num_attention_heads = {config.num_heads}"
        )
    if config.head_dim % 2:
        raise UserError(
            f"{fields.field}: head_dim", config.head_dim, "must be even, for the rotary embedding"
        )
    layer_types = fields.values.get("layer_types")
    if layer_types not in (None, ["full_attention"] * config.num_layers):
        raise fields.error(
            "layer_types", f"not supported; must be full_attention {config.num_layers} times"
        )


def _rope(fields: _Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary embedding from either dialect; both together must agree."""
    newer, older = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    theta = newer.number("rope_theta", fields.number("rope_theta", 10_000.0))
    if fields.number("rope_theta", theta) != theta:
        raise fields.error("rope_theta", f"rope_parameters.rope_theta says {theta}; keep one")
    values = {key: value for key, value in newer.values.items() if key != "rope_theta"}
    if not values:
        return theta, _scaling(older)
    scaling = _scaling(_Fields(values, newer.field))
    if older.values and _scaling(older) != scaling:
        raise fields.error("rope_scaling", "rope_parameters says something else; keep one")
    return theta, scaling


def _scaling(rope: _Fields) -> RopeScaling | None:
    """The scaling that `rope_scaling`, or `rope_parameters` less its `rope_theta`, describes."""
    key = "rope_type" if "rope_type" in rope.values else "type"
    kind = rope.values.get(key, "default")
    if kind not in list(_ROPE_KEYS) or rope.values.get("type", kind) != kind:
        raise rope.error(key, f"not supported; must be one of {', '.join(_ROPE_KEYS)}")
    for name in sorted(rope.values.keys() - {"rope_type", "type", *_ROPE_KEYS[kind]}):
        if name != "partial_rotary_factor" or rope.values[name] != 1:
            raise rope.error(name, f"not supported with rope_type {kind}")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, rope.number("factor"))
    scaling = RopeScaling(
        kind,
        rope.number("factor"),
        rope.number("low_freq_factor"),
        rope.number("high_freq_factor"),
        rope.integer("original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise rope.error("high_freq_factor", "must be above low_freq_factor")
    return scaling
