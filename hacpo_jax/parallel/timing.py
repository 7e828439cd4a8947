"""Seconds of one step of a group on its mesh: the slowest of arithmetic, memory and links.

A device can do no more FLOPs than its peak, read and write no faster than its memory, and send no
faster than its links; each phase takes as long as the one that binds it, plus a little for every
layer that has to wait for the one before. This orders placements; it does not foretell a clock.
"""

import dataclasses

from hacpo_jax.parallel.chips import Chip
from hacpo_jax.parallel.estimate import (
    RolloutFlops,
    StepFlops,
    UpdateFlops,
    ring_places,
    share,
    step_flops,
)
from hacpo_jax.parallel.memory import (
    BLOCK_COPIES,
    F32,
    StateBytes,
    cache_bytes,
    layer_bytes,
    parameter_count,
)
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.sizes import GroupWork
from hacpo_jax.training.cuts import Load

# Assumptions, not measurements. Shares of the peak that well-fed programs of each kind reach.
PASS_EFFICIENCY = 0.5
"""Of peak FLOP/s in prefill and scoring, whose products are large."""
UPDATE_EFFICIENCY = 0.4
"""Of peak FLOP/s in updates, which also sum and reshape gradients."""
DECODE_EFFICIENCY = 0.3
"""Of peak FLOP/s in decoding, whose products have one row an answer."""
BANDWIDTH_EFFICIENCY = 0.7
"""Of the memory's bytes/s in every phase."""
LINK_EFFICIENCY = 0.6
"""Of the links' bytes/s in every phase; collectives do not use all links at once."""
LAYER_SECONDS = 5e-6
"""A layer's start, which no number of devices shortens: it keeps short decode steps from getting
faster with more devices, and so speaks for small meshes."""
HOST_BANDWIDTH = 20e9
"""Bytes/s between a device and its host, for what is offloaded: about 16 lanes of PCIe 4."""

LOGITS_PASSES = 6
"""How often the logits of a decoded token are read or written while one is drawn."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one device has to do.

    Args:
      flops: of products.
      traffic: bytes between memory and cores.
      sent: bytes to other devices.
      layers: layers that run one after another.
    """

    flops: float = 0
    traffic: float = 0
    sent: float = 0
    layers: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Cost(*(a + b for a, b in pairs))

    def times(self, count: int) -> "Cost":
        """The same, done so often."""
        return Cost(*(count * value for value in dataclasses.astuple(self)))

    def seconds(self, chip: Chip, efficiency: float) -> float:
        """How long it takes."""
        bound = max(
            self.flops / (chip.flops * efficiency),
            self.traffic / (chip.bandwidth * BANDWIDTH_EFFICIENCY),
            self.sent / (chip.link * LINK_EFFICIENCY),
        )
        return bound + self.layers * LAYER_SECONDS


@dataclasses.dataclass(frozen=True)
class GroupSeconds:
    """Estimated seconds of each phase of a group's step.

    Args:
      rollout: answering.
      rescore: scoring own answers before they are shared.
      score: scoring with the reference and for PRP's ratios, after.
      update: learning.
      moves: parameters and optimizer from and to host memory.
    """

    rollout: float
    rescore: float
    score: float
    update: float
    moves: float = 0.0

    @property
    def answering(self) -> float:
        """Until the group's answers can be shared."""
        return self.rollout + self.rescore

    @property
    def learning(self) -> float:
        """From then on."""
        return self.score + self.update

    @property
    def total(self) -> float:
        return self.answering + self.learning + self.moves


def group_seconds(work: GroupWork, mesh: MeshSizes, chip: Chip) -> GroupSeconds:
    """Seconds of one step of a group that has its mesh to itself."""
    agents, flops = share(len(work.agents), mesh.agent), step_flops(work, mesh)
    rollout = _prefill(work, mesh, flops.rollout).times(agents).seconds(chip, PASS_EFFICIENCY)
    rollout += _decode(work, mesh, flops.rollout).times(agents).seconds(chip, DECODE_EFFICIENCY)
    scored = {
        name: _score(work, mesh, flops, name, rows, width)
        .times(agents)
        .seconds(chip, PASS_EFFICIENCY)
        for name, rows, width in work.sizes.scored
    }
    update = _update(work, mesh, flops.updates).times(agents).seconds(chip, UPDATE_EFFICIENCY)
    rescore = scored.pop("rescore", 0.0)
    return GroupSeconds(rollout, rescore, sum(scored.values()), update)


def move_seconds(state: StateBytes) -> float:
    """Parameters come for answering; everything comes for learning, and goes back."""
    return (state.trained + state.base + 2 * state.total) / HOST_BANDWIDTH


