"""Bytes that one group holds on one device, from shapes alone.

What stays (parameters, optimizer, frozen copies) is counted exactly. What comes and goes is what
the programs keep by construction; a compiler adds copies and lays out buffers in its own way, so
the sum is right within a factor and not to the byte (see the tests).

Parameters, and all that is shaped like them, are divided by the `fsdp` and `tensor` axes (key and
value weights not by `tensor` where their heads cannot be), rows by `data` and `fsdp`, agents by
`agent`.
"""

import dataclasses
import math
from typing import Any

import jax
from flax import traverse_util

from hacpo_jax.models import ModelConfig, abstract_params, abstract_trained, logical_axes
from hacpo_jax.parallel.estimate import ONE, kv_share, share
from hacpo_jax.parallel.sizes import GroupWork, MeshSizes, StepSizes
from hacpo_jax.training.log_probs import BLOCK

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
      generated_cache: keys and values of the answers.
      layer_cache: the same of the one layer at work.
      working: one layer of the prefill, or the logits of one token of every answer if more.
      head: the output head in the dtype of activations, where parameters have another.
      answers: prompts and keys, tokens and log-probs drawn.
    """

    prompt_cache: int
    generated_cache: int
    layer_cache: int
    working: int
    head: int
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
      gradient: of one micro-batch.
      weights: copies in the dtype of activations, kept for the backward pass without `remat`.
      activations: of one micro-batch, kept for the backward pass: with `remat` what goes into each
        layer, else all that lies within.
      working: blocks of the vocabulary with gradients of final states and of the head, or with
        `remat` the inside of one layer if more.
      batch: the mini-batch.
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
    def transient(self) -> int:
        """Of the program that needs most."""
        return max(self.rollout.total, self.score.total, self.update.total)

    @property
    def peak(self) -> int:
        return self.state.total + self.transient


def group_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> GroupBytes:
    """What a group of agents holds on each device of its mesh."""
    agents = share(len(work.agents), mesh.agent)
    return GroupBytes(
        state=state_bytes(work, mesh),
        rollout=_times(rollout_bytes(work.model, work.sizes, mesh), agents),
        score=_times(score_bytes(work.model, work.sizes, mesh), agents),
        update=_times(update_bytes(work.model, work.sizes, mesh), agents),
    )


def parameter_count(model: ModelConfig, mesh: MeshSizes = ONE, *, trained: bool = False) -> int:
    """Parameters of one agent on one device: all of them, or those that are trained."""
    shapes = abstract_trained(model) if trained else abstract_params(model)
    axes: dict[tuple[str, ...], Any] = dict(traverse_util.flatten_dict(logical_axes(model)))  # type: ignore[arg-type]
    lone_heads = model.num_kv_heads % mesh.tensor
    total = 0
    for path, shape in jax.tree_util.tree_leaves_with_path(shapes):
        whole = lone_heads and "kv_heads" in axes[tuple(key.key for key in path)]
        total += share(math.prod(shape.shape), mesh.fsdp * (1 if whole else mesh.tensor))
    return total


def state_bytes(work: GroupWork, mesh: MeshSizes = ONE) -> StateBytes:
    """Parameters and optimizer of a whole group on one device."""
    model, size = work.model, work.sizes.param_bytes
    agents = share(len(work.agents), mesh.agent)
    everything = parameter_count(model, mesh)
    free = everything if model.lora is None else parameter_count(model, mesh, trained=True)
    return StateBytes(
        trained=agents * free * size,
        base=(everything - free) * size,
        optimizer=agents * (2 * F32 * free + COUNTERS),
        reference=agents * free * size if work.sizes.keeps_reference else 0,
    )


def rollout_bytes(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> RolloutBytes:
    """One agent's decode of one chunk of prompts."""
    prompts = share(sizes.chunk_prompts, mesh.rows)
    answers, room = prompts * sizes.samples, max(sizes.answer_tokens - 1, 1)
    position = cache_bytes(model, sizes, mesh)
    generated = answers * room * position
    prefill = layer_bytes(model, sizes, prompts, sizes.prompt_tokens, mesh)
    vocab = share(model.vocab_size, mesh.tensor)
    casts = sizes.param_bytes != sizes.compute_bytes
    drawn = answers * (2 * sizes.answer_tokens + 4)
    return RolloutBytes(
        prompt_cache=prompts * sizes.prompt_tokens * position,
        generated_cache=generated,
        layer_cache=generated // model.num_layers,
        working=max(prefill, LOGITS_COPIES * answers * vocab * F32),
        head=vocab * model.hidden_size * sizes.compute_bytes if casts else 0,
        answers=4 * (drawn + prompts * (sizes.prompt_tokens + 2)),
    )


