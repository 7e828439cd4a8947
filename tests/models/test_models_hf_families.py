"""config.json of families with windows, fused tensors or two rotary tables, and back."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.errors import UserError
from hacpo_jax.models import ModelConfig, RopeScaling, config_from_hf, config_to_hf
from hacpo_jax.models.rope import attention_factor, inverse_frequencies

# What the published files hold, written down by hand; the divisors of Phi-4-mini are made up.
MISTRAL_7B_V03 = {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.0.dev0",
    "use_cache": True,
    "vocab_size": 32768,
}
MISTRAL_7B_V01 = MISTRAL_7B_V03 | {"sliding_window": 4096, "rope_theta": 10000.0}
MINISTRAL_8B = MISTRAL_7B_V03 | {
    "head_dim": 128,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "rope_theta": 100000000.0,
    "sliding_window": 32768,
    "vocab_size": 131072,
}
QWEN2_7B_WINDOW = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 26,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 4096,
    "use_sliding_window": True,
    "vocab_size": 152064,
}
PHI3_MINI_4K = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32064,
}
LONGROPE = {
    "long_factor": [1.0 + 0.5 * i for i in range(48)],
    "short_factor": [1.0] * 47 + [1.5],
    "type": "longrope",
}
PHI4_MINI = PHI3_MINI_4K | {
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
    "rope_scaling": LONGROPE,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}
LAYERS = ["full_attention", *["sliding_attention"] * 3]


def newer_dialect(d: dict) -> dict:
    """The same file as transformers 5 writes it: everything rotary in one object."""
    d = dict(d)
    scaling = d.pop("rope_scaling", None) or {"type": "default"}
    rope = {"rope_type": scaling["type"], "rope_theta": d.pop("rope_theta")} | {
        key: value for key, value in scaling.items() if key != "type"
    }
    if "partial_rotary_factor" in d:
        rope["partial_rotary_factor"] = d.pop("partial_rotary_factor")
        rope["original_max_position_embeddings"] = d["original_max_position_embeddings"]
    return d | {"rope_parameters": rope}


def test_mistral_has_one_window_or_none():
    config = config_from_hf(MISTRAL_7B_V03, field="m")
    assert (config.model_type, config.windows, config.head_dim) == ("mistral", (), 128)
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)
    assert config_from_hf(MISTRAL_7B_V01, field="m").windows == (4096,) * 32


def test_ministral_alternates():
    """A Mistral that lists its layers is a Ministral, as transformers has it too."""
    assert config_from_hf(MINISTRAL_8B, field="m").windows == (32768,) * 36
    listed = config_from_hf(MINISTRAL_8B | {"layer_types": LAYERS * 9}, field="m")
    assert listed.model_type == "ministral"
    assert listed.windows == (None, 32768, 32768, 32768) * 9
    named = MINISTRAL_8B | {"model_type": "ministral", "architectures": ["MinistralForCausalLM"]}
    assert config_from_hf(named | {"layer_types": LAYERS * 9}, field="m") == listed
    assert config_from_hf(named, field="m").windows == (32768,) * 36
    assert config_from_hf(named | {"sliding_window": None}, field="m").windows == ()


def test_windows_of_qwen_follow_the_flag():
    config = config_from_hf(QWEN2_7B_WINDOW, field="m")
    assert config.windows == (None,) * 26 + (4096,) * 2
    off = config_from_hf(QWEN2_7B_WINDOW | {"use_sliding_window": False}, field="m")
    assert off.windows == ()
    listed = config_from_hf(QWEN2_7B_WINDOW | {"layer_types": LAYERS * 7}, field="m")
    assert listed.windows == (None, 4096, 4096, 4096) * 7
    every = config_from_hf(QWEN2_7B_WINDOW | {"max_window_layers": 0}, field="m")
    assert every.windows == (4096,) * 28
    no_layer = config_from_hf(QWEN2_7B_WINDOW | {"max_window_layers": 28}, field="m")
    assert no_layer.windows == ()


def test_phi3_is_read():
    assert config_from_hf(PHI3_MINI_4K, field="m") == ModelConfig(
        model_type="phi3",
        vocab_size=32064,
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        head_dim=96,
        max_position_embeddings=4096,
        rms_norm_eps=1e-05,
        windows=(2047,) * 32,
        tie_word_embeddings=False,
    )


@pytest.mark.parametrize(
    ("longest", "positions"), [(None, 4096), (4096, 4096), (4097, 131072), (131072, 131072)]
)
def test_run_decides_the_context_of_longrope(longest, positions):
    config = config_from_hf(PHI4_MINI, field="m", longest=longest)
    assert config.max_position_embeddings == positions
    assert (config.head_dim, config.rotary_dim) == (128, 96)
    scaling = config.rope_scaling
    assert scaling == RopeScaling(
        "longrope",
        32.0,
        original_max_position=4096,
        max_position=131072,
        short_factors=(1.0,) * 47 + (1.5,),
        long_factors=tuple(1.0 + 0.5 * i for i in range(48)),
    )
    # ln 32 / ln 4096 = 5 / 12.
    assert attention_factor(scaling) == pytest.approx(math.sqrt(17 / 12))
    plain = 1e4 ** (-np.arange(48) / 48)
    divisors = scaling.short_factors if positions == 4096 else scaling.long_factors
    np.testing.assert_allclose(inverse_frequencies(config), plain / np.array(divisors), rtol=1e-6)
    assert config_to_hf(config)["max_position_embeddings"] == 131072


def test_attention_factor_may_be_given():
    given_in_file = PHI4_MINI | {"rope_scaling": LONGROPE | {"attention_factor": 1.25}}
    assert attention_factor(config_from_hf(given_in_file, field="m").rope_scaling) == 1.25
    ratio = PHI4_MINI | {"rope_scaling": LONGROPE | {"factor": 4096.0}}
    assert attention_factor(config_from_hf(ratio, field="m").rope_scaling) == math.sqrt(2)
    shorter = PHI4_MINI | {"rope_scaling": LONGROPE | {"factor": 0.5}}
    assert attention_factor(config_from_hf(shorter, field="m").rope_scaling) == 1.0


def test_first_phi3_files_call_longrope_su():
    old = PHI4_MINI | {"rope_scaling": LONGROPE | {"type": "su"}}
    assert config_from_hf(old, field="m") == config_from_hf(PHI4_MINI, field="m")


@pytest.mark.parametrize("d", [MISTRAL_7B_V01, MINISTRAL_8B, PHI3_MINI_4K, PHI4_MINI])
def test_both_dialects_say_the_same(d):
    expected = config_from_hf(d, field="m")
    assert config_from_hf(newer_dialect(d), field="m") == expected
    assert config_from_hf(newer_dialect(d) | d, field="m") == expected


@pytest.mark.parametrize(
    ("base", "change", "named"),
    [
        (MISTRAL_7B_V01, {"sliding_window": 0}, "sliding_window = 0"),
        (MISTRAL_7B_V01, {"sliding_window": "4096"}, "sliding_window = '4096'"),
        (MISTRAL_7B_V01, {"layer_types": LAYERS * 8}, "head_dim = null"),  # a Ministral now
        (MISTRAL_7B_V01, {"attention_bias": True}, "attention_bias = true"),
        (MISTRAL_7B_V01, {"num_key_value_heads": None}, "num_key_value_heads = null"),
        (MINISTRAL_8B, {"layer_types": LAYERS}, "layer_types"),
        (MINISTRAL_8B, {"layer_types": ["chunked_attention"] * 36}, "layer_types"),
        (MINISTRAL_8B, {"layer_types": LAYERS * 9, "sliding_window": None}, "layer_types"),
        (QWEN2_7B_WINDOW, {"sliding_window": None}, "sliding_window = null"),
        (QWEN2_7B_WINDOW, {"use_sliding_window": "yes"}, "use_sliding_window = 'yes'"),
        (QWEN2_7B_WINDOW, {"max_window_layers": None}, "max_window_layers = null"),
        (QWEN2_7B_WINDOW, {"max_window_layers": -1}, "max_window_layers = -1"),
        (QWEN2_7B_WINDOW, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (QWEN2_7B_WINDOW, {"rope_scaling": LONGROPE}, "type = 'longrope'"),
        (PHI3_MINI_4K, {"resid_pdrop": 0.1}, "resid_pdrop = 0.1"),
        (PHI3_MINI_4K, {"embd_pdrop": 0.1}, "embd_pdrop = 0.1"),
        (PHI3_MINI_4K, {"attention_bias": True}, "attention_bias = true"),
        (PHI3_MINI_4K, {"layer_types": ["full_attention"] * 32}, "layer_types"),
        (PHI3_MINI_4K, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "type = 'linear'"),
        (PHI4_MINI, {"full_attn_mod": 2}, "full_attn_mod = 2"),
        (PHI4_MINI, {"interpolate_factor": 2}, "interpolate_factor = 2"),
        (PHI4_MINI, {"lm_head_bias": True}, "lm_head_bias = true"),
        (PHI4_MINI, {"mlp_bias": True}, "mlp_bias = true"),
        (PHI4_MINI, {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
        (PHI4_MINI, {"partial_rotary_factor": 0.7}, "partial_rotary_factor = 0.7:"),  # 89.6
        (PHI4_MINI, {"partial_rotary_factor": 0.5}, "short_factor"),  # too many divisors
        (PHI4_MINI, {"original_max_position_embeddings": None}, "original_max_position_embedd"),
        (PHI4_MINI, {"rope_scaling": LONGROPE | {"type": "yarn"}}, "type = 'yarn'"),
        (PHI4_MINI, {"rope_scaling": LONGROPE | {"long_mscale": 1.2}}, "long_mscale = 1.2"),
        (PHI4_MINI, {"rope_scaling": LONGROPE | {"long_factor": [1.0] * 47}}, "long_factor"),
        (PHI4_MINI, {"rope_scaling": LONGROPE | {"long_factor": [0.0] * 48}}, "long_factor"),
        (PHI4_MINI, {"rope_scaling": LONGROPE | {"attention_factor": 0}}, "attention_factor = 0"),
        (
            PHI4_MINI,
            {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 2048}},
            "original_max_position_embeddings = 2048",
        ),
        (
            PHI4_MINI,
            {"rope_parameters": {"partial_rotary_factor": 1.0}},
            "partial_rotary_factor = 0.75",
        ),
    ],
)
def test_what_would_compute_something_else_is_refused(base, change, named):
    with pytest.raises(UserError) as caught:
        config_from_hf(base | change, field="agents.1.model")
    assert str(caught.value).startswith("agents.1.model: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_window_must_be_mentioned():
    """Absent, transformers would take 4096 for a Mistral."""
    d = {key: value for key, value in MISTRAL_7B_V03.items() if key != "sliding_window"}
    with pytest.raises(UserError, match=r"sliding_window = null: missing.*null for none"):
        config_from_hf(d, field="m")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma3_text", "norms"),
        ("qwen3_moe", "mixtures of experts"),
        ("ministral3", "yarn"),
        ("mistral3", "images"),
    ],
)
def test_families_left_out_are_refused_by_name(name, reason):
    with pytest.raises(UserError, match=f"model_type = '{name}': not supported: .*{reason}"):
        config_from_hf({"model_type": name, "vocab_size": 9}, field="m")


def test_inexpressible_windows_are_not_written():
    mistral = config_from_hf(MISTRAL_7B_V01, field="m")
    with pytest.raises(ValueError, match="cannot express"):
        config_to_hf(dataclasses.replace(mistral, windows=(None, *mistral.windows[1:])))
    ministral = config_from_hf(MINISTRAL_8B | {"layer_types": LAYERS * 9}, field="m")
    two_sizes = dataclasses.replace(ministral, windows=(7, *ministral.windows[1:]))
    with pytest.raises(ValueError, match="cannot express"):
        config_to_hf(two_sizes)


divisors = st.lists(st.floats(1.0, 64.0), min_size=3, max_size=3).map(tuple)


@given(
    family=st.sampled_from(["mistral", "ministral", "qwen2", "qwen3", "phi3"]),
    size=st.integers(1, 99),
    slides=st.lists(st.booleans(), min_size=3, max_size=3),
    factors=st.none() | st.tuples(divisors, divisors),
    factor=st.none() | st.floats(0.5, 64.0),
    attention=st.none() | st.floats(0.5, 2.0),
    extended=st.booleans(),
)
def test_any_expressible_config_survives_json(
    family, size, slides, factors, factor, attention, extended
):
    by_layer = family not in ("mistral", "phi3")
    windows = tuple(size if (slide if by_layer else slides[0]) else None for slide in slides)
    scaling = None
    if family == "phi3" and factors is not None:
        scaling = RopeScaling(
            "longrope",
            factor or 4.0,
            original_max_position=16,
            max_position=64,
            short_factors=factors[0],
            long_factors=factors[1],
            attention_factor=attention,
        )
    config = ModelConfig(
        model_type=family,
        vocab_size=7,
        hidden_size=16,
        intermediate_size=5,
        num_layers=3,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=16 if scaling and not extended else 64,
        rope_scaling=scaling,
        partial_rotary_factor=0.75 if family == "phi3" else 1.0,
        windows=windows if any(windows) else (),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
    )
    again = json.loads(json.dumps(config_to_hf(config)))
    assert config_from_hf(again, field="m", longest=config.max_position_embeddings) == config
