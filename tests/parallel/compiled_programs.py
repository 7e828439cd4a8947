"""Decode, score and update compiled from shapes, and the work that each should be.

Score and update are programs of one micro-batch.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.config import Algorithm, OptimizerConfig
from hacpo_jax.models import (
    Answers,
    Lora,
    ModelConfig,
    abstract_params,
    abstract_trained,
    trained_axes,
)
from hacpo_jax.models.lora import split, with_base
from hacpo_jax.parallel.layout import Layout, one_device
from hacpo_jax.parallel.mesh import MeshSizes, make_mesh
from hacpo_jax.parallel.sizes import GroupWork, StepSizes
from hacpo_jax.rollout import Chunk, DecodeSpec, Sampler, ring_widths
from hacpo_jax.rollout.decode import decode, prefill
from hacpo_jax.rollout.shapes import SlotShapes
from hacpo_jax.training.cuts import lay_rows, longest_loads
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.scoring import Cut, PolicySpec, score_cut
from hacpo_jax.training.update import Found, MiniBatch, UpdateSpec, accumulate

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
    update_rows=16,
    micro_batch_tokens=8 * 128 + 64,
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
    "llama": case(LLAMA, remat=True, prompt_tokens=32, micro_batch_tokens=10_000),
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


def answers_of(agents: int, rows: int, sizes: StepSizes, answers: int, samples: int, width: int):
    """Shapes of answers laid in rows, of the largest of their micro-batches, and its load."""
    i32, count = jnp.int32, -(-answers // rows)
    loads = longest_loads(
        answers, samples, rows, sizes.prompt_tokens, width, sizes.micro_batch_tokens
    )
    load, lead = max(loads, key=lambda each: each.tokens), (agents, rows)
    laid = lay_rows(np.arange(answers) // samples, rows, count)
    prompts = int(laid.prompt_of.max()) + 1
    whole = Answers(
        prompts=_shape((*lead, prompts, sizes.prompt_tokens), i32),
        prompt_lengths=_shape((*lead, prompts), i32),
        responses=_shape((*lead, count, width), i32),
        response_lengths=_shape((*lead, count), i32),
        prompt_of=_shape((*lead, count), i32),
    )  # type: ignore[arg-type]
    cut = Cut(
        answers=_shape((*lead, load.answers), i32),
        prompts=_shape((*lead, load.prompts), i32),
        prompt_of=_shape((*lead, load.answers), i32),
        width=load.width,
    )  # type: ignore[arg-type]
    return whole, cut


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
    state = (None, shapes.prompts(one.work.sizes.prompt_tokens), shapes.rows(), ring)
    return decode, (weights, *state, scalar, scalar, scalar), {"spec": spec}


def score_call(one: Case):
    """The jitted function with its arguments, for the largest micro-batch of all answers."""
    model, sizes, agents = one.model, one.work.sizes, one.agents
    ((_, count, width),) = sizes.scored
    answers, cut = answers_of(agents, 1, sizes, count, sizes.samples, width)
    params = with_base(_of_agents(abstract_trained(model), agents), _base(model))
    total = _shape(answers.responses.shape)
    return score_cut, (total, params, answers, cut), {"spec": _policy(one)}


def update_call(one: Case, rows: int = 1):
    """The jitted function with its arguments, for the largest micro-batch; a loss that looks at
    every field of the batch but the old log-probs."""
    model, sizes, agents = one.model, one.work.sizes, one.agents
    answers, cut = answers_of(
        agents, rows, sizes, sizes.update_rows, sizes.samples, sizes.row_tokens
    )
    shape = answers.response_lengths.shape
    per_token = _shape(answers.responses.shape)
    batch = MiniBatch(
        answers=answers,
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
    found = Found(gradient=trained, log_probs=per_token, entropy=per_token)  # type: ignore[arg-type]
    params = with_base(trained, _base(model))
    arguments = (found, params, batch, cut, _shape((agents,), jnp.int32), _shape((), jnp.int32))
    return accumulate, arguments, {"spec": spec}


def compiled_update_on(one: Case, mesh: MeshSizes):
    """One micro-batch's gradient of a group that lies on a mesh of fake devices."""
    function, (found, params, batch, cut, learners, index), options = update_call(one, mesh.rows)
    layout = Layout(make_mesh(mesh, jax.devices()[: mesh.devices]))
    axes = trained_axes(one.model)

    def over_rows(tree):
        return layout.abstract(tree, jax.tree.map(lambda _: ("agents", "rows"), tree))

    params = layout.abstract(params, axes, lead=("agents",))
    log_probs, entropy = over_rows((found.log_probs, found.entropy))
    found = Found(params, log_probs, entropy)
    batch, cut = over_rows((batch, cut))
    with layout.use():
        lowered = function.lower(found, params, batch, cut, learners, index, **options)
        return lowered.compile({"xla_backend_optimization_level": 0})


CALLS = {"prefill": prefill_call, "decode": decode_call, "score": score_call, "update": update_call}


@functools.cache
def compiled(program: str, name: str):
    """One program of one of `CASES`, once for all tests that look at it."""
    function, arguments, options = CALLS[program](CASES[name])
    # Machine code that is never run need not be good; XLA's own passes are as ever.
    return function.lower(*arguments, **options).compile({"xla_backend_optimization_level": 0})
