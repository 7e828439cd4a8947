"""Attention in its two uses: over whole sequences, and one new token over cached keys."""

import dataclasses

import jax
import jax.numpy as jnp

# Far below any logit, yet finite: a row that may attend to nothing stays finite (uniform weights).
MASKED = -1e30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
    """Keys and values of all layers.

    Args:
      keys: `[L, ..., kv_heads, S, head_dim]`.
      values: the same shape.
    """

    keys: jax.Array
    values: jax.Array


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, valid: jax.Array) -> jax.Array:
    """Attention of whole sequences over themselves.

    Args:
      q: `[B, T, heads, head_dim]`.
      k: `[B, T, kv_heads, head_dim]`.
      v: `[B, T, kv_heads, head_dim]`.
      valid: `[B, T]`, False at padding.

    Returns:
      `[B, T, heads, head_dim]`; finite, but meaningless, at padding.
    """
    return jax.nn.dot_product_attention(q, k, v, mask=valid[:, None, None, :], is_causal=True)


def shared_prompt_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    prompt: KeyValues,
    prompt_valid: jax.Array,
    generated: KeyValues,
    num_generated: jax.Array,
) -> jax.Array:
    """Attention of one new token per response over its prompt, its earlier tokens and itself.

    The prompt's keys are stored once for the G responses to it, and the new token's own key is
    taken as an argument, so nothing is copied and the cache is only read.

    Args:
      q: `[P, G, heads, head_dim]`, G responses to each of P prompts.
      k: `[P, G, kv_heads, head_dim]`, the new token's key.
      v: `[P, G, kv_heads, head_dim]`, the new token's value.
      prompt: keys and values of one layer, `[P, kv_heads, S, head_dim]`.
      prompt_valid: `[P, S]`, False at padding.
      generated: keys and values of one layer, `[P, G, kv_heads, C, head_dim]`.
      num_generated: how many of the C positions are filled, the same for every row.

    Returns:
      `[P, G, heads, head_dim]`.
    """
    p, g, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(p, g, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    f32 = {"preferred_element_type": jnp.float32}
    over_prompt = jnp.einsum("pgkrd,pksd->pgkrs", q, prompt.keys, **f32)
    over_generated = jnp.einsum("pgkrd,pgkcd->pgkrc", q, generated.keys, **f32)
    over_itself = jnp.einsum("pgkrd,pgkd->pgkr", q, k, **f32)[..., None]
    filled = jnp.arange(generated.keys.shape[3]) < num_generated
    over_prompt = jnp.where(prompt_valid[:, None, None, None, :], over_prompt, MASKED)
    over_generated = jnp.where(filled, over_generated, MASKED)
    logits = jnp.concatenate([over_prompt, over_generated, over_itself], axis=-1)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    split = prompt.keys.shape[2]
    out = jnp.einsum("pgkrs,pksd->pgkrd", weights[..., :split], prompt.values, **f32)
    out += jnp.einsum("pgkrc,pgkcd->pgkrd", weights[..., split:-1], generated.values, **f32)
    out += weights[..., -1:] * v[:, :, :, None, :]
    return out.reshape(p, g, heads, head_dim).astype(v.dtype)
