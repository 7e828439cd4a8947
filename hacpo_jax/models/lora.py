"""Low-rank adapters (LoRA, arXiv 2106.09685) beside the weights of a frozen base.

qwix and `flax.nnx.LoRA` adapt one layer's module at a time. Here the layers of a model are stacked
and scanned, and the agents of a group share one base while each has its own adapters; so the
adapters are arrays of the decoder like its weights, declared in the same place.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from hacpo_jax.models.config import ModelConfig

Params = dict[str, Any]

DOWN, UP = "_lora_down", "_lora_up"
"""Endings of the names of adapters: input to rank, and rank to output."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapted:
    """Parameters of agents that train adapters on one base.

    Args:
      adapters: nested dict, `[A, ...]` where agents are stacked.
      base: nested dict of everything else, without an agent axis.
    """

    adapters: Params
    base: Params


def whole(params: "Params | Adapted") -> Params:
    """One nested dict of all parameters, base and adapters together."""
    if not isinstance(params, Adapted):
        return params
    flat = traverse_util.flatten_dict(params.base) | traverse_util.flatten_dict(params.adapters)
    return traverse_util.unflatten_dict(flat)


def with_base(adapters: Params, base: Params | None) -> "Params | Adapted":
    """What a policy computes with: the trained parameters, and those they adapt, if any."""
    return adapters if base is None else Adapted(adapters, base)


def trained(params: "Params | Adapted") -> Params:
    """The parameters that an optimizer changes."""
    return params.adapters if isinstance(params, Adapted) else params


def base_of(params: "Params | Adapted") -> Params | None:
    """The parameters that are shared and frozen, if any."""
    return params.base if isinstance(params, Adapted) else None


def member(params: "Params | Adapted", index: int | slice) -> "Params | Adapted":
    """Parameters of one of the agents of a group, or with a slice of several."""
    own = jax.tree.map(lambda x: x[index], trained(params))
    return with_base(own, base_of(params))


def agent_axes(params: "Params | Adapted") -> Any:
    """`in_axes` of `jax.vmap` over the agents of a group."""
    return Adapted(0, None) if isinstance(params, Adapted) else 0  # type: ignore[arg-type]


def split(params: Params) -> Adapted:
    """Parameters of one agent, divided into adapters and base."""
    flat = traverse_util.flatten_dict(params)
    adapters = {path: value for path, value in flat.items() if _is_adapter(path)}
    base = {path: value for path, value in flat.items() if path not in adapters}
    return Adapted(traverse_util.unflatten_dict(adapters), traverse_util.unflatten_dict(base))


def without_adapters(config: ModelConfig) -> ModelConfig:
    """The shape of the base, and of the model once adapters are merged."""
    return dataclasses.replace(config, lora=None)


def merge(config: ModelConfig, params: Params) -> Params:
    """The parameters of the model without adapters that computes the same, in float32.

    Args:
      config: shape of the adapted model.
      params: of one agent, base and adapters.
    """
    assert config.lora is not None
    flat: dict[tuple[str, ...], jax.Array] = dict(traverse_util.flatten_dict(params))  # type: ignore[arg-type]
    merged = {path: value for path, value in flat.items() if not _is_adapter(path)}
    for path in flat:
        if path[-1].endswith(DOWN):
            name = (*path[:-1], path[-1].removesuffix(DOWN))
            up = flat[(*path[:-1], name[-1] + UP)]
            change = jax.vmap(lambda a, b: jnp.tensordot(a, b, 1))(flat[path], up)
            merged[name] = merged[name].astype(jnp.float32) + config.lora.scale * change
    return traverse_util.unflatten_dict(merged)


def _is_adapter(path: tuple[str, ...]) -> bool:
    return path[-1].endswith((DOWN, UP))
