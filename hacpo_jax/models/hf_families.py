"""What `config.json` may hold: fields of all families, and what is peculiar to each."""

import dataclasses
from collections.abc import Mapping
from typing import Any

READ = frozenset(
    {
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
)

HARMLESS = frozenset(
    {
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
)

# Fields that change the mathematics, with the values under which they do not.
REQUIRED_VALUES: Mapping[str, tuple[Any, ...]] = {
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


@dataclasses.dataclass(frozen=True)
class Family:
    """What is peculiar to one `model_type`.

    Args:
      architectures: names that `architectures` may hold; the first is written.
      reads: fields beside `READ` that are understood.
      harmless: fields beside `HARMLESS` that change nothing.
      required_values: as `REQUIRED_VALUES`, for this family alone.
      requires: fields that must have a value, because the class of transformers assumes something
        else than hidden / heads, or than as many key heads as query heads.
      mentions: fields that must be there but may be null, because that class has another default.
      rope_types: scalings of the rotary embedding that transformers knows for it.
      windows_by_layer: `layer_types` may mix layers with and without a window.
      window_flag: a window counts only if `use_sliding_window` says so.
      fused: the file holds query, key and value in one tensor, and gate and up in another.
      always_qkv_bias: query, key and value projections have a bias.
      qk_norm: queries and keys are normalised.
    """

    architectures: tuple[str, ...]
    reads: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    required_values: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    mentions: frozenset[str] = frozenset()
    rope_types: tuple[str, ...] = ("default", "linear", "llama3")
    windows_by_layer: bool = False
    window_flag: bool = False
    fused: bool = False
    always_qkv_bias: bool = False
    qk_norm: bool = False


_QWEN_WINDOW = frozenset({"use_sliding_window", "sliding_window", "max_window_layers"})

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        architectures=("LlamaForCausalLM",), reads=frozenset({"attention_bias", "mlp_bias"})
    ),
    "mistral": Family(
        architectures=("MistralForCausalLM",),
        reads=frozenset({"sliding_window"}),
        requires=frozenset({"num_key_value_heads"}),
        mentions=frozenset({"sliding_window"}),
    ),
    "ministral": Family(
        architectures=("MinistralForCausalLM", "MistralForCausalLM"),
        reads=frozenset({"sliding_window"}),
        requires=frozenset({"num_key_value_heads", "head_dim"}),
        mentions=frozenset({"sliding_window"}),
        windows_by_layer=True,
    ),
    "qwen2": Family(
        architectures=("Qwen2ForCausalLM",),
        reads=_QWEN_WINDOW,
        requires=frozenset({"num_key_value_heads"}),
        windows_by_layer=True,
        window_flag=True,
        always_qkv_bias=True,
    ),
    "qwen3": Family(
        architectures=("Qwen3ForCausalLM",),
        reads=_QWEN_WINDOW | {"attention_bias"},
        requires=frozenset({"num_key_value_heads", "head_dim"}),
        windows_by_layer=True,
        window_flag=True,
        qk_norm=True,
    ),
    "phi3": Family(
        architectures=("Phi3ForCausalLM",),
        reads=frozenset(
            {"sliding_window", "partial_rotary_factor", "original_max_position_embeddings"}
        ),
        # Published files name code of their own, which transformers has long taken over.
        harmless=frozenset({"auto_map"}),
        required_values={
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "lm_head_bias": (False,),
            "embd_pdrop": (0,),
            "resid_pdrop": (0,),
            "full_attn_mod": (1,),
            "interpolate_factor": (1,),
        },
        rope_types=("default", "longrope"),
        fused=True,
    ),
}

# Families that people ask for, with the reason why they are not here.
REFUSED: Mapping[str, str] = {
    "gemma3": "it reads images; of its text part see gemma3_text",
    "gemma3_text": "its block differs in everything at once (norms after each part, scaled "
    "embedding and queries, GELU, two rotary bases)",
    "ministral3": "it scales rotary angles by yarn and queries by their position",
    "mistral3": "it reads images, and its text part (ministral3) scales queries by their position",
    "mixtral": "mixtures of experts are not supported",
    "phimoe": "mixtures of experts are not supported",
    "qwen2_moe": "mixtures of experts are not supported",
    "qwen3_moe": "mixtures of experts are not supported",
}


def family_name(d: Mapping[str, Any]) -> Any:
    """The family that a `config.json` describes, known or not.

    As in transformers, a Mistral that lists the types of its layers is a Ministral.
    """
    name = d.get("model_type")
    return "ministral" if name == "mistral" and "layer_types" in d else name
