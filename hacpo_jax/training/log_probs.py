"""Log-probs of chosen tokens from hidden states, without logits of the whole vocabulary.

The output head is walked in blocks of tokens and of the vocabulary, with a running log-sum-exp;
the backward pass computes each block again. Nothing larger than one block of logits ever exists,
however many tokens there are.

Where the vocabulary lies on several devices (S shards), every block takes as many rows of each
shard, and what is summed over the vocabulary is summed across shards once, after the last block.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from hacpo_jax.parallel.rules import constrain, num_shards
from hacpo_jax.rollout.sampling import known_ids

BLOCK = 8192
"""Rows of the vocabulary that are looked at together."""

TOKENS = 2048
"""Tokens of each row of a batch that are looked at together, at most."""

Entropy = Literal["none", "value", "gradient"]


def token_log_probs(
    hidden: jax.Array,
    table: jax.Array,
    targets: jax.Array,
    temperature: float,
    num_tokens: int,
    *,
    missing_ids: tuple[int, ...] = (),
    entropy: Entropy = "gradient",
    total: jax.Array | None = None,
    block: int = BLOCK,
    tokens: int = TOKENS,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Log-prob of each target and entropy of its distribution.

    Args:
      hidden: `[R, n, H]` final hidden states, one per predicted token.
      table: `[V, H]` output head.
      targets: `[R, n]` int32 ids.
      temperature: divides the logits, exactly as in sampling.
      num_tokens: ids from here on have no probability, exactly as in sampling.
      missing_ids: further ids without probability, exactly as in sampling.
      entropy: whether it is computed (`none` gives zeros) and whether it has a gradient.
      total: `[V, H]` float32 that the table's gradient is added to in place, as in
        `hacpo_jax.models.embedding.embed_into`; None makes it an array of its own.
      block: vocabulary rows looked at together.
      tokens: tokens of each row looked at together, at most.

    Returns:
      Log-probs `[R, n]` and entropies `[R, n]`, float32, in nats; and `total`.
    """
    spec = _Spec(temperature, num_tokens, missing_ids, entropy, block)
    length = targets.shape[1]
    parts, size = token_blocks(length, tokens)

    def blocks(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, 0), (0, parts * size - length)] + [(0, 0)] * (x.ndim - 2))
        return padded.reshape(x.shape[0], parts, size, *x.shape[2:]).swapaxes(0, 1)

    found: Any = _blockwise(blocks(hidden), table, blocks(targets), total, spec)
    *per_token, total = found  # [K, R, m]
    log_probs, entropies = (x.swapaxes(0, 1).reshape(x.shape[1], -1)[:, :length] for x in per_token)
    return log_probs, entropies, total


