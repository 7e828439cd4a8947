"""Fused attention against the plain path: splash interpreted, cuDNN's with XLA in its place."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    MIXED,
    MODEL,
    assert_close,
    hidden_and_gradients,
    make_case,
    model_batch,
    model_params,
    plain_hidden_and_gradients,
    rows,
)

from hacpo_jax.errors import UserError
from hacpo_jax.models import bind, choose_attention
from hacpo_jax.models.flash_attention import cudnn_attention, layer_attention, splash_attention

# Shares of the largest element; measured: at most 8e-7 and 2^-7.
FLOAT32, BFLOAT16 = 5e-6, 2.0**-6


@pytest.mark.parametrize(
    ("length", "heads", "kv_heads", "size", "window"),
    [
        (37, 4, 2, 64, None),
        (37, 2, 2, 128, 1),
        (131, 4, 1, 128, 50),
        (300, 4, 2, 64, 140),
    ],
)
def test_splash_is_plain_attention(length, heads, kv_heads, size, window):
    case = make_case(length, heads, kv_heads, size)
    got = case.outcomes(
        lambda q, k, v: splash_attention(q, k, v, case.valid, window, interpret=True)
    )
    assert_close(got, case.plain(window), FLOAT32)


@pytest.mark.parametrize("window", [None, 50])
def test_splash_in_bfloat16_rounds_as_plain_attention_does(window):
    case = make_case(131, 4, 2, 64, dtype=jnp.bfloat16)
    got = case.outcomes(
        lambda q, k, v: splash_attention(q, k, v, case.valid, window, interpret=True)
    )
    assert_close(got, case.plain(window), BFLOAT16)


def test_splash_has_a_softmax_in_float32():
    """Logits of 60 and 60.2 are one number in bfloat16; their weights differ by 22%."""
    k = jnp.zeros((1, 2, 1, 64)).at[0, :, 0, :2].set(jnp.array([[60.0, 0.0], [60.0, 0.1992]]))
    q = jnp.zeros((1, 2, 1, 64)).at[0, :, 0, :2].set(8.0)  # divided by sqrt(64)
    v = jnp.zeros((1, 2, 1, 64)).at[0, 1, 0, 0].set(1.0)
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    out = splash_attention(q, k, v, jnp.ones((1, 2), bool), interpret=True)
    step = float(k[0, 1, 0, 1])
    np.testing.assert_allclose(out[0, 1, 0, 0], 1 / (1 + np.exp(-step)), atol=2**-8)


@pytest.mark.parametrize("length", [128, 129, 500, 512, 513, 900, 2000, 8191, 8192])
def test_splash_wastes_little_on_padding(length):
    """Shapes alone: at most 1/8 beyond the next multiple of 128 tokens, in blocks of 128 to 512."""
    shape = jax.ShapeDtypeStruct((1, length, 1, 64), jnp.bfloat16)
    valid = jax.ShapeDtypeStruct((1, length), bool)
    program = str(jax.make_jaxpr(splash_attention)(shape, shape, shape, valid))
    whole = -(-length // 128) * 128
    padded = [n for n in range(whole, whole * 9 // 8 + 1, 128) if f"bf16[1,1,{n},64]" in program]
    assert padded and (whole <= 1024 or padded[0] % 256 == 0)


@pytest.mark.parametrize(("length", "window"), [(38, None), (37, None), (38, 9), (38, 1)])
def test_lengths_and_windows_given_to_cudnn_say_what_the_masks_say(length, window, by_xla):
    case = make_case(length, 4, 2, 16, left=False)
    got = case.outcomes(lambda q, k, v: cudnn_attention(q, k, v, case.valid, window))
    assert_close(got, case.plain(window), FLOAT32)


@pytest.mark.parametrize(("config", "remat"), [(MODEL, False), (MIXED, True)])
def test_a_model_with_cudnn_turns_its_rows_there_and_back(config, remat, by_xla):
    assert_model_agrees(config, "cudnn", remat)


@pytest.mark.parametrize(("config", "remat"), [(MODEL, False), (MIXED, True)])
def test_a_model_with_splash(config, remat, interpreted):
    assert_model_agrees(config, "splash", remat)


def assert_model_agrees(config, attention: str, remat: bool):
    params, batch = model_params(config, 0), model_batch(33, 1)
    got = hidden_and_gradients(config, params, batch, attention, remat=remat)
    assert_close(got, plain_hidden_and_gradients(config, 33, 1), 2e-5)


@pytest.mark.parametrize("attention", ["cudnn", "splash"])
def test_prefill_of_prompts_that_agents_share(attention, by_xla, interpreted):
    """Prompts have no agent axis there, parameters have one; the caches stay where they were."""
    params = model_params(MIXED, 0, 1)
    length = 33
    lengths = np.array([1, 20, 33])[:, None]
    valid = jnp.asarray(np.arange(length) >= length - lengths)
    positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 32, valid.shape))

    def prefill(kind):
        def one_agent(params):
            model = bind(MIXED, params)
            return model.prefill(tokens, positions, valid, dtype=jnp.float32, attention=kind)

        hidden, cache = jax.jit(jax.vmap(one_agent))(params)
        places = valid[:, None, :, None]  # of [A, L, B, kv_heads, T, D]
        return {
            "hidden": np.where(valid[..., None], hidden, 0),
            "keys": np.where(places, cache.keys, 0),
            "values": np.where(places, cache.values, 0),
        }

    assert_close(prefill(attention), prefill("xla"), 2e-5)


def test_short_rows_take_one_branch_whatever_their_windows():
    for length, branches in ((7, None), (8, [0, 1, 1, 0]), (21, [0, 1, 2, 0])):
        positions, valid = rows(length, 1)
        which, _ = layer_attention("splash", (7, None, 20, 7), positions, valid)
        assert which is None if branches is None else which.tolist() == branches


def device(platform: str, kind: str, **attributes):
    return SimpleNamespace(platform=platform, device_kind=kind, **attributes)


CPU = device("cpu", "cpu")
TPU = device("tpu", "TPU v5 lite")
H100 = device("gpu", "NVIDIA H100 80GB HBM3", compute_capability="9.0")
A100 = device("gpu", "NVIDIA A100-SXM4-40GB", compute_capability="8.0")
V100 = device("gpu", "Tesla V100-SXM2-16GB", compute_capability="7.0")
MI300 = device("gpu", "AMD Instinct MI300X", compute_capability="gfx942")
WIDE, ODD = (dataclasses.replace(MODEL, head_dim=size) for size in (256, 84))
BF16, F32 = jnp.dtype("bfloat16"), jnp.dtype("float32")


@pytest.mark.parametrize(
    ("where", "model", "dtype", "chosen"),
    [
        (CPU, MODEL, F32, "xla"),
        (TPU, ODD, BF16, "splash"),
        (TPU, MODEL, F32, "splash"),
        (TPU, MODEL, jnp.dtype("float16"), "xla"),
        (H100, WIDE, BF16, "cudnn"),
        (A100, WIDE, BF16, "xla"),
        (A100, MODEL, BF16, "cudnn"),
        (A100, MODEL, F32, "xla"),
        (H100, ODD, BF16, "xla"),
        (V100, MODEL, BF16, "xla"),
        (MI300, MODEL, BF16, "xla"),
    ],
)
def test_auto_takes_what_runs(where, model, dtype, chosen):
    assert choose_attention("auto", model, dtype, device=where) == chosen
    assert choose_attention(chosen, model, dtype, device=where) == chosen
    assert choose_attention("xla", model, dtype, device=where) == "xla"


@pytest.mark.parametrize(
    ("name", "where", "model", "dtype", "why"),
    [
        ("splash", None, MODEL, F32, r"'splash': runs on TPUs and this is 'cpu'; use auto or xla"),
        ("splash", H100, MODEL, BF16, "this is 'NVIDIA H100 80GB HBM3'"),
        ("splash", TPU, MODEL, jnp.dtype("float16"), "and they are float16"),
        ("cudnn", None, MODEL, BF16, "'cudnn': runs on NVIDIA GPUs .* this is 'cpu'; use auto"),
        ("cudnn", V100, MODEL, BF16, "capability 8.0 or more and this is 'Tesla V100"),
        ("cudnn", MI300, MODEL, BF16, "this is 'AMD"),
        ("cudnn", A100, MODEL, F32, "needs training.compute_dtype=bfloat16, .* are float32"),
        ("cudnn", A100, WIDE, BF16, "up to 128 .* mistral model has head_dim = 256"),
        ("cudnn", H100, ODD, BF16, "multiple of 8, .* head_dim = 84"),
        ("flash", H100, MODEL, BF16, "'flash': must be auto, xla, cudnn or splash"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(name, where, model, dtype, why):
    with pytest.raises(UserError, match=rf"^training\.attention = .*{why}"):
        choose_attention(name, model, dtype, device=where)
