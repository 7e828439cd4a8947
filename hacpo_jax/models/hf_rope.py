"""The rotary embedding in `config.json`, in both of its dialects."""

import dataclasses
from typing import Any

from hacpo_jax.models.config import ModelConfig, RopeScaling
from hacpo_jax.models.hf_families import Family
from hacpo_jax.models.hf_fields import Fields

_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "longrope": (
        "short_factor",
        "long_factor",
        "factor",
        "attention_factor",
        "original_max_position_embeddings",
    ),
}
_ALIASES = {"su": "longrope"}  # the name in the first Phi-3 files


@dataclasses.dataclass(frozen=True)
class Rope:
    """What `config.json` says of the rotary embedding; the fields are those of `ModelConfig`."""

    rope_theta: float
    rope_scaling: RopeScaling | None
    partial_rotary_factor: float


def read_rope(fields: Fields, family: Family, head_dim: int) -> Rope:
    """Both dialects, `rope_theta` with `rope_scaling` and `rope_parameters`; together they agree.

    Raises:
      UserError: something is missing, contradictory or not supported.
    """
    newer, older = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    theta, partial = _agreed(fields, newer, "rope_theta", 10_000.0), 1.0
    read = {"rope_theta"}
    if "partial_rotary_factor" in family.reads:
        partial = _agreed(fields, newer, "partial_rotary_factor", 1.0)
        read.add("partial_rotary_factor")
    rotary_dim = int(head_dim * partial)
    if partial > 1 or rotary_dim < 2 or rotary_dim % 2:
        remedy = f"must make an even number, at most all, of head_dim = {head_dim}"
        raise fields.error("partial_rotary_factor", remedy)
    values = {key: value for key, value in newer.values.items() if key not in read}
    if not values:
        scaling = _scaling(fields, older, family, rotary_dim)
    else:
        scaling = _scaling(fields, Fields(values, newer.field), family, rotary_dim)
        if older.values and _scaling(fields, older, family, rotary_dim) != scaling:
            raise fields.error("rope_scaling", "rope_parameters says something else; keep one")
    return Rope(theta, scaling, partial)


def write_rope(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The fields that `read_rope` reads, in both dialects, so that old and new readers agree."""
    scaling = config.rope_scaling
    older: dict[str, Any] | None = None
    rope: dict[str, Any] = {"rope_type": "default"}
    d: dict[str, Any] = {"rope_theta": config.rope_theta}
    if scaling is not None and scaling.kind == "longrope":
        rope = {"rope_type": "longrope", **_longrope(scaling)}
        # Readers of the older dialect accept just these keys.
        older = {"type": "longrope", **_longrope(scaling)}
        rope["original_max_position_embeddings"] = scaling.original_max_position
    elif scaling is not None:
        rope = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope["low_freq_factor"] = scaling.low_freq_factor
            rope["high_freq_factor"] = scaling.high_freq_factor
            rope["original_max_position_embeddings"] = scaling.original_max_position
        older = rope
    if "original_max_position_embeddings" in family.reads:
        d["original_max_position_embeddings"] = (
            scaling.original_max_position if scaling else config.max_position_embeddings
        )
    rope = rope | {"rope_theta": config.rope_theta}
    if "partial_rotary_factor" in family.reads:
        d["partial_rotary_factor"] = config.partial_rotary_factor
        rope["partial_rotary_factor"] = config.partial_rotary_factor
    return d | {"rope_scaling": older, "rope_parameters": rope}


def _longrope(scaling: RopeScaling) -> dict[str, Any]:
    d: dict[str, Any] = {
        "short_factor": list(scaling.short_factors),
        "long_factor": list(scaling.long_factors),
    }
    if scaling.factor != scaling.max_position / scaling.original_max_position:
        d["factor"] = scaling.factor
    if scaling.attention_factor is not None:
        d["attention_factor"] = scaling.attention_factor
    return d


def _agreed(fields: Fields, newer: Fields, name: str, default: float) -> float:
    """A number that may stand in `rope_parameters`, beside it, or in both places alike."""
    value = newer.number(name, fields.number(name, default))
    if fields.number(name, value) != value:
        raise fields.error(name, f"rope_parameters.{name} says {value}; keep one")
    return value


def _scaling(fields: Fields, rope: Fields, family: Family, rotary_dim: int) -> RopeScaling | None:
    """The scaling that `rope_scaling`, or `rope_parameters` less its `rope_theta`, describes."""
    key = "rope_type" if "rope_type" in rope.values else "type"
    names = {name: rope.values.get(name) for name in ("rope_type", "type") if name in rope.values}
    kinds = {_ALIASES.get(name, name) if isinstance(name, str) else None for name in names.values()}
    kind = kinds.pop() if kinds else "default"
    if kind not in family.rope_types or kinds:
        raise rope.error(key, f"not supported; must be one of {', '.join(family.rope_types)}")
    for name in sorted(rope.values.keys() - {"rope_type", "type", *_KEYS[kind]}):
        if name != "partial_rotary_factor" or rope.values[name] != 1:
            raise rope.error(name, f"not supported with rope_type {kind}")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, rope.number("factor"))
    if kind == "longrope":
        return _read_longrope(fields, rope, rotary_dim)
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


def _read_longrope(fields: Fields, rope: Fields, rotary_dim: int) -> RopeScaling:
    """Phi's scaling; its original context stands outside, and may be repeated inside."""
    name = "original_max_position_embeddings"
    original, longest = fields.integer(name, least=2), fields.integer("max_position_embeddings")
    if rope.integer(name, original) != original:
        raise rope.error(name, f"{name} outside says {original}; keep one")
    given = "attention_factor" in rope.values and rope.values["attention_factor"] is not None
    return RopeScaling(
        "longrope",
        rope.number("factor", longest / original),
        original_max_position=original,
        max_position=longest,
        short_factors=rope.numbers("short_factor", rotary_dim // 2),
        long_factors=rope.numbers("long_factor", rotary_dim // 2),
        attention_factor=rope.number("attention_factor") if given else None,
    )
