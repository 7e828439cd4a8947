"""From lists of token ids to answers: padding, chunking, and one key per answer."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.rollout.buckets import bucket
from hacpo_jax.rollout.decode import DecodeSpec, decode


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """Answers on the host; see `hacpo_jax.rollout.decode.Responses` for shapes."""

    tokens: np.ndarray  # [A, P, G, C]
    log_probs: np.ndarray  # [A, P, G, C]
    lengths: np.ndarray  # [A, P, G]
    stopped: np.ndarray  # [A, P, G]


def answer_keys(
    seed: int, agents: Sequence[int], step: int, prompt_ids: Sequence[int], num_samples: int
) -> jax.Array:
    """One PRNG key per answer, `[A, P, G]`, from the run's seed and the answer's own indices."""
    base = jax.random.fold_in(jax.random.key(seed), step)
    return _answer_keys(base, jnp.asarray(agents), jnp.asarray(prompt_ids), jnp.arange(num_samples))


@jax.jit
def _answer_keys(base, agents, prompts, samples):
    fold = jax.random.fold_in
    over_samples = jax.vmap(fold, in_axes=(None, 0))
    over_prompts = jax.vmap(lambda key, p: over_samples(fold(key, p), samples), in_axes=(None, 0))
    return jax.vmap(lambda agent: over_prompts(fold(base, agent), prompts))(agents)


def pad_left(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Token ids `[N, width]`, each row moved to the right end."""
    padded = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        padded[i, width - len(row) :] = row
    return padded


def answer(
    params,
    prompts: Sequence[Sequence[int]],
    keys: jax.Array,
    spec: DecodeSpec,
    *,
    max_rows: int,
) -> Rollouts:
    """Answer every prompt G times with every agent of a group.

    Prompts are taken in chunks of at most `max_rows` answers; the last chunk is filled up with
    rows that end at once, so one program serves all chunks of a prompt-length bucket.

    Args:
      params: parameters of the agents, `[A, ...]` each.
      prompts: P lists of token ids, none empty.
      keys: `[A, P, G]` typed PRNG keys from `answer_keys`.
      spec: what is static about the decode.
      max_rows: answers of one agent decoded at a time; at least G.

    Returns:
      The answers, in the order of `prompts`.
    """
    num_samples = keys.shape[2]
    chunk = min(max(max_rows // num_samples, 1), len(prompts))
    width = bucket(max(map(len, prompts)))
    parts = []
    for start in range(0, len(prompts), chunk):
        rows = list(prompts[start : start + chunk])
        filler = chunk - len(rows)
        lengths = np.array([len(row) for row in rows] + [1] * filler, np.int32)
        chunk_keys = keys[:, start : start + chunk]
        if filler:
            last = jnp.broadcast_to(keys[:, -1:], (keys.shape[0], filler, num_samples))
            chunk_keys = jnp.concatenate([chunk_keys, last], axis=1)
        active = np.arange(chunk) < len(rows)
        padded = pad_left(rows + [[0]] * filler, width)
        parts.append((len(rows), decode(params, padded, lengths, chunk_keys, active, spec=spec)))
    fields = [f.name for f in dataclasses.fields(Rollouts)]
    return Rollouts(
        **{
            name: np.concatenate([np.asarray(getattr(r, name))[:, :n] for n, r in parts], axis=1)
            for name in fields
        }
    )
