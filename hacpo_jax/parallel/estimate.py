"""FLOPs of one step of one agent, from shapes alone.

Only products of matrices are counted, 2·m·n·k each, exactly as the programs make them: prompts are
answered from one prefill and scored and learned from in one pass, decoding attends to the whole
cache whatever is filled (it grows, see `hacpo_jax.rollout.ring_widths`), every answer is as long as
the longest, and filler counts. What is done per element (norms, rotations, softmax, sampling,
AdamW) is left out: about 3% of a small model's work and less of a large one's.

All functions give one device's share: rows are divided by the `data` and `fsdp` axes, rounded up
since a device with fewer rows waits for the others, heads, MLP and vocabulary by the `tensor` axis.
"""

import dataclasses

import numpy as np

from hacpo_jax.models import AttentionKind, ModelConfig
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.sizes import GroupWork, StepSizes
from hacpo_jax.rollout import ring_widths
from hacpo_jax.training.cuts import Load
from hacpo_jax.training.log_probs import BLOCK, token_blocks

ONE = MeshSizes()

# Products of queries and keys' size in the backward pass, for two in the forward pass. Those that a
# flash kernel computes again count here, with splash attention for queries and for keys; those of
# `xla` are part of `UpdateFlops.recompute`.
BACKWARD_PRODUCTS: dict[AttentionKind, int] = {"xla": 4, "cudnn": 5, "splash": 7}


@dataclasses.dataclass(frozen=True)
class Forward:
    """FLOPs of a model's products over some tokens, of all layers.

    Args:
      projections: queries, keys, values and output.
      mlp: the two products into the MLP.
      mlp_out: the product out of it.
      adapters: of LoRA, but for the last.
      adapters_out: the last product of the adapter of the MLP's output.
      adapters_again: of `adapters`, what a gradient computes once more instead of keeping it.
      attention: queries times keys, and weights times values.
    """

    projections: int
    mlp: int
    mlp_out: int
    adapters: int
    adapters_out: int
    adapters_again: int
    attention: int

    @property
    def weights(self) -> int:
        """Products with frozen or trained weights that are not adapters."""
        return self.projections + self.mlp + self.mlp_out

    @property
    def total(self) -> int:
        return self.weights + self.adapters + self.adapters_out + self.attention


@dataclasses.dataclass(frozen=True)
class RolloutFlops:
    """FLOPs of answering all prompts of a step.

    Args:
      prefill: layers over every prompt once.
      prefill_head: logits of the first token, once for the answers to a prompt.
      decode: layers over every further token, at the longest answer.
      decode_head: logits of the same.
    """

    prefill: int
    prefill_head: int
    decode: int
    decode_head: int

    @property
    def total(self) -> int:
        return self.prefill + self.prefill_head + self.decode + self.decode_head


@dataclasses.dataclass(frozen=True)
class ScoreFlops:
    """FLOPs of one pass that scores answers.

    Args:
      layers: over prompts and answers.
      head: blocks of the vocabulary for every token of the answers.
    """

    layers: int
    head: int

    @property
    def total(self) -> int:
        return self.layers + self.head


@dataclasses.dataclass(frozen=True)
class UpdateFlops:
    """FLOPs of all updates of a step.

    Args:
      forward: layers over prompts and answers.
      recompute: what is computed once more instead of being kept: with `remat` layers, all but
        the last product, which nothing needs; else the weights of attention with `xla`, and what
        goes into the second products of adapters.
      backward: gradients of activations and of what is trained.
      head_forward: blocks of the vocabulary.
      head_backward: the same blocks once more, and their gradients.
    """

    forward: int
    recompute: int
    backward: int
    head_forward: int
    head_backward: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step.

    Args:
      rollout: of answering.
      scores: of each scoring pass, by what it is for (see `StepSizes.scored`).
      updates: of learning.
    """

    rollout: RolloutFlops
    scores: dict[str, ScoreFlops]
    updates: UpdateFlops

    @property
    def scoring(self) -> int:
        """Of all scoring passes."""
        return sum(score.total for score in self.scores.values())

    @property
    def total(self) -> int:
        return self.rollout.total + self.scoring + self.updates.total


def step_flops(work: GroupWork, mesh: MeshSizes = ONE) -> StepFlops:
    """FLOPs of one agent in one step on each device of a mesh; on one device, the agent's whole."""
    model, sizes = work.model, work.sizes
    scores = {
        name: score_flops(model, sizes, rows, width, mesh) for name, rows, width in sizes.scored
    }
    return StepFlops(rollout_flops(model, sizes, mesh), scores, update_flops(model, sizes, mesh))


