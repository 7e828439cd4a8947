"""Decode, score and update compiled from shapes, and the work that each should be."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.config import Algorithm, OptimizerConfig
from hacpo_jax.models import Lora, ModelConfig, abstract_params, abstract_trained
from hacpo_jax.models.lora import split, with_base
from hacpo_jax.parallel.layout import Layout, one_device
from hacpo_jax.parallel.mesh import MeshSizes, make_mesh
from hacpo_jax.parallel.sizes import GroupWork, StepSizes
from hacpo_jax.rollout import Chunk, DecodeSpec, Sampler, ring_widths
from hacpo_jax.rollout.decode import decode, prefill
from hacpo_jax.rollout.shapes import SlotShapes
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.scoring import Answers, PolicySpec, score
from hacpo_jax.training.update import MiniBatch, UpdateSpec, init_state, state_axes, update

# Wide enough for products of matrices to outweigh what is done per element; 3 blocks of vocabulary.
QWEN3 = ModelConfig(
    model_type="qwen3",
    vocab_size=20_000,
    hidden_size=256,
    intermediate_size=768,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    max_position_embeddings=4096,
    qk_norm=True,
)
LLAMA = dataclasses.replace(
    QWEN3,
    model_type="llama",
    vocab_size=3000,
    num_layers=2,
    num_kv_heads=4,
    head_dim=32,
    qk_norm=False,
    tie_word_embeddings=False,
)
ADAPTED = dataclasses.replace(QWEN3, lora=Lora(8, 16.0, ("q", "k", "v", "o", "gate", "up", "down")))
SIZES = StepSizes(
    prompts=4,
    samples=8,
    prompt_tokens=64,
    answer_tokens=96,
    row_tokens=128,
    updates=1,
    update_rows=8,
    micro_batch_rows=4,
    decode_rows=64,
    rescores=True,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with `SIZES` changed here and there, for `agents` agents."""

    model: ModelConfig
    agents: int = 1
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def work(self) -> GroupWork:
        names = tuple(f"agent{i}" for i in range(self.agents))
        return GroupWork(names, self.model, dataclasses.replace(SIZES, **dict(self.changes)))


def case(model: ModelConfig, agents: int = 1, **changes) -> Case:
    return Case(model, agents, tuple(changes.items()))


CASES: Mapping[str, Case] = {
    "qwen3": case(QWEN3),
    "llama": case(LLAMA, remat=True, prompt_tokens=32, update_rows=16, micro_batch_rows=16),
    "adapters": case(ADAPTED, agents=2, remat=True, prompt_tokens=16, row_tokens=112),
}
PROGRAMS = [
    *((p, name) for p in ("prefill", "decode", "score") for name in ("qwen3", "adapters")),
    *(("update", name) for name in CASES),
]