def token_blocks(length: int, tokens: int = TOKENS) -> tuple[int, int]:
    """In how many blocks so many tokens of a row are looked at, and the tokens of each."""
    parts = max(-(-length // tokens), 1)
    return parts, -(-length // parts)


@dataclasses.dataclass(frozen=True)
class _Spec:
    temperature: float
    num_tokens: int
    missing_ids: tuple[int, ...]
    entropy: Entropy
    block: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _blockwise(hidden, table, targets, total, spec: _Spec) -> Any:
    return _forward(hidden, table, targets, total, spec)[0]


def _forward(hidden, table, targets, total, spec: _Spec):
    blocks = _Blocks.of(table, spec)

    def of_tokens(part):
        states, ids = part
        return _normalised(states, ids, blocks)

    normalizer, chosen, entropy = jax.lax.map(of_tokens, (hidden, targets))
    saved = (hidden, table, targets, normalizer, entropy)
    return (chosen - normalizer, entropy, total), saved


def _normalised(hidden: jax.Array, targets: jax.Array, blocks: "_Blocks"):
    """Log-sum-exp, logit of the target and entropy of `[R, m]` tokens."""
    asked = blocks.spec.entropy != "none"

    def visit(carry, index):
        top, total, weighted, chosen = carry  # [R, m, S] each
        logits = blocks.logits(hidden, index)
        new_top = jnp.maximum(top, logits.max(axis=-1))
        kept, weights = jnp.exp(top - new_top), jnp.exp(logits - new_top[..., None])
        total = total * kept + weights.sum(axis=-1)
        if asked:
            # As a product: XLA on CPU is slow at sums of products over one of 4 axes.
            finite, exact = blocks.finite(logits), jax.lax.Precision.HIGHEST
            more = jnp.einsum("rmsb,rmsb->rms", weights, finite, precision=exact)
            weighted = weighted * kept + more
        chosen = jnp.where(*blocks.at(logits, targets, index), chosen)
        return (new_top, total, weighted, chosen), None

    zeros = jnp.zeros((*targets.shape, blocks.shards), jnp.float32)
    lowest = jnp.full_like(zeros, jnp.finfo(jnp.float32).min)
    start = (lowest, zeros, zeros, zeros)
    (tops, totals, weighted, chosen), _ = jax.lax.scan(visit, start, blocks.indices)
    top = tops.max(axis=-1)
    kept = jnp.exp(tops - top[..., None])
    total = (totals * kept).sum(axis=-1)
    normalizer = top + jnp.log(total)
    entropy = normalizer - (weighted * kept).sum(axis=-1) / total if asked else jnp.zeros_like(top)
    return normalizer, chosen.sum(axis=-1), entropy


def _backward(spec: _Spec, saved, cotangents):
    hidden, table, targets, normalizer, entropy = saved
    *d_found, total = cotangents
    blocks = _Blocks.of(table, spec)
    tokens = (hidden, targets, normalizer, entropy, *d_found)
    f32 = {"preferred_element_type": jnp.float32}

    def visit(carry, index):
        d_hidden, d_table = carry  # [K, S, R, m, H], [S, V / S, H]
        rows = blocks.rows(index, hidden.dtype)

        def of_tokens(part, sums):
            d_hidden, d_rows = sums
            states, *rest = (x[part] for x in tokens)
            d_logits = blocks.d_logits(index, states, *rest).astype(hidden.dtype)
            more = jnp.einsum("rmsb,sbh->srmh", d_logits, rows, **f32)
            # States on the left: a CPU turns over what stands there.
            d_rows += jnp.einsum("rmh,rmsb->hsb", states, d_logits, **f32).transpose(1, 2, 0)
            return d_hidden.at[part].add(more), d_rows

        none = jnp.zeros(rows.shape, jnp.float32)
        d_hidden, d_rows = jax.lax.fori_loop(0, len(hidden), of_tokens, (d_hidden, none))
        d_rows = constrain(d_rows, "vocab", None, "embed")
        return (d_hidden, blocks.add(d_table, d_rows, index)), None

    d_hidden = jnp.zeros((len(hidden), blocks.shards, *hidden.shape[1:]), jnp.float32)
    d_table = jnp.zeros(table.shape, jnp.float32) if total is None else total
    d_table = constrain(d_table.reshape(blocks.table.shape), "vocab", None, "embed")
    (d_hidden, d_table), _ = jax.lax.scan(visit, (d_hidden, d_table), blocks.indices)
    d_hidden, d_table = d_hidden.sum(axis=1).astype(hidden.dtype), d_table.reshape(table.shape)
    if total is None:
        return d_hidden, d_table.astype(table.dtype), None, None
    return d_hidden, None, None, constrain(d_table, "vocab", "embed")


_blockwise.defvjp(_forward, _backward)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """The table as S shards `[S, V / S, H]`, and how many rows of each a block takes."""

    table: jax.Array
    size: int
    spec: _Spec

    @classmethod
    def of(cls, table: jax.Array, spec: _Spec) -> "_Blocks":
        shards = num_shards("vocab", table.shape[0])
        rows = table.shape[0] // shards
        shape = (shards, rows, table.shape[1])
        view = constrain(table.reshape(shape), "vocab", None, "embed")
        return cls(view, min(-(-spec.block // shards), rows), spec)

    @property
    def shards(self) -> int:
        return self.table.shape[0]

    @property
    def indices(self) -> jax.Array:
        return jnp.arange(-(-self.table.shape[1] // self.size))

    @property
    def all_count(self) -> bool:
        """Whether no column of any block is masked: then no time is spent on that."""
        known = self.spec.num_tokens >= self.shards * self.table.shape[1]
        return known and not self.spec.missing_ids and self.table.shape[1] % self.size == 0

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

    def logits(self, hidden: jax.Array, index: jax.Array) -> jax.Array:
        """Tempered float32 logits `[R, m, S, b]` of a block; -inf in columns that do not count:
        those that an earlier block has counted and those that the tokenizer does not know."""
        rows = self.rows(index, hidden.dtype)
        logits = jnp.einsum("rmh,sbh->rmsb", hidden, rows, preferred_element_type=jnp.float32)
        logits = constrain(logits / self.spec.temperature, "rows", None, "vocab")
        if self.all_count:
            return logits
        place = self.start(index) + jnp.arange(self.size)
        ids = jnp.arange(self.shards)[:, None] * self.table.shape[1] + place
        known = (self.shards * self.table.shape[1], self.spec.num_tokens, self.spec.missing_ids)
        here = (place >= index * self.size) & jnp.asarray(known_ids(*known))[ids]
        return jnp.where(here, logits, -jnp.inf)

    def finite(self, logits: jax.Array) -> jax.Array:
        """Logits to be weighted: exp(-inf) * -inf would be NaN where a token is impossible."""
        return logits if self.all_count else jnp.maximum(logits, jnp.finfo(jnp.float32).min)

    def places(self, targets: jax.Array, index: jax.Array) -> jax.Array:
        """`[R, m, S]` columns of a block at which the targets are; out of range where elsewhere."""
        first = jnp.arange(self.shards) * self.table.shape[1]
        place = targets[..., None] - first  # within each shard
        inside = (place >= index * self.size) & (place < self.table.shape[1])
        return jnp.where(inside, place - self.start(index), self.size)

    def at(self, logits: jax.Array, targets: jax.Array, index: jax.Array):
        """Whether each target is in a block, and its logit there, `[R, m, S]` each."""
        places = self.places(targets, index)
        columns = jnp.minimum(places, self.size - 1)[..., None]
        return places < self.size, jnp.take_along_axis(logits, columns, axis=-1)[..., 0]

    def d_logits(
        self, index, hidden, targets, normalizer, entropy, d_log_prob, d_entropy
    ) -> jax.Array:
        """Gradient `[R, m, S, b]` of a block's logits before they are tempered."""
        logits = self.logits(hidden, index)
        d_log_prob, d_entropy = (x[..., None, None] for x in (d_log_prob, d_entropy))
        log_probs = logits - normalizer[..., None, None]
        probs = jnp.exp(log_probs)
        is_target = jnp.arange(self.size) == self.places(targets, index)[..., None]
        found = jnp.where(is_target, d_log_prob, 0.0) - d_log_prob * probs
        if self.spec.entropy == "gradient":
            surprise = self.finite(log_probs) + entropy[..., None, None]
            found -= d_entropy * probs * surprise
        return found / self.spec.temperature
