"""One decoder for the Llama and Qwen families, with import from and export to Hugging Face."""

from hacpo_jax.models.attention import KeyValues
from hacpo_jax.models.config import ModelConfig, RopeScaling
from hacpo_jax.models.decoder import Decoder
from hacpo_jax.models.functional import abstract_params, bind, init_params, logical_axes

__all__ = [
    "Decoder",
    "KeyValues",
    "ModelConfig",
    "RopeScaling",
    "abstract_params",
    "bind",
    "init_params",
    "logical_axes",
]
