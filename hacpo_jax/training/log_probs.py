"""Log-probs of chosen tokens from hidden states, without logits of the whole vocabulary.

The output head is walked in blocks of the vocabulary with a running log-sum-exp; the backward
pass recomputes each block. Nothing of size [N, V] ever exists.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.rollout.sampling import known_ids

BLOCK = 8192


def token_log_probs(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    temperature: float,
    num_tokens: int,
    block: int = BLOCK,
    missing_ids: tuple[int, ...] = (),
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each target and entropy of its distribution.

    Args:
      hidden: `[N, H]` final hidden states, one per predicted token.
      table: `[V, H]` output head.
      targets: `[N]` int32 ids.
      temperature: divides the logits, exactly as in sampling.
      num_tokens: ids from here on have no probability, exactly as in sampling.
      block: vocabulary rows looked at together.
      missing_ids: further ids without probability, exactly as in sampling.

    Returns:
      Log-probs `[N]` and entropies `[N]`, float32, in nats.
    """
    return _blockwise(hidden, table, targets, temperature, (num_tokens, missing_ids), block)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _blockwise(hidden, table, targets, temperature, known, block) -> Any:
    return _forward(hidden, table, targets, temperature, known, block)[0]


def _forward(hidden, table, targets, temperature, known, block):
    n, block = hidden.shape[0], min(block, table.shape[0])

    def visit(carry, index):
        top, total, weighted, chosen = carry
        logits, start = _block_logits(hidden, table, index, temperature, known, block)
        new_top = jnp.maximum(top, logits.max(axis=-1))
        kept, weights = jnp.exp(top - new_top), jnp.exp(logits - new_top[:, None])
        total = total * kept + weights.sum(axis=-1)
        # exp(-inf) * -inf would be NaN where a token is impossible.
        finite = jnp.where(weights > 0, logits, 0.0)
        weighted = weighted * kept + (weights * finite).sum(axis=-1)
        chosen = jnp.where(_is_in(targets, index, block), _pick(logits, targets - start), chosen)
        return (new_top, total, weighted, chosen), None

    lowest = jnp.full(n, jnp.finfo(jnp.float32).min)
    zeros = jnp.zeros(n, jnp.float32)
    blocks = jnp.arange(-(-table.shape[0] // block))
    (top, total, weighted, chosen), _ = jax.lax.scan(visit, (lowest, zeros, zeros, zeros), blocks)
    normalizer = top + jnp.log(total)
    entropy = normalizer - weighted / total
    saved = (hidden, table, targets, normalizer, entropy)
    return (chosen - normalizer, entropy), saved


def _backward(temperature, known, block, saved, cotangents):
    hidden, table, targets, normalizer, entropy = saved
    d_log_prob, d_entropy = cotangents
    block = min(block, table.shape[0])

    def visit(carry, index):
        d_hidden, d_table = carry
        logits, start = _block_logits(hidden, table, index, temperature, known, block)
        log_probs = logits - normalizer[:, None]
        probs = jnp.exp(log_probs)
        surprise = jnp.where(probs > 0, log_probs, 0.0) + entropy[:, None]
        here = _is_in(targets, index, block)
        columns = jnp.arange(block) == jnp.where(here, targets - start, -1)[:, None]
        d_logits = d_log_prob[:, None] * (columns - probs) - d_entropy[:, None] * probs * surprise
        d_logits = (d_logits / temperature).astype(hidden.dtype)
        rows = jax.lax.dynamic_slice_in_dim(table, start, block).astype(hidden.dtype)
        d_hidden += jnp.matmul(d_logits, rows, preferred_element_type=jnp.float32)
        d_rows = jnp.matmul(d_logits.T, hidden, preferred_element_type=jnp.float32)
        d_rows += jax.lax.dynamic_slice_in_dim(d_table, start, block)
        return (d_hidden, jax.lax.dynamic_update_slice_in_dim(d_table, d_rows, start, 0)), None

    start = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(table.shape, jnp.float32))
    blocks = jnp.arange(-(-table.shape[0] // block))
    (d_hidden, d_table), _ = jax.lax.scan(visit, start, blocks)
    return d_hidden.astype(hidden.dtype), d_table.astype(table.dtype), None


_blockwise.defvjp(_forward, _backward)


def _block_logits(hidden, table, index, temperature, known, block):
    """Tempered float32 logits `[N, block]` of block `index`, and the id of its first column.

    The last block is moved back to end with the table; the columns that an earlier block has
    already counted are masked, like the ids that the tokenizer does not know.
    """
    start = jnp.minimum(index * block, table.shape[0] - block)
    rows = jax.lax.dynamic_slice_in_dim(table, start, block).astype(hidden.dtype)
    logits = jnp.matmul(hidden, rows.T, preferred_element_type=jnp.float32) / temperature
    ids = start + jnp.arange(block)
    here = jax.lax.dynamic_slice_in_dim(known_ids(table.shape[0], *known), start, block)
    return jnp.where((ids >= index * block) & here, logits, -jnp.inf), start


def _is_in(targets: jax.Array, index: jax.Array, block: int) -> jax.Array:
    return targets // block == index


def _pick(logits: jax.Array, columns: jax.Array) -> jax.Array:
    columns = jnp.clip(columns, 0, logits.shape[1] - 1)
    return jnp.take_along_axis(logits, columns[:, None], axis=1)[:, 0]
