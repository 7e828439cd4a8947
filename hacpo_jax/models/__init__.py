"""One decoder for the Llama, Mistral, Qwen and Phi families, from and to Hugging Face."""

from hacpo_jax.models.attention import KeyValues
from hacpo_jax.models.config import Lora, ModelConfig, RopeScaling
from hacpo_jax.models.decoder import Decoder
from hacpo_jax.models.export import save_model, save_model_config
from hacpo_jax.models.flash_attention import AttentionKind, choose_attention
from hacpo_jax.models.functional import (
    abstract_params,
    abstract_trained,
    base_axes,
    bind,
    gathered,
    init_adapters,
    init_params,
    logical_axes,
    trained_axes,
)
from hacpo_jax.models.hf_config import config_from_hf, config_to_hf
from hacpo_jax.models.hub import resolve_model
from hacpo_jax.models.lora import Adapted
from hacpo_jax.models.shared_prompts import Answers
from hacpo_jax.models.weights import (
    check_weights,
    inspect_model,
    load_config,
    load_model,
    load_params,
)

__all__ = [
    "Adapted",
    "Answers",
    "AttentionKind",
    "Decoder",
    "KeyValues",
    "Lora",
    "ModelConfig",
    "RopeScaling",
    "abstract_params",
    "abstract_trained",
    "base_axes",
    "bind",
    "check_weights",
    "choose_attention",
    "config_from_hf",
    "config_to_hf",
    "gathered",
    "init_adapters",
    "init_params",
    "inspect_model",
    "load_config",
    "load_model",
    "load_params",
    "logical_axes",
    "resolve_model",
    "save_model",
    "save_model_config",
    "trained_axes",
]
