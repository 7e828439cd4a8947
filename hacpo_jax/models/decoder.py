"""One decoder for the Llama, Mistral, Qwen and Phi families, in Flax NNX.

Every array is declared once, with its shape, logical axes and initialiser; sharding, restoring
and planning read that declaration. Layers are stacked on a leading axis and scanned, so compile
time does not grow with depth.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hacpo_jax.models.again import computed_again
from hacpo_jax.models.attention import KeyValues, layer_windows, shared_prompt_attention
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.declared import constant, declare, times, times_normed, weight
from hacpo_jax.models.embedding import embed, embed_into
from hacpo_jax.models.flash_attention import AttentionKind, layer_attention
from hacpo_jax.models.lora import whole
from hacpo_jax.models.norm import rms_norm
from hacpo_jax.models.rope import rotate, rotation
from hacpo_jax.models.shared_prompts import (
    Answers,
    shared_attention,
    side_by_side,
    states_before,
    turn,
)
from hacpo_jax.parallel.rules import constrain

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Attention(nnx.Module):
    """Grouped-query attention weights of all layers; applied to one layer's slice."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
        layers, n, k, d = c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim
        embed = {"embed": c.hidden_size}
        heads, kv_heads = {"heads": n, "head_dim": d}, {"kv_heads": k, "head_dim": d}
        declare(self, c, rngs, "q", embed, heads)
        declare(self, c, rngs, "k", embed, kv_heads)
        declare(self, c, rngs, "v", embed, kv_heads)
        declare(self, c, rngs, "o", heads, embed)
        if c.qkv_bias:
            self.q_bias = constant(0.0, (layers, n, d), ("layers", "heads", "head_dim"))
            self.k_bias = constant(0.0, (layers, k, d), ("layers", "kv_heads", "head_dim"))
            self.v_bias = constant(0.0, (layers, k, d), ("layers", "kv_heads", "head_dim"))
        if c.output_bias:
            self.o_bias = constant(0.0, (layers, c.hidden_size), ("layers", "embed"))
        if c.qk_norm:
            self.q_norm = constant(1.0, (layers, d), ("layers", "head_dim"))
            self.k_norm = constant(1.0, (layers, d), ("layers", "head_dim"))
        self.config = c

    def __call__(
        self, x: jax.Array, norm: jax.Array, cos: jax.Array, sin: jax.Array, attend: Attend
    ):
        c = self.config
        # [B, T, heads, head_dim], and twice [B, T, kv_heads, head_dim]
        q, k, v = times_normed(self, c, ("q", "k", "v"), x, norm)
        if c.qkv_bias:
            q += self.q_bias[...].astype(x.dtype)
            k += self.k_bias[...].astype(x.dtype)
            v += self.v_bias[...].astype(x.dtype)
        if c.qk_norm:
            q = rms_norm(q, self.q_norm[...], c.rms_norm_eps)
            k = rms_norm(k, self.k_norm[...], c.rms_norm_eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q = constrain(q, "rows", None, "heads")
        k = constrain(k, "rows", None, "kv_heads")
        v = constrain(v, "rows", None, "kv_heads")
        out = times(self, c, "o", attend(q, k, v), axes=2)
        if c.output_bias:
            out += self.o_bias[...].astype(x.dtype)
        return out, (k, v)


class MLP(nnx.Module):
    """Gated MLP (SwiGLU, arXiv 2002.05202) weights of all layers; applied to one layer's slice."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
        layers, embed, inner = c.num_layers, c.hidden_size, c.intermediate_size
        for name in ("gate", "up"):
            declare(self, c, rngs, name, {"embed": embed}, {"mlp": inner})
        declare(self, c, rngs, "down", {"mlp": inner}, {"embed": embed})
        if c.mlp_bias:
            self.gate_bias = constant(0.0, (layers, inner), ("layers", "mlp"))
            self.up_bias = constant(0.0, (layers, inner), ("layers", "mlp"))
            self.down_bias = constant(0.0, (layers, embed), ("layers", "embed"))
        self.config = c

    def __call__(self, x: jax.Array, norm: jax.Array) -> jax.Array:
        gate, up = times_normed(self, self.config, ("gate", "up"), x, norm)
        if self.config.mlp_bias:
            gate += self.gate_bias[...].astype(x.dtype)
            up += self.up_bias[...].astype(x.dtype)
        return computed_again(self._out)(gate, up)

    def _out(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        inner = constrain(jax.nn.silu(gate) * up, "rows", None, "mlp")
        out = times(self, self.config, "down", inner)
        if self.config.mlp_bias:
            out += self.down_bias[...].astype(gate.dtype)
        return out


class Layer(nnx.Module):
    """Pre-norm decoder layer: attention and MLP, each added to the residual stream."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs):
        norm_shape, norm_axes = (c.num_layers, c.hidden_size), ("layers", "embed")
        self.attention_norm = constant(1.0, norm_shape, norm_axes)
        self.attention = Attention(c, rngs)
        self.mlp_norm = constant(1.0, norm_shape, norm_axes)
        self.mlp = MLP(c, rngs)

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array, attend: Attend):
        out, key_value = self.attention(x, self.attention_norm[...], cos, sin, attend)
        x = constrain(x + out, "rows")
        x = constrain(x + self.mlp(x, self.mlp_norm[...]), "rows")
        return x, key_value


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
        self.embedding = weight(rngs, table, ("vocab", "embed"), config.hidden_size)
        self.layers = Layer(config, rngs)
        self.final_norm = constant(1.0, (config.hidden_size,), ("embed",))
        if not config.tie_word_embeddings:
            self.head = weight(rngs, table, ("vocab", "embed"), config.hidden_size)
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
        attention: AttentionKind = "xla",
    ) -> jax.Array:
        """Final hidden states of whole sequences.

        Args:
          tokens: `[B, T]` ids; any value in range at padding.
          positions: `[B, T]` position of each token within its own sequence.
          valid: `[B, T]`, False at padding, which may be on either side.
          dtype: dtype of the activations.
          remat: recompute each layer's inside in the backward pass instead of storing it.
          attention: its implementation, see `hacpo_jax.models.flash_attention`.

        Returns:
          `[B, T, H]` in `dtype`.
        """

        def run(layer: Layer, attend: Attend, x, cos, sin):
            return layer(x, cos, sin, attend)[0], None

        return self._sequences(run, tokens, positions, valid, dtype, attention, remat)[0]

    def before_answers(
        self,
        answers: Answers,
        *,
        dtype: jnp.dtype,
        remat: bool = False,
        attention: AttentionKind = "xla",
        total: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Final hidden states that predict the tokens of answers, each prompt computed once.

        Args:
          answers: R rows of N answers with the prompts that they share.
          dtype: dtype of the activations.
          remat: recompute each layer's inside in the backward pass instead of storing it.
          attention: its implementation, see `hacpo_jax.models.shared_prompts`.
          total: what the embedding's gradient is added to, see `embed_into`; None makes it one of
            its own.

        Returns:
          `[R, N, T, H]` in `dtype`, and `total`.
        """
        branches, attention_of = shared_attention(attention, self.config.windows, answers)

        def run(layer: Layer, branch, x, cos, sin):
            def attend(q, k, v):
                return attention_of(q, k, v, branch)

            return layer(x, cos, sin, attend)[0], None

        tokens = side_by_side(answers.prompts, answers.responses)
        positions = side_by_side(answers.prompt_positions, answers.positions)
        if total is None:
            x = embed(self.embedding[...].astype(dtype), tokens)
        else:
            embedded: Any = embed_into(self.embedding[...], tokens, total, dtype)
            x, total = embedded
        hidden, _ = self._scan(run, branches, x, positions, remat=remat)
        return states_before(hidden, answers), total

    def prefill(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        valid: jax.Array,
        *,
        dtype: jnp.dtype,
        attention: AttentionKind = "xla",
    ) -> tuple[jax.Array, KeyValues]:
        """As `__call__`, with the keys and values of every layer, `[L, B, kv_heads, T, D]`.

        Weights must not be divided along `embed`; see `hacpo_jax.models.gathered`.
        """

        def run(layer: Layer, attend: Attend, x, cos, sin):
            x, (k, v) = layer(x, cos, sin, attend)
            k, v = (constrain(y.swapaxes(1, 2), "rows", "kv_heads") for y in (k, v))
            return x, KeyValues(k, v)

        return self._sequences(run, tokens, positions, valid, dtype, attention, gathered=True)

    def decode(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        prompt: KeyValues | Sequence[KeyValues],
        prompt_valid: jax.Array,
        generated: KeyValues | Sequence[KeyValues],
        ages: jax.Array,
        num_generated: jax.Array,
        *,
        dtype: jnp.dtype,
        layers: Sequence[Any] | None = None,
    ) -> tuple[jax.Array, Any]:
        """One new token of each of G responses to each of P prompts.

        Weights must not be divided along `embed`; see `hacpo_jax.models.gathered`.

        Args:
          tokens: `[P, G]` the newest token of each response.
          positions: `[P, G]` its position, prompt included.
          prompt: `[L, P, kv_heads, S, D]`, stored once per prompt.
          prompt_valid: `[P, S]`, False at padding.
          generated: `[L, P · G, kv_heads, C, D]`, only read.
          ages: `[C]`, how many tokens each place of `generated` was written before the newest.
          num_generated: `[P]`, how many of the newest places hold a prompt's own responses.
          dtype: dtype of the activations.
          layers: weights of every layer, from `hacpo_jax.models.by_layer.layers_apart`; `prompt`
            and `generated` are lists as well then, of what each layer has. None loops over stacked
            layers.

        Returns:
          Hidden states `[P, G, H]` and the new token's keys and values `[L, P · G, kv_heads, D]`,
          with `layers` a list, which the caller writes at one place for all, the oldest.
        """

        def run(layer: Layer, window, x, cos, sin, prompt_slice, generated_slice):
            def attend(q, k, v):
                return shared_prompt_attention(
                    q,
                    k,
                    v,
                    positions,
                    prompt_slice,
                    prompt_valid,
                    generated_slice,
                    ages,
                    num_generated,
                    window,
                )

            x, new = layer(x, cos, sin, attend)
            return x, KeyValues(*(y.reshape(-1, *y.shape[2:]) for y in new))

        longest = prompt_valid.shape[1] + len(ages) + 1
        windows = layer_windows(self.config.windows, longest)
        x = embed(self.embedding[...].astype(dtype), tokens, gathered=True)
        if layers is None:
            return self._scan(run, windows, x, positions, prompt, generated)
        return self._one_by_one(run, windows, x, positions, layers, prompt, generated)

    def _sequences(
        self, run, tokens, positions, valid, dtype, attention, remat=False, gathered=False
    ):
        """Every layer in turn over whole sequences; `run` gets each layer's attention."""
        places = None
        if attention == "cudnn":  # it knows lengths only, so every row begins with its first token
            length = valid.shape[1]
            starts, places = valid.argmax(axis=1)[:, None], jnp.arange(length)
            turned = (places + starts) % length  # [B, T]
            places = (places - starts) % length
            tokens, positions, valid = (
                jnp.take_along_axis(x, turned, axis=1) for x in (tokens, positions, valid)
            )
        branches, attention_of = layer_attention(attention, self.config.windows, positions, valid)

        def run_layer(layer: Layer, branch, x, cos, sin):
            def attend(q, k, v):
                return attention_of(q, k, v, branch)

            return run(layer, attend, x, cos, sin)

        x = embed(self.embedding[...].astype(dtype), tokens, gathered)
        hidden, out = self._scan(run_layer, branches, x, positions, remat=remat)
        if places is None:
            return hidden, out
        return turn(hidden, places), jax.tree.map(lambda x: _turned(x, places), out)

    def _scan(self, run, per_layer, x, positions, *caches, remat=False):
        """Run every layer in turn over embedded tokens, normalise; the rest is sliced with the
        weights."""
        structure, weights = nnx.split(self.layers)
        cos, sin = rotation(self.config, positions)
        # None, where layers do not differ, is sliced into None.
        slices = (weights, per_layer, *caches)

        def body(x, slices):
            weights, part, *rest = slices
            return run(nnx.merge(structure, weights), part, x, cos, sin, *rest)

        x, out = jax.lax.scan(jax.checkpoint(body) if remat else body, x, slices)
        return rms_norm(x, self.final_norm[...], self.config.rms_norm_eps), out

    def _one_by_one(self, run, per_layer, x, positions, layers, *caches):
        """As `_scan`, with lists of what each layer has; so is what comes out of each."""
        structure, _ = nnx.split(self.layers)
        # Kept, or XLA would compute them again in every layer.
        cos, sin = jax.lax.optimization_barrier(rotation(self.config, positions))
        out = []
        for i, (weights, *rest) in enumerate(zip(layers, *caches, strict=True)):
            part = None if per_layer is None else per_layer[i]
            x, found = run(nnx.merge(structure, whole(weights)), part, x, cos, sin, *rest)
            out.append(found)
        return rms_norm(x, self.final_norm[...], self.config.rms_norm_eps), out


def _turned(x: jax.Array, places: jax.Array) -> jax.Array:
    """`x` `[L, B, kv_heads, T, D]` with the tokens of each row taken from `places` `[B, T]`."""

    def one_layer(x: jax.Array) -> jax.Array:
        return turn(x.swapaxes(1, 2), places).swapaxes(1, 2)

    return jax.vmap(one_layer)(x)
