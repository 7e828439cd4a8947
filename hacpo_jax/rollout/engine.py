"""From lists of token ids to answers: one key per answer, and slots that prompts take in turn."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.parallel.layout import Layout, fetch, one_device
from hacpo_jax.parallel.mesh import local_share
from hacpo_jax.rollout.buckets import fitting_width, ring_widths
from hacpo_jax.rollout.decode import (
    SEGMENT,
    DecodeSpec,
    Drawn,
    Prompts,
    Rows,
    decode,
    enter,
    gather_weights,
    prefill,
    weights_apart,
)
from hacpo_jax.rollout.jobs import Jobs, Rollouts
from hacpo_jax.rollout.ring import empty_ring, resize_ring, ring_shape, token_axes, width_of
from hacpo_jax.rollout.schedule import NONE, Entering, Schedule


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


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What is decoded at a time.

    Args:
      prompts: of each process, one in each of its slots.
      samples: answers of one agent to each of them.
    """

    prompts: int
    samples: int

    def entering(self, layout: Layout) -> int:
        """Prompts of each process that are read at once when slots have become empty: an eighth of
        the slots, as many for each device."""
        return max(self.prompts // layout.local_rows // 8, 1) * layout.local_rows


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

    Each process takes its share of the prompts, `layout.mine`. At most `max_rows` answers of all
    processes are drawn at once, but one of each device. Prompts lie in slots, and when the answers
    to some have ended, waiting ones take their slots. A slot is for one prompt with its answers, of
    all agents, so that the prompt's keys and values are held once: it is free when the longest has
    ended.

    An answer is the same wherever it is drawn, and whichever others are drawn with it.

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
    share = local_share(len(prompts), layout.processes)  # of the process with most prompts
    chunk = chunk_of(layout, share, keys.shape[2], max_rows)
    key_data = np.asarray(jax.random.key_data(keys))
    jobs = Jobs(prompts, key_data, chunk.samples, spec, layout)
    with layout.use():
        weights = params
        if copies_weights(layout, params, spec.dtype):
            weights = gather_weights(params, spec=spec)
        _Slots(jobs, chunk, weights, spec, layout).run()
    return jobs.answers()


def copies_weights(layout: Layout, params, dtype: jnp.dtype) -> bool:
    """Whether decoding takes a copy of the parameters, in another dtype or gathered."""
    return layout.sizes["fsdp"] > 1 or any(x.dtype != dtype for x in jax.tree.leaves(params))


class _Slots:
    """Prompts enter slots, and segments of tokens are drawn in turn.

    What a program has drawn is read while the next one runs; only where the answers are is waited
    for.
    """

    def __init__(self, jobs: Jobs, chunk: Chunk, weights: Any, spec: DecodeSpec, layout: Layout):
        self._jobs, self._weights, self._spec, self._layout = jobs, weights, spec, layout
        self._owners, count = layout.row_owners, chunk.prompts * layout.processes
        self._own = jax.process_index() if layout.processes > 1 else 0
        self._schedule = Schedule(jobs.queues, self._owners, count)
        self._per_part = chunk.entering(layout) // layout.local_rows
        self._drawn = np.ones(count, int)  # tokens of the longest answer in each slot
        self._unread: list[tuple[np.ndarray, np.ndarray, Drawn]] = []
        self._widths, self._at = ring_widths(spec.max_new_tokens), 0
        shape = ring_shape(spec.model, (jobs.agents, count, chunk.samples), self._widths[0])
        self._ring = empty_ring(shape, spec.dtype, layout, spec.for_cpu)
        self._prompts, self._rows = self._read(self._schedule.enter(count // layout.rows))

    def run(self) -> None:
        """Until every job is done."""
        schedule = self._schedule
        while True:
            running = (schedule.jobs != NONE) & (self._drawn < self._spec.max_new_tokens)
            if running.any():  # or every answer has its only token
                running = self._advance(int(self._drawn[running].max()) - 1)
            schedule.release(running)
            if not schedule.unfinished:
                break
            while schedule.may_enter:
                self._refill(schedule.enter(self._per_part))
        self._write_unread()

    def _read(self, entering: Entering) -> tuple[Prompts, Rows]:
        """Read prompts and draw their first tokens."""
        mine = self._mine(entering.jobs)
        prompts, lengths, keys, active = self._jobs.read(mine)
        prompts, lengths, active = self._layout.put((prompts, lengths, active), "rows")
        keys = self._layout.put(keys, "agents", "rows")
        arrays = (prompts, lengths, keys, active)
        new_prompts, new_rows, drawn = prefill(self._weights, *arrays, spec=self._spec)
        self._unread.append((mine, np.zeros(len(mine), int), drawn))
        return new_prompts, new_rows

    def _refill(self, entering: Entering) -> None:
        """Read prompts into empty slots."""
        new = self._read(entering)
        slots = self._layout.put(self._mine(entering.slots), "rows")
        self._prompts, self._rows = enter(self._prompts, self._rows, new, slots)
        per_part = len(self._drawn) // len(self._owners)
        places = np.arange(len(entering.slots)) // self._per_part * per_part + entering.slots
        self._drawn[places[entering.jobs != NONE]] = 1

    def _advance(self, longest: int) -> np.ndarray:
        """Draw a segment.

        Args:
          longest: tokens in the ring of the longest running answer.

        Returns:
          bool `[N]`, the slots with an answer that has not ended.
        """
        schedule, width = self._schedule, width_of(self._ring)
        wanted = fitting_width(self._widths, width, longest)
        if wanted != width:
            self._resize(wanted)
        # With nobody waiting there is no slot to return for.
        enough = schedule.enough - schedule.can_enter if schedule.waiting else len(schedule.jobs)
        steps = min(SEGMENT, wanted - longest)
        scalars = np.array([self._at, steps, max(enough, 1)], np.int32)
        state = (self._weights, self._layers, self._prompts, self._rows, self._ring)
        self._rows, self._ring, drawn, progress = decode(*state, *scalars, spec=self._spec)
        before, jobs = self._mine(self._drawn), self._mine(schedule.jobs)
        self._write_unread()
        self._unread.append((jobs, before, drawn))
        progress = fetch(progress)
        self._at = (self._at + int(progress.steps)) % wanted
        self._drawn = progress.drawn.astype(int)
        return progress.running

    @functools.cached_property
    def _layers(self) -> list | None:
        return weights_apart(self._weights, spec=self._spec) if self._spec.for_cpu else None

    def _resize(self, width: int) -> None:
        """One array after the other, each let go of before the next is made."""
        at, before = np.int32(self._at), width_of(self._ring)
        axes = token_axes(self._ring)
        arrays, structure = jax.tree.flatten(self._ring)
        del self._ring
        for i, axis in enumerate(axes):
            arrays[i] = resize_ring(arrays[i], at, width=width, axis=axis)
        self._ring = jax.tree.unflatten(structure, arrays)
        self._at = min(before, width) % width

    def _write_unread(self) -> None:
        for jobs, before, drawn in self._unread:
            self._jobs.write(jobs, before, fetch(drawn))
        self._unread = []

    def _mine(self, values: np.ndarray) -> np.ndarray:
        """Of values of all slots, or of all prompts that enter, those of this process."""
        return values.reshape(len(self._owners), -1)[self._owners == self._own].ravel()