def _weights(work: GroupWork, mesh: MeshSizes) -> int:
    """Weights that one pass reads on a device: those of its heads, gathered over `fsdp`.

    Of a separate embedding only the rows of the tokens at hand are read.
    """
    model = work.model
    count = parameter_count(model, mesh, gathered=True)
    return (
        count
        if model.tie_word_embeddings
        else count - model.vocab_size * model.hidden_size // (mesh.tensor)
    )


def _gathered(work: GroupWork, mesh: MeshSizes) -> float:
    """Weights that a device gets from others along `fsdp`."""
    whole = parameter_count(work.model, mesh, gathered=True)
    return whole - parameter_count(work.model, mesh)


def _summed(work: GroupWork, mesh: MeshSizes, tokens: int) -> float:
    """Bytes sent for the sums over `tensor` of what attention and the MLP give, in a ring."""
    stream = tokens * work.model.hidden_size * work.sizes.compute_bytes
    return 2 * work.model.num_layers * 2 * (mesh.tensor - 1) / mesh.tensor * stream


def _pass(work: GroupWork, mesh: MeshSizes, load: Load) -> Cost:
    """All layers over prompts and answers, without their FLOPs: weights once, activations there
    and back."""
    layers, size = work.model.num_layers, work.sizes.param_bytes
    activations = 2 * layers * layer_bytes(work.model, work.sizes, load, mesh)
    return Cost(
        traffic=_weights(work, mesh) * size + activations,
        sent=_gathered(work, mesh) * size + _summed(work, mesh, load.tokens),
        layers=layers,
    )


def _prefill(work: GroupWork, mesh: MeshSizes, flops: RolloutFlops) -> Cost:
    """Weights are gathered here and stay for decoding."""
    sizes = work.sizes
    prompts = Load(share(sizes.chunk_prompts, mesh.rows), sizes.prompt_tokens, 0, 0)
    done = _pass(work, mesh, prompts).times(sizes.chunks)
    return done + Cost(flops=flops.prefill + flops.prefill_head)


def _decode(work: GroupWork, mesh: MeshSizes, flops: RolloutFlops) -> Cost:
    """Every token reads all weights and the whole cache, which grows with the answers."""
    sizes, model = work.sizes, work.model
    answers = share(sizes.chunk_prompts, mesh.rows) * sizes.samples
    logits = LOGITS_PASSES * answers * share(model.vocab_size, mesh.tensor) * F32
    weights = _weights(work, mesh) * sizes.compute_bytes
    prompt, generated = cache_bytes(model, sizes, mesh)
    room = max(sizes.answer_tokens - 1, 1)
    one_token = Cost(
        traffic=weights + prompt + generated * ring_places(sizes) / room**2 + logits,
        sent=_summed(work, mesh, answers),
        layers=model.num_layers,
    )
    steps = sizes.chunks * (sizes.answer_tokens - 1)
    return one_token.times(steps) + Cost(flops=flops.decode + flops.decode_head)


def _score(
    work: GroupWork, mesh: MeshSizes, flops: StepFlops, name: str, rows: int, width: int
) -> Cost:
    total = Cost(flops=flops.scores[name].total)
    for load in work.sizes.score_loads(rows, width, mesh.rows):
        head = 2 * load.answer_tokens * share(work.model.vocab_size, mesh.tensor) * F32
        total += _pass(work, mesh, load) + Cost(traffic=head)
    return total


def _update(work: GroupWork, mesh: MeshSizes, flops: UpdateFlops) -> Cost:
    """Per micro-batch a forward and a backward pass, perhaps one more forward, and the gradient
    into its sum; per update the optimizer."""
    sizes, model = work.sizes, work.model
    passes = 3 if sizes.remat else 2
    head = 2 + BLOCK_COPIES
    free = parameter_count(model, mesh, trained=True)
    whole = parameter_count(model, mesh, trained=True, gathered=True)
    scattered = (whole - free) * F32
    summed = 2 * (mesh.data - 1) / mesh.data * free * F32
    # Parameters and both means are read and written, the sum of gradients is read.
    each = Cost(traffic=free * (2 * sizes.param_bytes + 5 * F32))
    for load in sizes.update_loads(mesh.rows):
        blocks = head * load.answer_tokens * share(model.vocab_size, mesh.tensor) * F32
        each += _pass(work, mesh, load).times(passes) + Cost(
            traffic=blocks + free * (2 * sizes.param_bytes + 2 * F32), sent=scattered + summed
        )
    return each.times(sizes.updates) + Cost(flops=flops.total)
