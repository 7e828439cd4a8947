"""Weights laid out for a loop over tokens, which reads all of them again for every token."""

from typing import Any

import jax
from flax import traverse_util

from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.functional import product_inputs
from hacpo_jax.models.lora import Adapted, Params, agent_axes, base_of, trained, with_base
from hacpo_jax.models.products import Turned

Weights = Params | Adapted


def layers_first(params: Weights) -> tuple[Weights, Any]:
    """Stacked layers `[A, L, ...]` as `[L, A, ...]`, and the `in_axes` of the whole.

    A scan over the layers of agents that are mapped wants them so, and would turn them over in
    every token.
    """
    own = trained(params)
    moved = own | {"layers": jax.tree.map(lambda x: x.swapaxes(0, 1), own["layers"])}
    axes = {name: int(name == "layers") for name in own}
    if isinstance(params, Adapted):
        return Adapted(moved, params.base), Adapted(axes, None)  # type: ignore[arg-type]
    return moved, axes


def for_loop(weights: Weights, layers: list | None) -> tuple[Weights, tuple[Any, Any]]:
    """Weights as a loop over tokens takes them, and the axis of agents in them and in layers.

    Args:
      weights: of the agents, `[A, ...]`.
      layers: those of each layer, from `layers_apart`; None to loop over them.
    """
    if layers is None:
        weights, axes = layers_first(weights)
        return weights, (axes, None)
    axis = agent_axes(weights)
    return weights, (axis, [axis] * len(layers))


def layers_apart(config: ModelConfig, params: Weights) -> list[Weights]:
    """Weights of each layer on its own, `[A, ...]`, with those of products turned.

    Args:
      config: the model's shape.
      params: of all layers, `[A, L, ...]`, and `[L, ...]` of a shared base.
    """
    inputs = product_inputs(config)

    def layer(tree: Params, lead: int, i: int) -> Params:
        flat: dict[Any, jax.Array] = dict(traverse_util.flatten_dict(tree["layers"]))  # type: ignore[arg-type]
        one = {path: jax.lax.index_in_dim(x, i, lead, keepdims=False) for path, x in flat.items()}
        turned = {
            path: Turned.of(x, lead, inputs[path]) if path in inputs else x
            for path, x in one.items()
        }
        return traverse_util.unflatten_dict(turned)

    own, base = trained(params), base_of(params)
    return [
        with_base(layer(own, 1, i), base and layer(base, 0, i)) for i in range(config.num_layers)
    ]