def _shape(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _of_agents(tree, count: int):
    return jax.tree.map(lambda x: _shape((count, *x.shape), x.dtype), tree)


def _base(model: ModelConfig):
    return None if model.lora is None else split(abstract_params(model)).base


def _answers(shape: tuple[int, ...], prompt: int, width: int) -> Answers:
    i32 = jnp.int32
    return Answers(
        prompts=_shape((*shape, prompt), i32),
        prompt_lengths=_shape(shape, i32),
        responses=_shape((*shape, width), i32),
        response_lengths=_shape(shape, i32),
    )  # type: ignore[arg-type]


def _policy(one: Case) -> PolicySpec:
    model, sizes = one.model, one.work.sizes
    return PolicySpec(model, 1.0, model.vocab_size, jnp.dtype("float32"), sizes.remat)


def _slots(one: Case) -> tuple[DecodeSpec, SlotShapes, Any]:
    model, sizes, agents = one.model, one.work.sizes, one.agents
    spec = DecodeSpec(
        model, Sampler(1.0), sizes.answer_tokens, (0,), model.vocab_size, jnp.dtype("float32")
    )
    chunk = Chunk(sizes.chunk_prompts, sizes.samples)
    weights = with_base(_of_agents(abstract_trained(model), agents), _base(model))
    return spec, SlotShapes(one_device(), spec, agents, chunk), weights


def prefill_call(one: Case):
    """The jitted function with its arguments, for prompts in all slots."""
    spec, shapes, weights = _slots(one)
    return prefill, (weights, *shapes.asked(one.work.sizes.prompt_tokens)), {"spec": spec}


def decode_call(one: Case, width: int | None = None):
    """The jitted function with its arguments; the ring is at its widest or of that width."""
    spec, shapes, weights = _slots(one)
    ring = shapes.ring(width or ring_widths(spec.max_new_tokens)[-1])
    scalar = _shape((), jnp.int32)
    state = (shapes.prompts(one.work.sizes.prompt_tokens), shapes.rows(), ring)
    return decode, (weights, *state, scalar, scalar, scalar), {"spec": spec}


def score_call(one: Case):
    """The jitted function with its arguments, for the answers to all prompts."""
    model, sizes, agents = one.model, one.work.sizes, one.agents
    ((_, rows, width),) = sizes.scored
    size = min(sizes.micro_batch_rows, rows)
    answers = _answers((agents, rows // size, size), sizes.prompt_tokens, width)
    params = with_base(_of_agents(abstract_trained(model), agents), _base(model))
    return score, (params, answers), {"spec": _policy(one)}


def update_call(one: Case):
    """The jitted function with its arguments; a loss that looks at every field of the batch."""
    model, sizes, agents = one.model, one.work.sizes, one.agents
    shape = (agents, sizes.micro_batches, sizes.micro_rows)
    per_token = _shape((*shape, sizes.row_tokens))
    batch = MiniBatch(
        answers=_answers(shape, sizes.prompt_tokens, sizes.row_tokens),
        source=_shape(shape, jnp.int32),
        advantages=_shape(shape),
        behavior_mean_log_prob=_shape(shape),
        old_log_probs=per_token,
        reference_log_probs=per_token,
        transfer_weight=_shape(shape),
    )  # type: ignore[arg-type]
    optimizer = OptimizerConfig()
    spec = UpdateSpec(
        policy=_policy(one),
        objective=make_objective(Algorithm(name="hacpo"), 2),
        optimizer=optimizer,
        total_updates=10,
        kl_coef=0.1,
        entropy_coef=0.0,
        rescue_coef=0.0,
    )
    trained = _of_agents(abstract_trained(model), agents)
    state = jax.eval_shape(lambda params: init_state(params, optimizer, 10), trained)
    arguments = (state, batch, _shape((agents,), jnp.int32), _shape((), jnp.int32))
    return update, arguments, {"spec": spec, "base": _base(model)}


def compiled_update_on(one: Case, mesh: MeshSizes):
    """The update of a group that lies on a mesh of fake devices."""
    function, (state, batch, learners, index), options = update_call(one)
    layout, spec = Layout(make_mesh(mesh, jax.devices()[: mesh.devices])), options["spec"]
    axes = state_axes(one.model, spec.optimizer)
    state = layout.abstract(state, axes, lead=("agents",))
    rows = jax.tree.map(lambda _: ("agents", None, "rows"), batch)
    batch = layout.abstract(batch, rows)
    with layout.use():
        lowered = function.lower(state, batch, learners, index, **options)
        return lowered.compile({"xla_backend_optimization_level": 0})


CALLS = {"prefill": prefill_call, "decode": decode_call, "score": score_call, "update": update_call}


@functools.cache
def compiled(program: str, name: str):
    """One program of one of `CASES`, once for all tests that look at it."""
    function, arguments, options = CALLS[program](CASES[name])
    # Machine code that is never run need not be good; XLA's own passes are as ever.
    return function.lower(*arguments, **options).compile({"xla_backend_optimization_level": 0})