def cache_bytes(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> int:
    """Keys and values of one token in all layers."""
    return 2 * model.num_layers * kv_share(model, mesh) * model.head_dim * sizes.compute_bytes


def score_bytes(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> ScoreBytes:
    """One agent's largest scoring pass; nothing where there is none."""
    if not sizes.scored:
        return ScoreBytes(0, 0, 0)
    rows = max(rows for _, rows, _ in sizes.scored)
    width = max(width for _, _, width in sizes.scored)
    size = min(sizes.micro_batch_rows, rows)
    local, tokens = share(size, mesh.rows), sizes.prompt_tokens + width
    block = 2 * local * width * min(BLOCK, model.vocab_size) * F32
    return ScoreBytes(
        activations=local * tokens * model.hidden_size * sizes.compute_bytes,
        working=max(layer_bytes(model, sizes, local, tokens, mesh), block),
        answers=4 * local * share(rows, size) * (sizes.prompt_tokens + 2 * width + 2),
    )


def update_bytes(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> UpdateBytes:
    """One agent's update from one mini-batch."""
    rows, width = share(sizes.micro_rows, mesh.rows), sizes.row_tokens
    tokens, hidden = sizes.prompt_tokens + width, model.hidden_size
    free = parameter_count(model, mesh, trained=True)
    layer = layer_bytes(model, sizes, rows, tokens, mesh)
    stream = rows * tokens * hidden * sizes.compute_bytes
    casts = sizes.param_bytes != sizes.compute_bytes and not sizes.remat
    table = 0 if model.lora else share(model.vocab_size * hidden, mesh.fsdp * mesh.tensor) * F32
    block = BLOCK_COPIES * min(BLOCK, model.vocab_size)
    head = rows * width * (block + hidden) * F32 + table
    return UpdateBytes(
        accumulator=free * F32,
        gradient=free * sizes.param_bytes,
        weights=parameter_count(model, mesh) * sizes.compute_bytes if casts else 0,
        activations=model.num_layers * (stream if sizes.remat else layer) + 2 * stream,
        working=max(layer, head) if sizes.remat else head,
        batch=batch_bytes(sizes, mesh),
    )


def batch_bytes(sizes: StepSizes, mesh: MeshSizes = ONE) -> int:
    """One mini-batch: prompts, answers with old and reference log-probs, and 6 numbers a row."""
    rows = share(sizes.micro_rows, mesh.rows) * sizes.micro_batches
    return 4 * rows * (sizes.prompt_tokens + 3 * sizes.row_tokens + 6)


def layer_bytes(
    model: ModelConfig, sizes: StepSizes, rows: int, tokens: int, mesh: MeshSizes = ONE
) -> int:
    """What one layer keeps of `rows` sequences of `tokens` tokens for its backward pass.

    For every token, in the dtype of activations unless said otherwise: both norms' inputs in
    float32 with their scales, what they give before and after their weights; queries and output of
    attention, keys and values; queries and keys before their own norms in float32 and after; what
    goes into the products of adapters; six arrays as wide as the MLP; and with `xla` the scores of
    all pairs in float32 with their softmax, else one float32 for each head.
    """
    b, hidden = sizes.compute_bytes, model.hidden_size
    heads, kv_heads = share(model.num_heads, mesh.tensor), kv_share(model, mesh)
    queries, keys = heads * model.head_dim, kv_heads * model.head_dim
    per_token = hidden * (2 * F32 + 4 * b) + 4 * F32 + b * 2 * (queries + keys)
    if model.qk_norm:
        per_token += (queries + keys) * (F32 + b) + 2 * (heads + kv_heads) * F32
    if model.lora is not None:
        per_token += len(model.lora.targets) * model.lora.rank * b
    per_token += 6 * share(model.intermediate_size, mesh.tensor) * b
    pairs = tokens * (F32 + b) + 2 * F32 if sizes.attention == "xla" else F32
    return rows * tokens * (per_token + heads * pairs)


def _times(held, count: int):
    """The same for several agents."""
    return type(held)(*(count * value for value in dataclasses.astuple(held)))
