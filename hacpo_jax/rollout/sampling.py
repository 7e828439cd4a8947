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


def known_ids(size: int, num_tokens: int, missing_ids: tuple[int, ...]) -> np.ndarray:
    """bool `[size]`, the ids that the tokenizer has a token for: a constant of the programs that
    sample and that train, which ask the same."""
    known = np.arange(size) < num_tokens
    known[list(missing_ids)] = False
    return known


def draw(logits: jax.Array, uniform: jax.Array, sampler: Sampler) -> tuple[jax.Array, jax.Array]:
    """Draw one token a row.

    The draw inverts the cumulative distribution at one uniform number a row, so it depends on
    that row alone.

    Args:
      logits: `[N, V]`, float32; -inf where a token must never be drawn.
      uniform: `[N]` in [0, 1).
      sampler: temperature and truncation.

    Returns:
      Tokens `[N]` int32, and their log-probs `[N]` under the whole tempered distribution, which is
      the one the trainer scores (greedy draws: at temperature 1).
    """
    if sampler.temperature == 0:
        tokens = _argmax(logits)
        return tokens, _log_prob(logits, tokens)
    logits = logits / sampler.temperature
    tokens = _inverse_cdf(truncate(logits, sampler), uniform)
    return tokens, _log_prob(logits, tokens)


def truncate(logits: jax.Array, sampler: Sampler) -> jax.Array:
    """Logits `[N, V]` with -inf outside the top-k and top-p sets (ties at the edge are kept)."""
    top_k = sampler.top_k
    if (top_k is None or top_k >= logits.shape[-1]) and sampler.top_p == 1:
        return logits
    ranked = jnp.sort(logits, axis=-1, descending=True)
    least = ranked[:, -1:] if top_k is None else ranked[:, min(top_k, ranked.shape[1]) - 1][:, None]
    if sampler.top_p < 1:
        kept = jax.nn.softmax(jnp.where(ranked >= least, ranked, -jnp.inf), axis=-1)
        before = jnp.cumsum(kept, axis=-1) - kept
        nucleus = jnp.where(before < sampler.top_p, ranked, jnp.inf)
        least = jnp.maximum(least, nucleus.min(axis=-1, keepdims=True))
    return jnp.where(logits >= least, logits, -jnp.inf)


def _log_prob(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _argmax(logits: jax.Array) -> jax.Array:
    """The first of the likeliest tokens: the block that has it, then its place there.

    XLA takes one argmax over a whole vocabulary number by number on a CPU.
    """
    blocks = _blocks(logits, -jnp.inf)
    block = jnp.argmax(blocks.max(axis=-1), axis=-1)
    return _token(logits.shape[1], blocks, block, jnp.argmax(_chosen(blocks, block), axis=-1))


def _inverse_cdf(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """Find the block in which the cumulative sum passes the draw, then the token in that block."""
    blocks = _blocks(jnp.exp(logits - logits.max(axis=-1, keepdims=True)), 0.0)
    per_block = blocks.sum(axis=-1)
    target = uniform * per_block.sum(axis=-1)
    block, before = _first_passing(per_block, target)
    offset, _ = _first_passing(_chosen(blocks, block), target - before)
    return _token(logits.shape[1], blocks, block, offset)


def _blocks(values: jax.Array, filler: float) -> jax.Array:
    """`[N, V]` as `[N, B, BLOCK]`; no block lies in two of the shards that the vocabulary is in."""
    n, vocab = values.shape
    values = values.reshape(n, num_shards("vocab", vocab), -1)
    room = -values.shape[2] % BLOCK
    padded = jnp.pad(values, ((0, 0), (0, 0), (0, room)), constant_values=filler)
    return padded.reshape(n, -1, BLOCK)


def _chosen(blocks: jax.Array, block: jax.Array) -> jax.Array:
    """One block of each row, `[N, BLOCK]`."""
    return jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]


def _token(vocab: int, blocks: jax.Array, block: jax.Array, offset: jax.Array) -> jax.Array:
    """Ids of what lies at `offset` `[N]` in block number `block` `[N]`."""
    shards = num_shards("vocab", vocab)
    shard, block = jnp.divmod(block, blocks.shape[1] // shards)
    return (shard * (vocab // shards) + block * BLOCK + offset).astype(jnp.int32)


def _first_passing(weights: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First index of `[N, K]` where the cumulative sum exceeds `target` `[N]`, and the sum before.

    Rounding can leave the target at or beyond the total; the last index of positive weight is
    taken then, so a token of no probability is never drawn.
    """
    cumulative = jnp.cumsum(weights, axis=-1)
    positive = weights > 0
    last = weights.shape[1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
    passed = (cumulative > target[:, None]) & positive
    index = jnp.where(passed.any(axis=-1), jnp.argmax(passed, axis=-1), last)
    upto = jnp.take_along_axis(cumulative, index[:, None], axis=-1)[:, 0]
    return index, upto - jnp.take_along_axis(weights, index[:, None], axis=-1)[:, 0]
