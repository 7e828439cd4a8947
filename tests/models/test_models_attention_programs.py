"""Programs for TPUs and NVIDIA GPUs that are not here: splash compiles, cuDNN gets its calls."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hacpo_jax.models import ModelConfig, abstract_params, bind, choose_attention

LENGTH, ROWS = 301, 4
BFLOAT16 = jnp.dtype("bfloat16")
MODEL = ModelConfig(
    model_type="ministral",
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    max_position_embeddings=512,
)
MIXED = dataclasses.replace(MODEL, windows=(64, None))


def arguments(config: ModelConfig, num_agents: int, mesh: Mesh | None = None, batched=True):
    """Shapes of parameters, tokens, positions and validity."""

    def shape(dims, dtype, *names):
        sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec(*names))
        return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)

    params = jax.tree.map(lambda x: shape((num_agents, *x.shape), x.dtype), abstract_params(config))
    dims = (num_agents, ROWS, LENGTH) if batched else (ROWS, LENGTH)
    dtypes = (jnp.int32, jnp.int32, jnp.bool_)
    return params, *(shape(dims, dtype, None, ("data", "fsdp")) for dtype in dtypes)


def gradient(config: ModelConfig, attention: str, remat: bool):
    """Of every agent's parameters."""

    def loss(params, tokens, positions, valid):
        model = bind(config, params)
        hidden = model(tokens, positions, valid, dtype=BFLOAT16, remat=remat, attention=attention)
        return (hidden.astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.vmap(jax.grad(loss), spmd_axis_name="agent"))


@pytest.fixture(scope="module")
def tpu_mesh():
    """Four chips of a TPU v5e that need not be there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")  # there is no cloud to ask
        patch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no chip is taken
        devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    axes = ("agent", "data", "fsdp", "tensor")
    return Mesh(np.array(devices).reshape(1, 2, 1, 2), axes, axis_types=(AxisType.Auto,) * 4)


@pytest.mark.parametrize(
    ("config", "num_agents", "remat", "calls"),
    [
        # A forward and two backward kernels for all layers alike, in one scan.
        (dataclasses.replace(MODEL, num_kv_heads=1), 1, False, {"fwd": 1, "dq": 1, "dkv": 1}),
        # Twice as many for two windows, and the forward kernels again for remat.
        (MIXED, 2, True, {"fwd": 4, "dq": 2, "dkv": 2}),
    ],
    ids=["alike", "mixed"],
)
def test_tpus_choice_compiles_for_a_mesh_of_them(tpu_mesh, config, num_agents, remat, calls):
    attention = choose_attention("auto", config, BFLOAT16, device=tpu_mesh.devices.flat[0])
    assert attention == "splash"
    with jax.set_mesh(tpu_mesh):
        lowered = gradient(config, attention, remat).lower(*arguments(config, num_agents, tpu_mesh))
        program = lowered.compile().as_text()
    kernels = re.findall(r"^\s*(?:ROOT )?%splash_mha_(fwd|dq|dkv)\w*[.\d]* = ", program, re.M)
    assert {name: kernels.count(name) for name in calls} == calls
    # On each chip: its agents, half of 4 rows, half of 4 heads; 301 tokens in 3 blocks of 128.
    assert f"bf16[{num_agents},2,2,384,64]" in program
    assert f"{LENGTH},{LENGTH}]" not in program and "384,384]" not in program


@pytest.fixture
def cudnn_found(monkeypatch):
    """Programs for CUDA are made here as if cuDNN were installed; nothing runs."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91200)


def cudnn_calls(lowered) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """Name, mask, window (0 for none) and operands' types of each call."""
    found = []
    for line in lowered.as_text().splitlines():
        call = re.search(r"@__cudnn\$fmha(\w+)\(", line)
        if call:
            mask = re.search(r"mask_type\\22: \\22(\w+)", line)
            window = re.search(r"sliding_window_length\\22: (\d+)", line)
            types = line[line.rindex(" : (") + 4 : line.rindex(") -> ")]
            assert mask and window
            found.append((call[1], mask[1], int(window[1]), tuple(types.split(", "))))
    return found


@pytest.mark.parametrize(("config", "windows"), [(MODEL, [0]), (MIXED, [64, 0])])
def test_cudnn_is_given_lengths_and_windows_and_no_bias(config, windows, cudnn_found):
    traced = gradient(config, "cudnn", remat=False).trace(*arguments(config, 2))
    calls = cudnn_calls(traced.lower(lowering_platforms=("cuda",)))
    # Both agents' 4 rows in one call, of 301 tokens and one more: cuDNN wants an even number.
    q, kv, lengths = "tensor<8x302x4x64xbf16>", "tensor<8x302x2x64xbf16>", "tensor<8xi32>"
    statistics = "tensor<8x4x302xf32>"
    forward = (q, kv, kv, lengths, lengths)
    backward = (q, kv, kv, statistics, q, q, lengths, lengths)
    assert calls == [
        *(("Softmax", "PADDING_CAUSAL", window, forward) for window in windows),
        *(("SoftmaxBackward", "PADDING_CAUSAL", window, backward) for window in windows),
    ]


def test_cudnn_in_the_prefill_of_prompts_that_agents_share(cudnn_found):
    def prefill(params, tokens, positions, valid):
        model = bind(MODEL, params)
        return model.prefill(tokens, positions, valid, dtype=BFLOAT16, attention="cudnn")

    over_agents = jax.jit(jax.vmap(prefill, in_axes=(0, None, None, None)))
    traced = over_agents.trace(*arguments(MODEL, 2, batched=False))
    ((name, mask, _, types),) = cudnn_calls(traced.lower(lowering_platforms=("cuda",)))
    assert (name, mask) == ("Softmax", "PADDING_CAUSAL")
    assert types[0] == "tensor<8x302x4x64xbf16>" and types[-1] == "tensor<8xi32>"


def test_cudnn_on_a_mesh_gets_each_devices_share(cudnn_found):
    """A key's head for all queries is copied to both devices of `tensor`."""
    config = dataclasses.replace(MODEL, num_kv_heads=1)
    axes = ("agent", "data", "fsdp", "tensor")
    with jax.set_mesh(jax.make_mesh((2, 1, 2, 2), axes, axis_types=(AxisType.Auto,) * 4)):
        traced = gradient(config, "cudnn", remat=True).trace(*arguments(config, 2))
        calls = cudnn_calls(traced.lower(lowering_platforms=("cuda",)))
    assert [name for name, *_ in calls] == ["Softmax", "Softmax", "SoftmaxBackward"]
    for _, _, _, (q, k, *_) in calls:
        assert (q, k) == ("tensor<2x302x2x64xbf16>", "tensor<2x302x1x64xbf16>")