def rollout_flops(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> RolloutFlops:
    """Prefill once per prompt, then C - 1 tokens of G answers to each, all slots filled at once."""
    prompts = share(sizes.chunk_prompts, mesh.rows)
    answers, steps = prompts * sizes.samples, sizes.answer_tokens - 1
    # Keys and values of the prompt and of the ring, and the new token's own key; its value is one
    # factor each.
    attended = answers * (2 * (steps * sizes.prompt_tokens + ring_places(sizes)) + steps)
    alone = Load(prompts, sizes.prompt_tokens, 0, 0)
    prefill = forward_flops(model, alone, sizes.attention, mesh)
    tokens = products_flops(model, answers * steps, attended, mesh)
    head = 2 * prompts * model.hidden_size * share(model.vocab_size, mesh.tensor)
    return RolloutFlops(
        prefill=sizes.chunks * prefill.total,
        prefill_head=sizes.chunks * head,
        decode=sizes.chunks * tokens.total,
        decode_head=sizes.chunks * steps * sizes.samples * head,
    )


def ring_places(sizes: StepSizes) -> int:
    """Places of the ring that an answer attends to, added up over its tokens but the first."""
    places, drawn, last = 0, 0, sizes.answer_tokens - 1
    for width in ring_widths(sizes.answer_tokens):
        filled = min(width, last)
        places, drawn = places + (filled - drawn) * width, filled
    return places


def score_flops(
    model: ModelConfig, sizes: StepSizes, rows: int, width: int, mesh: MeshSizes = ONE
) -> ScoreFlops:
    """One pass over `rows` answers of `width` tokens, micro-batch by micro-batch."""
    loads = sizes.score_loads(rows, width, mesh.rows)
    return ScoreFlops(
        layers=sum(forward_flops(model, load, sizes.attention, mesh).total for load in loads),
        head=sum(head_flops(model, load.answer_tokens, mesh) for load in loads),
    )


def update_flops(model: ModelConfig, sizes: StepSizes, mesh: MeshSizes = ONE) -> UpdateFlops:
    """Forward and backward passes over every micro-batch of every update."""
    parts = [micro_batch_flops(model, sizes, load, mesh) for load in sizes.update_loads(mesh.rows)]
    sums = np.sum([dataclasses.astuple(part) for part in parts], axis=0).tolist()
    return UpdateFlops(*(sizes.updates * value for value in sums))


def micro_batch_flops(
    model: ModelConfig, sizes: StepSizes, load: Load, mesh: MeshSizes = ONE
) -> UpdateFlops:
    """Forward and backward pass over one micro-batch."""
    layers = forward_flops(model, load, sizes.attention, mesh)
    head = head_flops(model, load.answer_tokens, mesh)
    # By activations and by weights, the latter for what is trained only.
    trains_weights = model.lora is None
    weights = layers.weights * (2 if trains_weights else 1)
    adapters = 2 * (layers.adapters + layers.adapters_out)
    attention = layers.attention * BACKWARD_PRODUCTS[sizes.attention] // 2
    if sizes.remat:
        again = layers.total - layers.mlp_out - layers.adapters_out
    else:
        again = layers.adapters_again + (layers.attention // 2 if sizes.attention == "xla" else 0)
    return UpdateFlops(
        forward=layers.total,
        recompute=again,
        backward=weights + adapters + attention,
        # Probabilities times logits, for the entropy.
        head_forward=head + head // model.hidden_size,
        head_backward=head * (3 if trains_weights else 2),
    )


def forward_flops(
    model: ModelConfig, load: Load, attention: AttentionKind = "xla", mesh: MeshSizes = ONE
) -> Forward:
    """One pass of all layers over prompts and answers to them."""
    width, whole = load.prompt_width, load.prompt_width + load.width
    if attention == "xla":
        pairs = load.pairs
    else:  # answers are rows of their own with a copy of their prompt
        pairs = load.prompts * width * (width + 1) + load.answers * whole * (whole + 1)
        pairs //= 2
    return products_flops(model, load.tokens, 2 * pairs, mesh)


def products_flops(
    model: ModelConfig, tokens: int, attended: int, mesh: MeshSizes = ONE
) -> Forward:
    """All layers' products for `tokens` tokens, which meet keys or values `attended` times."""
    hidden, heads = model.hidden_size, share(model.num_heads, mesh.tensor)
    kv_heads = kv_share(model, mesh)
    queries, keys = heads * model.head_dim, kv_heads * model.head_dim
    inner = share(model.intermediate_size, mesh.tensor)
    per_token = 2 * model.num_layers * tokens
    rank, targets = (0, ()) if model.lora is None else (model.lora.rank, model.lora.targets)
    into = {"q": hidden, "k": hidden, "v": hidden, "o": queries}
    into |= {"gate": hidden, "up": hidden, "down": inner}
    out = {"q": queries, "k": keys, "v": keys, "o": hidden, "gate": inner, "up": inner}
    return Forward(
        projections=per_token * 2 * hidden * (queries + keys),
        mlp=per_token * 2 * hidden * inner,
        mlp_out=per_token * hidden * inner,
        adapters=per_token * rank * sum(into[name] + out.get(name, 0) for name in targets),
        adapters_out=per_token * rank * hidden if "down" in targets else 0,
        adapters_again=per_token * rank * sum(into[name] for name in targets if name != "o"),
        attention=2 * model.num_layers * attended * queries,
    )


def head_flops(model: ModelConfig, tokens: int, mesh: MeshSizes = ONE) -> int:
    """Logits of a row's tokens in blocks of tokens, evenly filled up, and of the vocabulary, of
    which the last overlaps another."""
    rows, block = share(model.vocab_size, mesh.tensor), block_columns(model, mesh)
    parts, size = token_blocks(tokens)
    return 2 * parts * size * model.hidden_size * share(rows, block) * block


def block_columns(model: ModelConfig, mesh: MeshSizes) -> int:
    """Ids of one block of the vocabulary on one device."""
    return min(share(BLOCK, mesh.tensor), share(model.vocab_size, mesh.tensor))


def share(count: int, parts: int) -> int:
    """The largest part of `count` things divided as evenly as can be."""
    return -(-count // parts)


def kv_share(model: ModelConfig, mesh: MeshSizes) -> int:
    """Key and value heads on one device: all of them where the `tensor` axis does not divide."""
    whole = model.num_kv_heads % mesh.tensor
    return model.num_kv_heads if whole else model.num_kv_heads // mesh.tensor
