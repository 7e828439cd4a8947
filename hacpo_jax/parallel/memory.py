"""Bytes that one group holds on one device, from shapes alone.

What stays (parameters, optimizer, frozen copies) is counted exactly. What comes and goes is what
the programs keep by construction; a compiler adds copies and lays out buffers in its own way, so
the sum is right within a factor and not to the byte (see the tests).

Parameters, and all that is shaped like them, lie as `hacpo_jax.parallel.rules` says; rows are
divided by the `data` and `fsdp` axes, agents by `agent`.
"""

import dataclasses
import functools
import math

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from hacpo_jax.models import (
    ModelConfig,
    abstract_params,
    abstract_trained,
    logical_axes,
    trained_axes,
)
from hacpo_jax.parallel.estimate import ONE, block_columns, kv_share, share
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.rules import AXES, GATHERED, RULES, partition_spec
from hacpo_jax.parallel.sizes import GroupWork, StepSizes
from hacpo_jax.rollout import ring_widths
from hacpo_jax.rollout.decode import SEGMENT
from hacpo_jax.training.cuts import Load, count_prompts, lay_rows
from hacpo_jax.training.log_probs import token_blocks

F32 = 4
"""Bytes of the optimizer's means, gradients' sums, softmax, norms and log-probs."""

COUNTERS = 4 * F32
"""Bytes of an agent's counts of updates: two of the optimizer's, those made and those skipped."""

LOGITS_COPIES = 3
"""Arrays as large as the logits of a decoded token: tempered logits, weights, and one between."""

BLOCK_COPIES = 4
"""Arrays as large as one block of the head in the backward pass: logits, probabilities, surprise
and the gradient of the logits; two in a forward pass."""


@dataclasses.dataclass(frozen=True)
class StateBytes:
    """What stays on a device from step to step.

    Args:
      trained: parameters that are trained.
      base: parameters under adapters, once for all agents of a group.
      optimizer: two float32 means of each trained parameter, and counters.
      reference: the frozen start of what is trained.
    """

    trained: int
    base: int
    optimizer: int
    reference: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class RolloutBytes:
    """What a decode holds besides the state.

    Args:
      prompt_cache: keys and values of the prompts, one copy for the G answers of each.
      generated_cache: keys and values of the answers, at the widest.
      layer_cache: the same of the one layer at work.
      working: the most of one layer of the prefill, the logits of one token of every answer, and
        the half of the keys or values that is held twice while the cache grows to its widest.
      weights: copies in the dtype of activations, whole but for `tensor`; 0 where the parameters
        are that already.
      answers: prompts and keys, tokens and log-probs that a segment draws.
    """

    prompt_cache: int
    generated_cache: int
    layer_cache: int
    working: int
    weights: int
    answers: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class ScoreBytes:
    """What a scoring pass holds besides the state.

    Args:
      activations: final states of one micro-batch.
      working: one layer, or one block of the vocabulary if more.
      answers: what is scored, and the result.
    """

    activations: int
    working: int
    answers: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class UpdateBytes:
    """What an update holds besides the state.

    Args:
      accumulator: float32 sums of gradients.
      gradient: of one micro-batch, but for tables.
      weights: copies in the dtype of activations, kept for the backward pass without `remat`.
      activations: of one micro-batch, kept for the backward pass: with `remat` what goes into each
        layer, else what `layer_bytes` says.
      working: blocks of the vocabulary with gradients of final states, or if more what one layer
        computes again.
      batch: the mini-batch, with new log-probs and entropies.
    """

    accumulator: int
    gradient: int
    weights: int
    activations: int
    working: int
    batch: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class GroupBytes:
    """What a group holds on one device: its state, and in turn what each program needs."""

    state: StateBytes
    rollout: RolloutBytes
    score: ScoreBytes
    update: UpdateBytes

    @property
    def largest(self) -> str:
        """The program that needs most: `rollout`, `score` or `update`."""
        totals = {name: getattr(self, name).total for name in ("rollout", "score", "update")}
        return max(totals, key=totals.__getitem__)

    @property
    def transient(self) -> int:
        """What that program needs."""
        return max(self.rollout.total, self.score.total, self.update.total)

    @property
    def peak(self) -> int:
        return self.state.total + self.transient


def group_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> GroupBytes:
    """What a group of agents holds on each device of its mesh."""
    return GroupBytes(
        state=state_bytes(work, mesh),
        rollout=rollout_bytes(work, mesh),
        score=score_bytes(work, mesh),
        update=update_bytes(work, mesh),
    )


