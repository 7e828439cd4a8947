"""From lists of token ids to answers: padding, chunking, and one key per answer."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.parallel.layout import Layout, fetch, one_device
from hacpo_jax.parallel.mesh import local_share
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


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What is decoded at a time.

    Args:
      prompts: of each process, filler included.
      samples: answers of one agent to each of them.
    """

    prompts: int
    samples: int


def chunk_of(layout: Layout, share: int, num_samples: int, max_rows: int) -> Chunk:
    """As many whole prompts as `max_rows` holds; where each device's own prompt is more than that,
    their answers are divided.

    Args:
      layout: where.
      share: prompts of the process that has most.
      num_samples: G, answers of one agent to each prompt.
      max_rows: answers of one agent, of all processes.
    """
    least, wanted = layout.local_rows, max_rows // (num_samples * layout.processes)
    prompts = min(max(wanted // least, 1) * least, layout.padded(share))
    passes = -(-num_samples // max(max_rows // (prompts * layout.processes), 1))
    return Chunk(prompts, -(-num_samples // passes))


def answer(
    params,
    prompts: Sequence[Sequence[int]],
    keys: jax.Array,
    spec: DecodeSpec,
    *,
    max_rows: int,
    layout: Layout | None = None,
) -> Rollouts:
    """Answer every prompt G times with every agent of a group.

    Each process takes its share of the prompts, `layout.mine`. They are taken in chunks of at most
    `max_rows` answers of all processes, but one of each device; what a chunk lacks is filled up, so
    that one program serves all chunks of a prompt-length bucket.

    Args:
      params: parameters of the agents, `[A, ...]` each.
      prompts: P lists of token ids, none empty; the same in every process.
      keys: `[A, P, G]` typed PRNG keys from `answer_keys`.
      spec: what is static about the decode.
      max_rows: answers of one agent decoded at a time.
      layout: where the parameters are; None is one device.

    Returns:
      The answers to this process's prompts, in order.
    """
    layout = layout or one_device()
    num_samples, width = keys.shape[2], bucket(max(map(len, prompts)))
    mine = layout.mine(len(prompts))
    share = local_share(len(prompts), layout.processes)  # of the process with most prompts
    chunk = chunk_of(layout, share, num_samples, max_rows)
    key_data = np.asarray(jax.random.key_data(keys))
    parts = []
    for start in range(0, share, chunk.prompts):
        chosen = mine[start : start + chunk.prompts]
        filled = np.concatenate([chosen, np.zeros(chunk.prompts - len(chosen), int)])
        active = np.arange(chunk.prompts) < len(chosen)
        rows = [prompts[i] if on else [0] for i, on in zip(filled, active, strict=True)]
        arrays = (pad_left(rows, width), np.array([len(row) for row in rows], np.int32), active)
        padded, lengths, on = layout.put(arrays, "rows")
        for first in range(0, num_samples, chunk.samples):
            # What the last of several passes lacks is answered twice.
            places = np.minimum(np.arange(first, first + chunk.samples), num_samples - 1)
            chunk_keys = layout.put(key_data[:, filled][:, :, places], "agents", "rows")
            with layout.use():
                wrapped = jax.random.wrap_key_data(chunk_keys)
                parts.append((len(chosen), decode(params, padded, lengths, wrapped, on, spec=spec)))
    fields = [f.name for f in dataclasses.fields(Rollouts)]
    found = [(n, fetch(responses)) for n, responses in parts]
    passes = -(-num_samples // chunk.samples)

    def joined(name: str) -> np.ndarray:
        arrays = [getattr(responses, name)[:, :n] for n, responses in found]
        by_chunk = [
            np.concatenate(arrays[i : i + passes], axis=2)[:, :, :num_samples]
            for i in range(0, len(arrays), passes)
        ]
        return np.concatenate(by_chunk, axis=1)

    return Rollouts(**{name: joined(name) for name in fields})
