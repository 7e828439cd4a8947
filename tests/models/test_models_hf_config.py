"""Hugging Face config.json to ModelConfig and back."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models_reference import FIXTURES, LONGEST, NAMES

from hacpo_jax.errors import UserError
from hacpo_jax.models import ModelConfig, RopeScaling, config_from_hf, config_to_hf

# What the published files hold, written down by hand in the older dialect.
LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN2_5_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def newer_dialect(d: dict) -> dict:
    """The same file as transformers 5 writes it."""
    d = dict(d)
    scaling = d.pop("rope_scaling", None) or {"rope_type": "default"}
    return d | {"rope_parameters": {"rope_theta": d.pop("rope_theta"), **scaling}}


def test_llama_is_read():
    assert config_from_hf(LLAMA_3_2_1B, field="m") == ModelConfig(
        model_type="llama",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling=RopeScaling("llama3", 32.0, 1.0, 4.0, 8192),
        rms_norm_eps=1e-05,
        tie_word_embeddings=True,
    )


def test_qwen2_is_read():
    config = config_from_hf(QWEN2_5_05B, field="m")
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert (config.head_dim, config.num_kv_heads, config.qk_norm) == (64, 2, False)  # 896 / 14


def test_qwen3_is_read():
    config = config_from_hf(QWEN3_06B, field="m")
    assert (config.head_dim, config.qk_norm, config.qkv_bias) == (128, True, False)
    biased = config_from_hf(QWEN3_06B | {"attention_bias": True}, field="m")
    assert (biased.qkv_bias, biased.output_bias) == (True, True)


def test_defaults_of_old_llama_files():
    """Absent in the files of the first Llamas: key heads, biases, rotary base, head size."""
    absent = ("num_key_value_heads", "attention_bias", "mlp_bias", "rope_theta", "head_dim")
    d = {key: value for key, value in LLAMA_3_2_1B.items() if key not in absent}
    config = config_from_hf(d | {"rope_scaling": {"type": "linear", "factor": 2.0}}, field="m")
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (32, 64, 10_000.0)
    assert config.rope_scaling == RopeScaling("linear", 2.0)
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias)


@pytest.mark.parametrize("d", [LLAMA_3_2_1B, QWEN2_5_05B, QWEN3_06B])
def test_both_dialects_say_the_same(d):
    expected = config_from_hf(d, field="m")
    assert config_from_hf(newer_dialect(d), field="m") == expected
    assert config_from_hf(newer_dialect(d) | d, field="m") == expected


@pytest.mark.parametrize("name", NAMES)
def test_fixtures_survive_the_round_trip(name):
    d = json.loads((FIXTURES / name / "config.json").read_text())
    for longest in (None, LONGEST):
        config = config_from_hf(d, field=name, longest=longest)
        assert config_from_hf(config_to_hf(config), field=name, longest=longest) == config


ROPE = LLAMA_3_2_1B["rope_scaling"]


@pytest.mark.parametrize(
    ("base", "change", "named"),
    [
        (LLAMA_3_2_1B, {"model_type": "mamba"}, "model_type = 'mamba'"),
        (LLAMA_3_2_1B, {"model_type": ["llama"]}, "model_type"),
        (LLAMA_3_2_1B, {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        (LLAMA_3_2_1B, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (LLAMA_3_2_1B, {"pretraining_tp": 2}, "pretraining_tp = 2"),
        (LLAMA_3_2_1B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (LLAMA_3_2_1B, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (LLAMA_3_2_1B, {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        (LLAMA_3_2_1B, {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        (LLAMA_3_2_1B, {"logit_scale": 0.1}, "logit_scale = 0.1"),
        (LLAMA_3_2_1B, {"sliding_window": 4096}, "sliding_window = 4096"),
        (LLAMA_3_2_1B, {"use_sliding_window": True}, "use_sliding_window = true"),
        (LLAMA_3_2_1B, {"layer_types": ["sliding_attention"] * 16}, "layer_types"),
        (LLAMA_3_2_1B, {"layer_types": ["full_attention"] * 15}, "layer_types"),
        (QWEN2_5_05B, {"mlp_bias": True}, "mlp_bias = true"),
        (QWEN2_5_05B, {"use_mrope": True}, "use_mrope = true"),
        (QWEN2_5_05B, {"num_attention_heads": 15}, "hidden_size = 896"),
        (QWEN2_5_05B, {"num_attention_heads": None}, "num_attention_heads = null"),
        (QWEN3_06B, {"head_dim": None}, "head_dim = null"),
        (QWEN3_06B, {"head_dim": 127}, "head_dim = 127"),
        (QWEN3_06B, {"num_key_value_heads": 5}, "num_key_value_heads = 5"),
        (QWEN3_06B, {"vocab_size": -1}, "vocab_size = -1"),
        (QWEN3_06B, {"vocab_size": True}, "vocab_size = true"),
        (QWEN3_06B, {"vocab_size": "151936"}, "vocab_size = '151936'"),
        (QWEN3_06B, {"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        (QWEN3_06B, {"attention_bias": "no"}, "attention_bias = 'no'"),
        (QWEN3_06B, {"rope_theta": 0}, "rope_theta = 0"),
        (QWEN3_06B, {"rope_scaling": 2.0}, "rope_scaling = 2.0"),
        (QWEN3_06B, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
        (QWEN3_06B, {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type = 'dynamic'"),
        (QWEN3_06B, {"rope_scaling": {"type": "linear"}}, "factor = null"),
        (QWEN3_06B, {"rope_scaling": {"mrope_section": [16, 24]}}, "mrope_section"),
        (QWEN3_06B, {"rope_scaling": {"type": "linear", "rope_type": "llama3"}}, "rope_type"),
        (QWEN3_06B, {"rope_parameters": {"rope_theta": 5.0}}, "rope_theta = 1000000"),
        (LLAMA_3_2_1B, {"rope_scaling": ROPE | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        (LLAMA_3_2_1B, {"rope_scaling": ROPE | {"partial_rotary_factor": 0.5}}, "partial_rotary"),
        (LLAMA_3_2_1B, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    ],
)
def test_what_would_compute_something_else_is_refused(base, change, named):
    with pytest.raises(UserError) as caught:
        config_from_hf(base | change, field="agents.1.model")
    assert str(caught.value).startswith("agents.1.model: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
    ],
)
def test_missing_field_is_named(name):
    d = {key: value for key, value in QWEN3_06B.items() if key != name}
    with pytest.raises(UserError, match=f"m: {name} = null"):
        config_from_hf(d, field="m")


def test_all_unknown_fields_are_named():
    with pytest.raises(UserError, match=r"alpha = 1: unknown field.*also unknown: beta"):
        config_from_hf(QWEN3_06B | {"beta": 2, "alpha": 1}, field="m")


def test_inexpressible_config_is_not_written():
    config = config_from_hf(QWEN2_5_05B, field="m")
    with pytest.raises(ValueError, match="cannot express"):
        config_to_hf(dataclasses.replace(config, mlp_bias=True))
    with pytest.raises(ValueError, match="cannot express"):
        config_to_hf(dataclasses.replace(config, qkv_bias=False))


@given(
    heads=st.integers(1, 4),
    per_kv=st.integers(1, 4),
    half_head=st.integers(1, 64),
    theta=st.floats(1.0, 1e8),
    scaling=st.none()
    | st.builds(RopeScaling, st.just("linear"), st.floats(1.0, 64.0))
    | st.builds(
        RopeScaling,
        st.just("llama3"),
        st.floats(1.0, 64.0),
        st.floats(0.5, 2.0),
        st.floats(2.5, 9.0),
        st.integers(1, 10**6),
    ),
    bias=st.booleans(),
    tie=st.booleans(),
)
def test_any_expressible_config_survives_json(heads, per_kv, half_head, theta, scaling, bias, tie):
    config = ModelConfig(
        model_type="qwen3",
        vocab_size=7,
        hidden_size=12,
        intermediate_size=5,
        num_layers=3,
        num_heads=heads * per_kv,
        num_kv_heads=heads,
        head_dim=2 * half_head,
        max_position_embeddings=99,
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        tie_word_embeddings=tie,
    )
    assert config_from_hf(json.loads(json.dumps(config_to_hf(config))), field="m") == config
