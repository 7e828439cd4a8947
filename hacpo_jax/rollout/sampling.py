"""Drawing the next token: temperature, truncation, and a draw that is cheap in the vocabulary."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.parallel.rules import num_shards

BLOCK = 512


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How tokens are drawn; hashable, so it can be a jit constant.

    Args:
      temperature: divides the logits; 0 is greedy.
      top_k: keep the k likeliest tokens; None keeps all.
      top_p: keep the fewest likeliest tokens whose probability reaches this; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"temperature = {self.temperature}: must be 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k = {self.top_k}: must be 1 or more, or None")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}: must be in (0, 1]")

    def truncates(self, size: int) -> bool:
        """Whether a token of a vocabulary of that size can be left out."""
        return (self.top_k is not None and self.top_k < size) or self.top_p < 1


def known_ids(size: int, num_tokens: int, missing_ids: tuple[int, ...]) -> np.ndarray:
    """bool `[size]`, the ids that the tokenizer has a token for: a constant of the programs that
    sample and that train, which ask the same."""
    known = np.arange(size) < num_tokens
    known[list(missing_ids)] = False
    return known


def draw(
    logits: jax.Array, uniform: jax.Array, sampler: Sampler, axis: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Draw one token a row.

    The draw inverts the cumulative distribution at one uniform number a row, so it depends on
    that row alone.

    Args:
      logits: `[N, V]`, float32; -inf where a token must never be drawn.
      uniform: `[N]` in [0, 1).
      sampler: temperature and truncation.
      axis: of the vocabulary; with 0, logits are `[V, N]`.

    Returns:
      Tokens `[N]` int32, and their log-probs `[N]` under the whole tempered distribution, which is
      the one the trainer scores (greedy draws: at temperature 1).
    """
    if sampler.temperature == 0:
        tokens = _argmax(logits, axis)
        return tokens, _at(logits, tokens, axis) - jax.nn.logsumexp(logits, axis=axis)
    logits = logits / sampler.temperature
    top, size = logits.max(axis=axis, keepdims=True), logits.shape[axis]
    weights = _blocks(jnp.exp(logits - top), 0.0, axis)
    per_block = weights.sum(axis=axis + 1)
    log_total = jnp.log(per_block.sum(axis=axis))
    if sampler.truncates(size):
        kept = truncate(logits, sampler, axis) > -jnp.inf
        weights = jnp.where(_blocks(kept, False, axis), weights, 0.0)
        per_block = weights.sum(axis=axis + 1)
    tokens = _token(size, weights.shape[axis], *_inverse_cdf(weights, per_block, uniform, axis))
    return tokens, _at(logits, tokens, axis) - top.squeeze(axis) - log_total


def truncate(logits: jax.Array, sampler: Sampler, axis: int = 1) -> jax.Array:
    """Logits as in `draw`, -inf outside the top-k and top-p sets (ties at the edge are kept)."""
    top_k, size = sampler.top_k, logits.shape[axis]
    if not sampler.truncates(size):
        return logits
    ranked = jnp.sort(logits, axis=axis, descending=True)
    last = size - 1 if top_k is None else min(top_k, size) - 1
    least = jax.lax.slice_in_dim(ranked, last, last + 1, axis=axis)
    if sampler.top_p < 1:
        kept = jax.nn.softmax(jnp.where(ranked >= least, ranked, -jnp.inf), axis=axis)
        before = jnp.cumsum(kept, axis=axis) - kept
        nucleus = jnp.where(before < sampler.top_p, ranked, jnp.inf)
        least = jnp.maximum(least, nucleus.min(axis=axis, keepdims=True))
    return jnp.where(logits >= least, logits, -jnp.inf)


def _argmax(logits: jax.Array, axis: int) -> jax.Array:
    """The first of the likeliest tokens: the block that has it, then its place there.

    XLA takes one argmax over a whole vocabulary number by number on a CPU.
    """
    blocks = _blocks(logits, -jnp.inf, axis)
    block = jnp.argmax(blocks.max(axis=axis + 1), axis=axis)
    place = jnp.argmax(_at(blocks, block, axis), axis=axis)
    return _token(logits.shape[axis], blocks.shape[axis], block, place)


def _inverse_cdf(
    weights: jax.Array, per_block: jax.Array, uniform: jax.Array, axis: int
) -> tuple[jax.Array, jax.Array]:
    """The block in which the cumulative sum of `weights` passes the draw, and the place in it.

    Args:
      weights: as `_blocks` has them.
      per_block: their sums.
      uniform: `[N]`.
      axis: of the blocks.
    """
    target = uniform * per_block.sum(axis=axis)
    block, before = _first_passing(per_block, target, axis)
    place, _ = _first_passing(_at(weights, block, axis), target - before, axis)
    return block, place


def _blocks(values: jax.Array, filler: float | bool, axis: int) -> jax.Array:
    """The axis of the vocabulary as two, `[B, BLOCK]`; no block lies in two of the shards that the
    vocabulary is in."""
    before, vocab, after = values.shape[:axis], values.shape[axis], values.shape[axis + 1 :]
    values = values.reshape(*before, num_shards("vocab", vocab), -1, *after)
    room = [(0, 0)] * values.ndim
    room[axis + 1] = (0, -values.shape[axis + 1] % BLOCK)
    padded = jnp.pad(values, room, constant_values=filler)
    return padded.reshape(*before, -1, BLOCK, *after)


def _at(values: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    """What lies at `index` `[N]` of an axis, which goes; beside it and N there may be one more."""
    rows = tuple(i for i in range(values.ndim) if i != (0 if axis else values.ndim - 1))
    return jnp.take_along_axis(values, jnp.expand_dims(index, rows), axis=axis).squeeze(axis)


def _token(vocab: int, blocks: int, block: jax.Array, place: jax.Array) -> jax.Array:
    """Ids of what lies at `place` `[N]` in block number `block` `[N]` of so many."""
    shards = num_shards("vocab", vocab)
    shard, block = jnp.divmod(block, blocks // shards)
    return (shard * (vocab // shards) + block * BLOCK + place).astype(jnp.int32)


def _first_passing(weights: jax.Array, target: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """First index of an axis where the cumulative sum exceeds `target` `[N]`, and the sum before.

    Rounding can leave the target at or beyond the total; the last index of positive weight is
    taken then, so a token of no probability is never drawn.
    """
    cumulative = jnp.cumsum(weights, axis=axis)
    positive = weights > 0
    last = weights.shape[axis] - 1 - jnp.argmax(jnp.flip(positive, axis), axis=axis)
    passed = (cumulative > jnp.expand_dims(target, axis)) & positive
    index = jnp.where(passed.any(axis=axis), jnp.argmax(passed, axis=axis), last)
    return index, _at(cumulative, index, axis) - _at(weights, index, axis)
