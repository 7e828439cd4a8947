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


def layer_windows(windows: tuple[int | None, ...], longest: int) -> jax.Array | None:
    """How many tokens each layer's attention sees, `[L]` int32, the newest included.

    Args:
      windows: as in `ModelConfig`.
      longest: no sequence at hand has more tokens than that.

    Returns:
      None where no window hides anything, so that short sequences cost no mask.
    """
    if all(window is None or window >= longest for window in windows):
        return None
    return jnp.array([longest if window is None else window for window in windows], jnp.int32)


def causal_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    valid: jax.Array,
    window: jax.Array | None = None,
) -> jax.Array:
    """Attention of whole sequences over themselves.

    Args:
      q: `[B, T, heads, head_dim]`.
      k: `[B, T, kv_heads, head_dim]`.
      v: `[B, T, kv_heads, head_dim]`.
      positions: `[B, T]` position of each token within its own sequence.
      valid: `[B, T]`, False at padding.
      window: scalar, how many tokens are seen, the token itself included; None for all.

    Returns:
      `[B, T, heads, head_dim]`; finite, but meaningless, at padding.
    """
    mask = valid[:, None, None, :]
    if window is not None:
        distance = positions[:, :, None] - positions[:, None, :]
        mask &= (distance < window)[:, None]
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True)


def answer_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    prompt_keys: jax.Array,
    prompt_values: jax.Array,
    prompt_valid: jax.Array,
    window: jax.Array | None = None,
) -> jax.Array:
    """Attention of whole answers over their prompts and themselves.

    Args:
      q: `[B, T, heads, head_dim]`, padded on the right if at all.
      k: `[B, T, kv_heads, head_dim]`.
      v: `[B, T, kv_heads, head_dim]`.
      prompt_keys: `[B, S, kv_heads, head_dim]`, each answer's own copy.
      prompt_values: `[B, S, kv_heads, head_dim]`.
      prompt_valid: `[B, S]`, False at padding, which is on the left: a prompt ends where its
        answer begins.
      window: scalar, how many tokens are seen, the token itself included; None for all.

    Returns:
      `[B, T, heads, head_dim]`; finite, but meaningless, at padding.
    """
    width, length = prompt_valid.shape[1], q.shape[1]
    places = jnp.arange(width + length)
    own = places[width:, None] - places  # [T, S + T], how far back a key lies
    seen = jnp.pad(prompt_valid, ((0, 0), (0, length)), constant_values=True)[:, None, None, :]
    seen &= own >= 0
    if window is not None:
        seen &= own < window
    keys, values = (
        jnp.concatenate(pair, axis=1) for pair in ((prompt_keys, k), (prompt_values, v))
    )
    return jax.nn.dot_product_attention(q, keys, values, mask=seen)


def shared_prompt_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    prompt: KeyValues,
    prompt_valid: jax.Array,
    generated: KeyValues,
    ages: jax.Array,
    num_generated: jax.Array,
    window: jax.Array | None = None,
) -> jax.Array:
    """Attention of one new token per response over its prompt, its earlier tokens and itself.

    The prompt's keys are stored once for the G responses to it, and the new token's own key is
    taken as an argument, so nothing is copied and the cache is only read. Rows write to one place
    in turn but began at different times: so what a row sees is told by how long ago a place was
    written.

    Args:
      q: `[P, G, heads, head_dim]`, G responses to each of P prompts.
      k: `[P, G, kv_heads, head_dim]`, the new token's key.
      v: `[P, G, kv_heads, head_dim]`, the new token's value.
      positions: `[P, G]`, the new token's position, prompt included.
      prompt: keys and values of one layer, `[P, kv_heads, S, head_dim]`.
      prompt_valid: `[P, S]`, False at padding.
      generated: keys and values of one layer, `[P · G, kv_heads, C, head_dim]`.
      ages: `[C]`, how many tokens each place was written before the newest one, in any order.
      num_generated: `[P]`, tokens of each prompt's responses that are in `generated`: the newest.
      window: scalar, how many tokens are seen, the new one included; None for all.

    Returns:
      `[P, G, heads, head_dim]`.
    """
    p, g, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    q = q.reshape(p, g, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    f32 = {"preferred_element_type": jnp.float32}
    # Rows of products side by side, which XLA on CPU would else gather for every token.
    over_prompt = jnp.einsum("pkmd,pksd->pkms", _by_prompt(q), prompt.keys, **f32)
    over_prompt = _by_answer(over_prompt, g)
    by_answer = q.reshape(p * g, *q.shape[2:])
    over_generated = jnp.einsum("bkrd,bkcd->bkrc", by_answer, generated.keys, **f32)
    over_generated = over_generated.reshape(*q.shape[:-1], -1)
    over_itself = jnp.einsum("pgkrd,pgkd->pgkr", q, k, **f32)[..., None]
    seen = prompt_valid[:, None, :]  # [P, 1 or G, S]
    own = ages < num_generated[:, None]  # [P, C]
    if window is not None:
        prompt_positions = jnp.cumsum(prompt_valid, axis=1) - 1
        seen &= positions[:, :, None] - prompt_positions[:, None, :] < window
        own &= ages + 1 < window
    over_prompt = jnp.where(seen[:, :, None, None, :], over_prompt, MASKED)
    over_generated = jnp.where(own[:, None, None, None, :], over_generated, MASKED)
    logits = jnp.concatenate([over_prompt, over_generated, over_itself], axis=-1)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    split = prompt.keys.shape[2]
    of_prompt = _by_prompt(weights[..., :split])
    out = _by_answer(jnp.einsum("pkms,pksd->pkmd", of_prompt, prompt.values, **f32), g)
    of_own = weights[..., split:-1].reshape(p * g, *weights.shape[2:-1], -1)
    out += jnp.einsum("bkrc,bkcd->bkrd", of_own, generated.values, **f32).reshape(out.shape)
    out += weights[..., -1:] * v[:, :, :, None, :]
    return out.reshape(p, g, heads, head_dim).astype(v.dtype)


def _by_prompt(x: jax.Array) -> jax.Array:
    """`[P, G, kv_heads, r, ...]` as `[P, kv_heads, G · r, ...]`."""
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _by_answer(x: jax.Array, answers: int) -> jax.Array:
    """What `_by_prompt` has put together, as it was."""
    return x.reshape(*x.shape[:2], answers, -1, x.shape[-1]).swapaxes(1, 2)
