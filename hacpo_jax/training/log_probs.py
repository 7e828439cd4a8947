"""Log-probs of chosen tokens from hidden states, without logits of the whole vocabulary.

The output head is walked in blocks of the vocabulary with a running log-sum-exp; the backward
pass recomputes each block. Nothing of size [N, V] ever exists.

Where the vocabulary lies on several devices (S shards), every block takes as many rows of each
shard, and what is summed over the vocabulary is summed across shards once, after the last block.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.parallel.rules import constrain, num_shards
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
    blocks = _Blocks.of(table, block)

    def visit(carry, index):
        top, total, weighted, chosen = carry  # [N, S] each
        logits, ids, here = blocks.logits(hidden, index, temperature, known)
        new_top = jnp.maximum(top, logits.max(axis=-1))
        kept, weights = jnp.exp(top - new_top), jnp.exp(logits - new_top[..., None])
        total = total * kept + weights.sum(axis=-1)
        # exp(-inf) * -inf would be NaN where a token is impossible.
        finite = jnp.where(weights > 0, logits, 0.0)
        weighted = weighted * kept + (weights * finite).sum(axis=-1)
        is_target = (ids == targets[:, None, None]) & here
        chosen += jnp.where(is_target, logits, 0.0).sum(axis=-1)
        return (new_top, total, weighted, chosen), None

    zeros = jnp.zeros((hidden.shape[0], blocks.shards), jnp.float32)
    lowest = jnp.full_like(zeros, jnp.finfo(jnp.float32).min)
    start = (lowest, zeros, zeros, zeros)
    (tops, totals, weighted, chosen), _ = jax.lax.scan(visit, start, blocks.indices)
    top = tops.max(axis=-1)
    kept = jnp.exp(tops - top[:, None])
    total = (totals * kept).sum(axis=-1)
    normalizer = top + jnp.log(total)
    entropy = normalizer - (weighted * kept).sum(axis=-1) / total
    saved = (hidden, table, targets, normalizer, entropy)
    return (chosen.sum(axis=-1) - normalizer, entropy), saved


def _backward(temperature, known, block, saved, cotangents):
    hidden, table, targets, normalizer, entropy = saved
    d_log_prob, d_entropy = (x[:, None, None] for x in cotangents)
    blocks = _Blocks.of(table, block)

    def visit(carry, index):
        d_hidden, d_table = carry  # [S, N, H], [S, V / S, H]
        logits, ids, here = blocks.logits(hidden, index, temperature, known)
        log_probs = logits - normalizer[:, None, None]
        probs = jnp.exp(log_probs)
        surprise = jnp.where(probs > 0, log_probs, 0.0) + entropy[:, None, None]
        is_target = (ids == targets[:, None, None]) & here
        d_logits = d_log_prob * (is_target - probs) - d_entropy * probs * surprise
        d_logits = (d_logits / temperature).astype(hidden.dtype)
        f32 = {"preferred_element_type": jnp.float32}
        d_hidden += jnp.einsum("nsb,sbh->snh", d_logits, blocks.rows(index, hidden.dtype), **f32)
        d_rows = jnp.einsum("nsb,nh->sbh", d_logits, hidden, **f32)
        d_rows = constrain(d_rows, "vocab", None, "embed")
        return (d_hidden, blocks.add(d_table, d_rows, index)), None

    d_hidden = jnp.zeros((blocks.shards, *hidden.shape), jnp.float32)
    d_table = jnp.zeros(blocks.table.shape, jnp.float32)
    (d_hidden, d_table), _ = jax.lax.scan(visit, (d_hidden, d_table), blocks.indices)
    d_table = d_table.reshape(table.shape).astype(table.dtype)
    return d_hidden.sum(axis=0).astype(hidden.dtype), d_table, None


_blockwise.defvjp(_forward, _backward)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """The table as S shards `[S, V / S, H]`, and how many rows of each a block takes."""

    table: jax.Array
    size: int

    @classmethod
    def of(cls, table: jax.Array, block: int) -> "_Blocks":
        shards = num_shards("vocab", table.shape[0])
        rows = table.shape[0] // shards
        shape = (shards, rows, table.shape[1])
        view = constrain(table.reshape(shape), "vocab", None, "embed")
        return cls(view, min(-(-block // shards), rows))

    @property
    def shards(self) -> int:
        return self.table.shape[0]

    @property
    def indices(self) -> jax.Array:
        return jnp.arange(-(-self.table.shape[1] // self.size))

    def start(self, index: jax.Array) -> jax.Array:
        """First row of a block in every shard; the last block is moved back to end with them."""
        return jnp.minimum(index * self.size, self.table.shape[1] - self.size)

    def rows(self, index: jax.Array, dtype) -> jax.Array:
        """`[S, b, H]`, whole along H."""
        rows = jax.lax.dynamic_slice_in_dim(self.table, self.start(index), self.size, axis=1)
        return constrain(rows.astype(dtype), "vocab")

    def add(self, total: jax.Array, rows: jax.Array, index: jax.Array) -> jax.Array:
        """`[S, V / S, H]` with the rows of a block added to."""
        start = self.start(index)
        rows += jax.lax.dynamic_slice_in_dim(total, start, self.size, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(total, rows, start, axis=1)

    def logits(self, hidden: jax.Array, index: jax.Array, temperature: float, known):
        """Tempered float32 logits `[N, S, b]` of a block, the ids `[S, b]` of its columns, and
        which of them count: those that an earlier block has counted and that the tokenizer does
        not know are masked."""
        place = self.start(index) + jnp.arange(self.size)
        ids = jnp.arange(self.shards)[:, None] * self.table.shape[1] + place
        rows = self.rows(index, hidden.dtype)
        logits = jnp.einsum("nh,sbh->nsb", hidden, rows, preferred_element_type=jnp.float32)
        logits = constrain(logits / temperature, "rows", "vocab")
        all_known = jnp.asarray(known_ids(self.shards * self.table.shape[1], *known))
        here = (place >= index * self.size) & all_known[ids]
        return jnp.where(here, logits, -jnp.inf), ids, place >= index * self.size
