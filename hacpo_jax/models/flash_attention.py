"""Attention of whole sequences by fused kernels, which never hold `[B, heads, T, T]`.

| name | kernel | runs on |
|---|---|---|
| `xla` | none: `causal_attention`, the reference of the others | everything |
| `cudnn` | cuDNN's flash attention, through `jax.nn.dot_product_attention` | NVIDIA GPUs |
| `splash` | JAX's splash attention, in Pallas | TPUs |

Logits, softmax and sums are float32 in all of them; the result has the dtype of the inputs. cuDNN's
backward pass adds up in no fixed order, so that gradients repeat up to rounding only. The kernels
take windows as constants: layers that share one call one kernel, and where layers differ
(Ministral and Qwen with windows in some layers only) each takes its own branch of a `switch`.

The kernels see places in a row in place of positions, so a row's valid tokens must stand side by
side and their positions count up by one.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as mask_info

from hacpo_jax.errors import UserError
from hacpo_jax.models.again import computed_again
from hacpo_jax.models.attention import causal_attention, layer_windows
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.parallel.rules import current_mesh, num_shards, partition_spec

AttentionKind = Literal["xla", "cudnn", "splash"]
LayerAttention = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None], jax.Array]
_Kernel = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]

_LANES = 128  # splash's blocks are multiples of this many tokens
_BLOCKS = (512, 256, _LANES)


def choose_attention(
    name: str,
    model: ModelConfig,
    dtype: jnp.dtype,
    *,
    device: Any = None,
    field: str = "training.attention",
) -> AttentionKind:
    """The implementation that `name` means for one model.

    Args:
      name: `xla`, `cudnn`, `splash`, or `auto`: the platform's own where it can run the model.
      model: shape of the model.
      dtype: of activations.
      device: the `jax.Device` that programs are compiled for, which need not be there; None for
        the first one here.
      field: what errors call the choice.

    Raises:
      UserError: `name` cannot run there, with this dtype or this model.
    """
    device = device or jax.devices()[0]
    if name == "auto":
        if not _splash_obstacle(dtype, device):
            return "splash"
        return "xla" if _cudnn_obstacle(model, dtype, device) else "cudnn"
    if name == "xla":
        return name
    if name == "cudnn":
        obstacle = _cudnn_obstacle(model, dtype, device)
    elif name == "splash":
        obstacle = _splash_obstacle(dtype, device)
    else:
        raise UserError(field, name, "must be auto, xla, cudnn or splash")
    if obstacle:
        raise UserError(field, name, f"{obstacle}; use auto or xla")
    return name


def _splash_obstacle(dtype: jnp.dtype, device: Any) -> str | None:
    if device.platform != "tpu":
        return f"runs on TPUs and this is {device.device_kind!r}"
    if dtype not in (jnp.float32, jnp.bfloat16):
        return f"needs activations in float32 or bfloat16, and they are {dtype}"
    return None


def _cudnn_obstacle(model: ModelConfig, dtype: jnp.dtype, device: Any) -> str | None:
    # "9.0" on NVIDIA GPUs, "gfx90a" or the like on AMD's, absent elsewhere.
    capability = re.fullmatch(r"(\d+)\.\d+", getattr(device, "compute_capability", ""))
    if capability is None or int(capability[1]) < 8:
        needs = "runs on NVIDIA GPUs of compute capability 8.0 or more"
        return f"{needs} and this is {device.device_kind!r}"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"needs training.compute_dtype=bfloat16, and activations are {dtype}"
    largest = 256 if int(capability[1]) >= 9 else 128
    if model.head_dim % 8 or model.head_dim > largest:
        needs = f"needs heads of a multiple of 8, up to {largest} on {device.device_kind!r}"
        return f"{needs}, and a {model.model_type} model has head_dim = {model.head_dim}"
    return None


def layer_attention(
    kind: AttentionKind,
    windows: tuple[int | None, ...],
    positions: jax.Array,
    valid: jax.Array,
) -> tuple[jax.Array | None, LayerAttention]:
    """How each layer of a model attends over whole sequences.

    Args:
      kind: which implementation; with `cudnn`, rows must begin with their first valid token.
      windows: as in `ModelConfig`.
      positions: `[B, T]` position of each token within its own sequence.
      valid: `[B, T]`, False at padding.

    Returns:
      What layers differ in, `[L]` int32, or None where they do not; and the attention of one
      layer, called with q `[B, T, heads, head_dim]`, k and v `[B, T, kv_heads, head_dim]` and the
      layer's element of the former. It returns the shape of q; padding is finite but meaningless.
    """
    longest = valid.shape[1]
    if kind == "xla":

        def plain(q, k, v, window):
            return causal_attention(q, k, v, positions, valid, window)

        # The weights grow with the square of the tokens.
        return layer_windows(windows, longest), computed_again(plain)
    kernel = cudnn_attention if kind == "cudnn" else splash_attention
    seen = [None if w is None or w >= longest else w for w in windows] or [None]
    distinct = list(dict.fromkeys(seen))
    kernels = [functools.partial(kernel, window=window) for window in distinct]
    branches = [functools.partial(_over_mesh, each) for each in kernels]

    def fused(q, k, v, branch):
        if branch is None:
            return branches[0](q, k, v, valid)
        return jax.lax.switch(branch, branches, q, k, v, valid)

    if len(distinct) == 1:
        return None, fused
    return jnp.array([distinct.index(window) for window in seen], jnp.int32), fused


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array, window: int | None = None
) -> jax.Array:
    """cuDNN's flash attention over rows that begin with their first valid token.

    Lengths say what is padding, so that no bias of size `[B, heads, T, T]` is made.

    Args:
      q: `[B, T, heads, head_dim]`, bfloat16 or float16.
      k: `[B, T, kv_heads, head_dim]`.
      v: `[B, T, kv_heads, head_dim]`.
      valid: `[B, T]`, True at the first tokens of each row and False after them.
      window: how many tokens are seen, the token itself included; None for all.

    Returns:
      `[B, T, heads, head_dim]`; 0 at padding.
    """
    lengths = jnp.maximum(valid.sum(axis=1, dtype=jnp.int32), 1)
    # Under vmap the kernel wants lengths to have q's batch axis: this gives it to them, for free.
    lengths = jnp.where(q[:, 0, 0, 0] == 0, lengths, lengths)
    length = q.shape[1]
    if length % 2:  # its backward pass refuses these
        q, k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        is_causal=True,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )
    return out[:, :length]


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    valid: jax.Array,
    window: int | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Splash attention; padding may be on either side.

    Args:
      q: `[B, T, heads, head_dim]`, float32 or bfloat16. It is scaled before the kernel, which
        rounds it once more to its dtype than the plain path does.
      k: `[B, T, kv_heads, head_dim]`.
      v: `[B, T, kv_heads, head_dim]`.
      valid: `[B, T]`, False at padding; padding attends to padding only.
      window: how many tokens are seen, the token itself included; None for all.
      interpret: run the kernel's operations one by one, on any platform.

    Returns:
      `[B, T, heads, head_dim]`; finite, but meaningless, at padding.
    """
    length, heads, head_dim = q.shape[1:]
    block, padded = _blocks(length)
    more = (0, padded - length)
    kernel = _splash_kernel(heads, padded, block, window, interpret)
    segments = jnp.pad(valid.astype(jnp.int32), ((0, 0), more))

    def by_head(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), more, (0, 0), (0, 0))).swapaxes(1, 2)  # [B, heads, T, D]

    scaled = (q.astype(jnp.float32) * head_dim**-0.5).astype(q.dtype)
    segment_ids = splash.SegmentIds(segments, segments)
    out: Any = jax.vmap(kernel)(by_head(scaled), by_head(k), by_head(v), segment_ids)
    return out.swapaxes(1, 2)[:, :length]


