"""One decoder for the Llama and Qwen families, in Flax NNX.

Every array is declared once, with its shape, logical axes and initialiser; sharding, restoring
and planning read that declaration. Layers are stacked on a leading axis and scanned, so compile
time does not grow with depth.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from hacpo_jax.models.attention import KeyValues, causal_attention, shared_prompt_attention
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.rope import rotate, rotation

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _weight(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], fan_in: int):
    value = jax.random.normal(rngs.params(), shape, jnp.float32) * fan_in**-0.5
    return nnx.Param(value, axes=axes)


def _constant(value: float, shape: tuple[int, ...], axes: tuple[str, ...]):
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Divide by the root mean square over the last axis, in float32 (arXiv 1910.07467)."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight.astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention weights of all layers; applied to one layer's slice."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
        layers, embed, n, k, d = (
            c.num_layers,
            c.hidden_size,
            c.num_heads,
            c.num_kv_heads,
            c.head_dim,
        )
        q_axes = ("layers", "embed", "heads", "head_dim")
        kv_axes = ("layers", "embed", "kv_heads", "head_dim")
        o_axes = ("layers", "heads", "head_dim", "embed")
        self.q = _weight(rngs, (layers, embed, n, d), q_axes, embed)
        self.k = _weight(rngs, (layers, embed, k, d), kv_axes, embed)
        self.v = _weight(rngs, (layers, embed, k, d), kv_axes, embed)
        self.o = _weight(rngs, (layers, n, d, embed), o_axes, n * d)
        if c.qkv_bias:
            self.q_bias = _constant(0.0, (layers, n, d), ("layers", "heads", "head_dim"))
            self.k_bias = _constant(0.0, (layers, k, d), ("layers", "kv_heads", "head_dim"))
            self.v_bias = _constant(0.0, (layers, k, d), ("layers", "kv_heads", "head_dim"))
        if c.output_bias:
            self.o_bias = _constant(0.0, (layers, embed), ("layers", "embed"))
        if c.qk_norm:
            self.q_norm = _constant(1.0, (layers, d), ("layers", "head_dim"))
            self.k_norm = _constant(1.0, (layers, d), ("layers", "head_dim"))
        self.config = c

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, attend: Attend):
        c = self.config
        q = jnp.einsum("bth,hnd->btnd", x, self.q[...].astype(x.dtype))
        k = jnp.einsum("bth,hkd->btkd", x, self.k[...].astype(x.dtype))
        v = jnp.einsum("bth,hkd->btkd", x, self.v[...].astype(x.dtype))
        if c.qkv_bias:
            q += self.q_bias[...].astype(x.dtype)
            k += self.k_bias[...].astype(x.dtype)
            v += self.v_bias[...].astype(x.dtype)
        if c.qk_norm:
            q = rms_norm(q, self.q_norm[...], c.rms_norm_eps)
            k = rms_norm(k, self.k_norm[...], c.rms_norm_eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = jnp.einsum("btnd,ndh->bth", attend(q, k, v), self.o[...].astype(x.dtype))
        if c.output_bias:
            out += self.o_bias[...].astype(x.dtype)
        return out, (k, v)


class MLP(nnx.Module):
    """Gated MLP (SwiGLU, arXiv 2002.05202) weights of all layers; applied to one layer's slice."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
        layers, embed, inner = c.num_layers, c.hidden_size, c.intermediate_size
        self.gate = _weight(rngs, (layers, embed, inner), ("layers", "embed", "mlp"), embed)
        self.up = _weight(rngs, (layers, embed, inner), ("layers", "embed", "mlp"), embed)
        self.down = _weight(rngs, (layers, inner, embed), ("layers", "mlp", "embed"), inner)
        if c.mlp_bias:
            self.gate_bias = _constant(0.0, (layers, inner), ("layers", "mlp"))
            self.up_bias = _constant(0.0, (layers, inner), ("layers", "mlp"))
            self.down_bias = _constant(0.0, (layers, embed), ("layers", "embed"))
        self.config = c

    def __call__(self, x: jax.Array) -> jax.Array:
        gate = x @ self.gate[...].astype(x.dtype)
        up = x @ self.up[...].astype(x.dtype)
        if self.config.mlp_bias:
            gate += self.gate_bias[...].astype(x.dtype)
            up += self.up_bias[...].astype(x.dtype)
        out = (jax.nn.silu(gate) * up) @ self.down[...].astype(x.dtype)
        if self.config.mlp_bias:
            out += self.down_bias[...].astype(x.dtype)
        return out