def parameter_count(
    model: ModelConfig, mesh: MeshSizes = ONE, *, trained: bool = False, gathered: bool = False
) -> int:
    """Parameters of one agent on one device.

    Args:
      model: shape of the agent.
      mesh: of its group.
      trained: those that are trained only.
      gathered: as they are used in decoding, whole along `fsdp`.
    """
    return _count(model, mesh.fsdp, mesh.tensor, trained, gathered)


@functools.lru_cache(maxsize=4096)
def _count(model: ModelConfig, fsdp: int, tensor: int, trained: bool, gathered: bool) -> int:
    shapes = abstract_trained(model) if trained else abstract_params(model)
    names = trained_axes(model) if trained else logical_axes(model)
    mesh = AbstractMesh((1, 1, fsdp, tensor), AXES)
    rules = GATHERED if gathered else RULES

    def on_one_device(like: jax.ShapeDtypeStruct, axes: tuple[str, ...]) -> int:
        spec = partition_spec(axes, like.shape, mesh.shape, rules)
        return math.prod(NamedSharding(mesh, spec).shard_shape(like.shape))

    return sum(jax.tree.leaves(jax.tree.map(on_one_device, shapes, names)))


def state_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> StateBytes:
    """Parameters and optimizer of a whole group on one device."""
    model, size = work.model, work.sizes.param_bytes
    agents = share(len(work.agents), mesh.agent)
    free = parameter_count(model, mesh, trained=True)
    return StateBytes(
        trained=agents * free * size,
        base=(parameter_count(model, mesh) - free) * size,
        optimizer=agents * (2 * F32 * free + COUNTERS),
        reference=agents * free * size if work.sizes.keeps_reference else 0,
    )


def weight_bytes(work: GroupWork, mesh: MeshSizes, *, gathered: bool) -> int:
    """A group's parameters in the dtype of activations, those under adapters once."""
    model, agents = work.model, share(len(work.agents), mesh.agent)
    everything = parameter_count(model, mesh, gathered=gathered)
    free = parameter_count(model, mesh, trained=True, gathered=gathered)
    return (agents * free + everything - free) * work.sizes.compute_bytes