def _blocks(length: int) -> tuple[int, int]:
    """Size of blocks, and the length padded to a multiple: large blocks unless they waste 1/8."""
    whole = -(-length // _LANES) * _LANES
    for block in _BLOCKS:
        padded = -(-length // block) * block
        if padded <= whole * 9 // 8:
            return block, padded
    raise AssertionError("the smallest block wastes nothing")


@functools.lru_cache(maxsize=256)
def _splash_kernel(heads: int, length: int, block: int, window: int | None, interpret: bool):
    """The kernel for one row, its masks' tables held by numpy so that any program may use them."""
    shape = (length, length)
    one = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), 0)
    # The fused backward kernel holds a copy of q's gradient for each block of keys (8 times the
    # memory at 8k tokens), and cannot skip blocks outside of a window.
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    # `make_splash_mha` would compute with jax, here within a program for devices that need not be
    # there.
    layout = {"head_shards": 1, "q_seq_shards": 1, "downcast_smem_data": True}
    all_heads = masks.MultiHeadMask([one] * heads)
    by_queries, visible = mask_info.process_mask(all_heads, (block, block), **layout)
    by_keys, _ = mask_info.process_mask_dkv(all_heads, (block, block), **layout)
    return splash.SplashAttentionKernel(
        by_queries,
        by_queries,
        by_keys,
        block_sizes=sizes,
        is_mqa=False,
        save_residuals=False,
        mask_value=splash.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=visible,
        interpret=interpret,
    )


def _over_mesh(
    kernel: _Kernel, q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array
) -> jax.Array:
    """Calls `kernel` once per device of the current mesh, if any, with its rows and heads.

    The compiler cannot divide a kernel. Rows and heads lie as `hacpo_jax.parallel.rules` says. Each
    device gets the key and value heads that its query heads look at: its share of them, or
    copies where they are fewer than, or not divided by, the size of `tensor`. Axes that do not
    divide rows or heads repeat the work.
    """
    sizes = current_mesh()
    if sizes is None:
        return kernel(q, k, v, valid)
    heads = q.shape[2]
    group, share = heads // k.shape[2], heads // num_shards("heads", heads)
    copies = group // math.gcd(group, share)
    k, v = jnp.repeat(k, copies, axis=2), jnp.repeat(v, copies, axis=2)
    by_head = partition_spec(("rows", None, "heads"), q.shape, sizes)
    # Kernels do not say which axes their outputs vary over, hence no check of that.
    return jax.shard_map(
        kernel,
        in_specs=(by_head, by_head, by_head, partition_spec(("rows",), valid.shape, sizes)),
        out_specs=by_head,
        check_vma=False,
    )(q, k, v, valid)
