"""The decoder as a pure function of a plain nested dict of arrays.

Transformations (`vmap` over agents, `grad`, checkpoints, optimisers) act on the dict; `bind` puts
it back into a `Decoder` wherever the model is called. That costs tracing time only.
"""

import functools
from typing import Any

import jax
from flax import nnx, traverse_util
from jax.typing import DTypeLike

from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.decoder import Decoder
from hacpo_jax.models.lora import Adapted, base_of, split, trained, whole, with_base
from hacpo_jax.parallel.rules import GATHERED, constrain_tree

Params = dict[str, Any]


@functools.lru_cache(maxsize=64)
def _declaration(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """The decoder's structure, and its variables as shapes with their logical axes."""
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))


def abstract_params(config: ModelConfig) -> Params:
    """Shapes and dtypes of the parameters: a nested dict of `jax.ShapeDtypeStruct`, float32."""
    return nnx.to_pure_dict(_declaration(config)[1])


def logical_axes(config: ModelConfig) -> Params:
    """Names of the axes of every parameter, a tuple of strings in place of each array."""
    declared = nnx.to_flat_state(_declaration(config)[1])
    return traverse_util.unflatten_dict({path: variable.axes for path, variable in declared})


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh float32 parameters drawn from `key`, as a nested dict of arrays."""
    return nnx.to_pure_dict(nnx.split(Decoder(config, nnx.Rngs(params=key)))[1])


def abstract_trained(config: ModelConfig) -> Params:
    """Shapes of the parameters that are trained: the adapters where `config` has some."""
    params = abstract_params(config)
    return params if config.lora is None else split(params).adapters


@functools.partial(jax.jit, static_argnums=0)
def init_adapters(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh float32 adapters, which change nothing yet; the rest of the model is not made."""
    return split(nnx.to_pure_dict(nnx.split(Decoder(config, nnx.Rngs(params=key)))[1])).adapters


def trained_axes(config: ModelConfig) -> Params:
    """Names of the axes of the parameters that are trained."""
    axes = logical_axes(config)
    return axes if config.lora is None else split(axes).adapters


def base_axes(config: ModelConfig) -> Params | None:
    """Names of the axes of what adapters are trained on; None where there are none."""
    return None if config.lora is None else split(logical_axes(config)).base


def product_inputs(config: ModelConfig) -> dict[Any, int]:
    """By path within the layers, how many axes of a weight belong to what it is multiplied with."""
    declared = nnx.to_flat_state(_declaration(config)[1]["layers"])
    found = {path: variable.get_metadata("inputs", None) for path, variable in declared}
    return {path: inputs for path, inputs in found.items() if inputs is not None}


def gathered(config: ModelConfig, params: Params | Adapted, dtype: DTypeLike) -> Params | Adapted:
    """Parameters `[A, ...]` of a group in `dtype`, each whole but for `tensor` on every device."""
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    own = constrain_tree(trained(params), trained_axes(config), GATHERED, lead=("agents",))
    base = base_of(params)
    return with_base(own, base and constrain_tree(base, base_axes(config), GATHERED))


def bind(config: ModelConfig, params: Params | Adapted) -> Decoder:
    """The decoder that holds `params`, which may be tracers of any transformation and any dtype."""
    return nnx.merge(_declaration(config)[0], whole(params))