class Layer(nnx.Module):
    """Pre-norm decoder layer: attention and MLP, each added to the residual stream."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
        norm_shape, norm_axes = (c.num_layers, c.hidden_size), ("layers", "embed")
        self.attention_norm = _constant(1.0, norm_shape, norm_axes)
        self.attention = Attention(c, rngs)
        self.mlp_norm = _constant(1.0, norm_shape, norm_axes)
        self.mlp = MLP(c, rngs)
        self.config = c

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, attend: Attend):
        eps = self.config.rms_norm_eps
        out, key_value = self.attention(
            rms_norm(x, self.attention_norm[...], eps), cos, sin, attend
        )
        x = x + out
        return x + self.mlp(rms_norm(x, self.mlp_norm[...], eps)), key_value


class Decoder(nnx.Module):
    """A decoder-only language model without its softmax: it returns final hidden states.

    Log-probs are computed from hidden states and `unembedding` in blocks, so logits of a whole
    batch never exist (see `hacpo_jax.training.log_probs`).

    Args:
      config: the model's shape.
      rngs: source of the initial weights; use `nnx.eval_shape` for shapes alone.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        table = (config.vocab_size, config.hidden_size)
        self.embedding = _weight(rngs, table, ("vocab", "embed"), config.hidden_size)
        self.layers = Layer(config, rngs)
        self.final_norm = _constant(1.0, (config.hidden_size,), ("embed",))
        if not config.tie_word_embeddings:
            self.head = _weight(rngs, table, ("vocab", "embed"), config.hidden_size)
        self.config = config

    def unembedding(self) -> jax.Array:
        """The output head, `[V, H]`: the embedding itself when tied."""
        return (self.embedding if self.config.tie_word_embeddings else self.head)[...]

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        valid: jax.Array,
        *,
        dtype: jnp.dtype,
        remat: bool = False,
    ) -> jax.Array:
        """Final hidden states of whole sequences.

        Args:
          tokens: `[B, T]` ids; any value in range at padding.
          positions: `[B, T]` position of each token within its own sequence.
          valid: `[B, T]`, False at padding, which may be on either side.
          dtype: dtype of the activations.
          remat: recompute each layer's inside in the backward pass instead of storing it.

        Returns:
          `[B, T, H]` in `dtype`.
        """

        def run(layer: Layer, x, cos, sin):
            return layer(x, cos, sin, lambda q, k, v: causal_attention(q, k, v, valid))[0], None

        return self._scan(run, tokens, positions, dtype, remat=remat)[0]

    def prefill(
        self, tokens: jax.Array, positions: jax.Array, valid: jax.Array, *, dtype: jnp.dtype
    ) -> tuple[jax.Array, KeyValues]:
        """As `__call__`, with the keys and values of every layer, `[L, B, kv_heads, T, D]`."""

        def run(layer: Layer, x, cos, sin):
            x, (k, v) = layer(x, cos, sin, lambda q, k, v: causal_attention(q, k, v, valid))
            return x, KeyValues(k.swapaxes(1, 2), v.swapaxes(1, 2))

        return self._scan(run, tokens, positions, dtype)

    def decode(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        prompt: KeyValues,
        prompt_valid: jax.Array,
        generated: KeyValues,
        num_generated: jax.Array,
        *,
        dtype: jnp.dtype,
    ) -> tuple[jax.Array, KeyValues]:
        """One new token of each of G responses to each of P prompts.

        Args:
          tokens: `[P, G]` the newest token of each response.
          positions: `[P, G]` its position, prompt included.
          prompt: `[L, P, kv_heads, S, D]`, stored once per prompt.
          prompt_valid: `[P, S]`, False at padding.
          generated: `[L, P, G, kv_heads, C, D]`, only read.
          num_generated: scalar, filled positions of `generated`.
          dtype: dtype of the activations.

        Returns:
          Hidden states `[P, G, H]` and the new token's keys and values `[L, P, G, kv_heads, D]`,
          which the caller writes at `num_generated`.
        """

        def run(layer: Layer, x, cos, sin, prompt_slice, generated_slice):
            def attend(q, k, v):
                return shared_prompt_attention(
                    q, k, v, prompt_slice, prompt_valid, generated_slice, num_generated
                )

            x, (k, v) = layer(x, cos, sin, attend)
            return x, KeyValues(k, v)

        return self._scan(run, tokens, positions, dtype, prompt, generated)

    def _scan(self, run, tokens, positions, dtype, *per_layer, remat=False):
        """Embed, run every layer in turn (`per_layer` is sliced with the weights), normalise."""
        structure, weights = nnx.split(self.layers)
        cos, sin = rotation(self.config, positions)

        def body(x, slices):
            return run(nnx.merge(structure, slices[0]), x, cos, sin, *slices[1:])

        x = self.embedding[...].astype(dtype)[tokens]
        x, out = jax.lax.scan(jax.checkpoint(body) if remat else body, x, (weights, *per_layer))
        return rms_norm(x, self.final_norm[...], self.config.rms_norm_eps), out