def rollout_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> RolloutBytes:
    """A group's answers to the prompts in all slots."""
    model, sizes = work.model, work.sizes
    agents, prompts = share(len(work.agents), mesh.agent), share(sizes.chunk_prompts, mesh.rows)
    answers = prompts * sizes.samples
    prompt, generated = cache_bytes(model, sizes, mesh)
    prefill = layer_bytes(model, sizes, Load(prompts, sizes.prompt_tokens, 0, 0), mesh)
    logits = LOGITS_COPIES * answers * share(model.vocab_size, mesh.tensor) * F32
    grows = len(ring_widths(sizes.answer_tokens)) > 1
    drawn = answers * (2 * SEGMENT + 6)
    copied = mesh.fsdp > 1 or sizes.param_bytes != sizes.compute_bytes
    return RolloutBytes(
        prompt_cache=agents * prompt,
        generated_cache=agents * generated,
        layer_cache=agents * generated // model.num_layers,
        working=agents * max(prefill, logits, generated // 4 if grows else 0),
        weights=weight_bytes(work, mesh, gathered=True) if copied else 0,
        answers=agents * 4 * (drawn + prompts * (sizes.prompt_tokens + 2)),
    )


def cache_bytes(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> tuple[int, int]:
    """One agent's keys and values of a chunk: of the prompts, and of all answers to them."""
    position = 2 * model.num_layers * kv_share(model, mesh) * model.head_dim * sizes.compute_bytes
    prompts, room = share(sizes.chunk_prompts, mesh.rows), ring_widths(sizes.answer_tokens)[-1]
    return prompts * sizes.prompt_tokens * position, prompts * sizes.samples * room * position


def score_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> ScoreBytes:
    """A group's largest scoring pass; nothing where there is none."""
    sizes = work.sizes
    if not sizes.scored:
        return ScoreBytes(0, 0, 0)
    agents = share(len(work.agents), mesh.agent)
    found = [_one_score(work, mesh, rows, width) for _, rows, width in sizes.scored]
    return ScoreBytes(*(agents * max(values) for values in zip(*found, strict=True)))


def _one_score(work: GroupWork, mesh: MeshSizes, rows: int, width: int) -> tuple[int, int, int]:
    """One agent's pass: final states, what is at work, and answers with the result."""
    model, sizes = work.model, work.sizes
    loads = sizes.score_loads(rows, width, mesh.rows)
    load = max(loads, key=lambda each: each.tokens)
    block = 2 * token_blocks(load.answer_tokens)[1] * block_columns(model, mesh) * F32
    answers = share(rows, mesh.rows)
    prompts = row_prompts(rows, rows // sizes.prompts, mesh)
    return (
        load.tokens * model.hidden_size * sizes.compute_bytes,
        max(layer_bytes(model, sizes, load, mesh), block),
        4 * (answers * (2 * width + 2) + prompts * (sizes.prompt_tokens + 1)) + cut_bytes(load),
    )


def row_prompts(answers: int, samples: int, mesh: MeshSizes) -> int:
    """Prompts of the row that has most, of answers in rows, `samples` to each prompt."""
    numbers = np.arange(answers) // samples
    return count_prompts(lay_rows(numbers, mesh.rows, share(answers, mesh.rows)).prompt_of)


def cut_bytes(load: Load) -> int:
    """Of a micro-batch's places in the arrays of all answers."""
    return 4 * (2 * load.answers + load.prompts)


def update_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> UpdateBytes:
    """A group's update from one mini-batch of each agent."""
    model, sizes, hidden = work.model, work.sizes, work.model.hidden_size
    agents = share(len(work.agents), mesh.agent)
    load = max(sizes.update_loads(mesh.rows), key=lambda each: each.tokens)
    free = parameter_count(model, mesh, trained=True)
    layer = layer_bytes(model, sizes, load, mesh)
    inside = inside_bytes(model, sizes, load, mesh)
    stream = load.tokens * hidden * sizes.compute_bytes
    copied = sizes.param_bytes != sizes.compute_bytes and not sizes.remat
    # Gradients of embedding and head are added to the sums as they come.
    tables = 0 if model.lora else (1 if model.tie_word_embeddings else 2)
    tables *= share(model.vocab_size * hidden, mesh.fsdp * mesh.tensor)
    block = BLOCK_COPIES * token_blocks(load.answer_tokens)[1] * block_columns(model, mesh)
    head = (block + load.answer_tokens * hidden) * F32
    kept = model.num_layers * (stream if sizes.remat else layer) + 2 * stream
    return UpdateBytes(
        accumulator=agents * free * F32,
        gradient=agents * (free - tables) * sizes.param_bytes,
        weights=weight_bytes(work, mesh, gathered=False) if copied else 0,
        activations=agents * kept,
        working=agents * max(inside + (layer if sizes.remat else 0), head),
        batch=agents * (batch_bytes(sizes, mesh) + cut_bytes(load)),
    )


def batch_bytes(sizes: StepSizes, mesh: MeshSizes = ONE) -> int:
    """One mini-batch: prompts and their lengths, answers with old and reference log-probs, new
    ones and entropies, and 6 numbers an answer."""
    answers = share(sizes.update_rows, mesh.rows)
    prompts = row_prompts(sizes.update_rows, sizes.samples, mesh)
    per_answer = 5 * sizes.row_tokens + 6
    return 4 * (answers * per_answer + prompts * (sizes.prompt_tokens + 1))


def layer_bytes(model: ModelConfig, sizes: StepSizes, load: Load, mesh: MeshSizes = ONE) -> int:
    """What one layer keeps of a row of prompts and answers for its backward pass.

    For every token, in the dtype of activations unless said otherwise: what goes into both norms;
    queries, keys and values of attention with its output; queries and keys before their own norms,
    with scales in float32; what goes into the second product of the adapter behind attention; two
    arrays as wide as the MLP. Prompts' keys and values once more; with fused kernels, for every
    answer queries, keys, values and output of itself with its prompt, and one float32 for each
    head.
    """
    b, hidden = sizes.compute_bytes, model.hidden_size
    heads, kv_heads = share(model.num_heads, mesh.tensor), kv_share(model, mesh)
    queries, keys = heads * model.head_dim, kv_heads * model.head_dim
    per_token = b * 2 * (hidden + queries + keys + share(model.intermediate_size, mesh.tensor))
    if model.qk_norm:
        per_token += (queries + keys) * b + (heads + kv_heads) * F32
    if model.lora is not None and "o" in model.lora.targets:
        per_token += model.lora.rank * b
    kept = load.tokens * per_token + load.prompt_tokens * 2 * keys * b
    if sizes.attention == "xla":
        return kept
    copied = load.answers * (load.prompt_width + load.width)
    return kept + copied * 2 * (queries + keys) * b + heads * (load.prompt_tokens + copied) * F32


def inside_bytes(model: ModelConfig, sizes: StepSizes, load: Load, mesh: MeshSizes = ONE) -> int:
    """What the backward pass of one layer computes again for a while: with `xla`, for each head the
    scores of all pairs in float32 with their softmax."""
    if sizes.attention != "xla":
        return 0
    return share(model.num_heads, mesh.tensor) * load.pairs * (F32 + sizes.compute_bytes)
