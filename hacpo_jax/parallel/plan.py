"""Every program of a run, compiled for devices that are not there, from shapes alone.

Sizes are those of a run at its longest: full prompts and full answers, rows cut into chunks and
micro-batches by the code that the run itself uses.
"""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.agents import AgentGroup, group_agents, unread_agents
from hacpo_jax.config import Config
from hacpo_jax.models import abstract_params, base_axes
from hacpo_jax.models.lora import Params, split, with_base
from hacpo_jax.parallel.chips import chip_of
from hacpo_jax.parallel.hlo import Collective, parse
from hacpo_jax.parallel.mesh import MeshSizes, local_share
from hacpo_jax.rollout import DecodeSpec, bucket, chunk_prompts, decode
from hacpo_jax.training.batches import num_micro_batches
from hacpo_jax.training.cut import most_groups, update_pairs
from hacpo_jax.training.places import abstract_learner, lay_out
from hacpo_jax.training.run import Programs, compute_dtype
from hacpo_jax.training.scoring import Answers, score
from hacpo_jax.training.update import LearnerState, MiniBatch, update


@dataclasses.dataclass(frozen=True)
class ProgramBytes:
    """Memory of one program on one device, as its compiler lays it out.

    Args:
      arguments: what the program is given.
      outputs: what it returns.
      reused: outputs that take the place of arguments.
      temporaries: what it needs in between, at the time when it needs most.
    """

    arguments: int
    outputs: int
    reused: int
    temporaries: int

    @property
    def peak(self) -> int:
        """All of it together."""
        return self.arguments + self.outputs - self.reused + self.temporaries


@dataclasses.dataclass(frozen=True)
class Planned:
    """One program of one group of agents; figures are those of one device.

    Args:
      agents: name of the group.
      program: `decode`, `evaluate`, `score` or `update`.
      bytes: its memory; None where the compiler gave up because there is too little.
      beside: bytes that stay on the device and are none of its arguments.
      needed: all bytes on the device while it runs.
      flops: of products of matrices, if answers are as long as they may be.
      collectives: what devices exchange.
      seconds: that compiling took.
    """

    agents: str
    program: str
    bytes: ProgramBytes | None
    beside: int
    needed: int
    flops: float
    collectives: tuple[Collective, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Residents:
    """Bytes of a group that stay on each of its devices between programs."""

    params: int
    optimizer: int
    reference: int
    base: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Plan:
    """All programs of a run on one topology; bytes are those of one device.

    Args:
      device: one of them.
      devices: how many there are.
      processes: that drive them.
      memory: what programs have of a device; None where nobody knows.
      meshes: of every group, by its name.
      residents: what stays of every group, by its name.
      resident: what stays of all groups, on the fullest device.
      programs: in the order of groups.
      notes: what the figures leave open.
    """

    device: Any
    devices: int
    processes: int
    memory: int | None
    meshes: Mapping[str, MeshSizes]
    residents: Mapping[str, Residents]
    resident: int
    programs: tuple[Planned, ...]
    notes: tuple[str, ...]

    def has_room(self, needed: int) -> bool:
        """Whether a device has so many bytes."""
        return self.memory is None or needed <= self.memory

    @property
    def fits(self) -> bool:
        """Whether every program finds room beside what stays."""
        return all(one.bytes is not None and self.has_room(one.needed) for one in self.programs)


def prepare_plan(config: Config, devices: Sequence[Any]) -> Programs:
    """What the programs of a run are compiled from, on other devices than those at hand.

    Args:
      config: as resolved.
      devices: those of a topology, those of a process side by side.

    Raises:
      UserError: a model is missing or not supported, or a mesh does not fit.
    """
    agents = unread_agents(config.agents, longest=config.longest_sequence)
    groups = tuple(group_agents(agents))
    return Programs(
        config=config,
        agents=tuple(agents),
        groups=groups,
        layouts=lay_out(groups, devices),
        dtype=compute_dtype(config.training.compute_dtype, devices[0].platform),
    )


def plan(
    config: Config,
    devices: Sequence[Any],
    *,
    only: Container[tuple[str, str]] | None = None,
    tell: Callable[[str, str], None] = lambda *_: None,
) -> Plan:
    """Compile every program of a run.

    Args:
      config: as resolved.
      devices: those of a topology, those of a process side by side.
      only: names of groups and of their programs that are compiled; None is all.
      tell: called with the name of a group and of its program before that is compiled.

    Raises:
      UserError: see `prepare_plan`.
    """
    programs = prepare_plan(config, devices)
    planned = []
    for group in programs.groups:
        shapes = GroupShapes(programs, group)
        beside = resident_beside(programs, group)
        for name, lower, turns in shapes.programs():
            if only is not None and (group.name, name) not in only:
                continue
            tell(group.name, name)
            planned.append(compile_program(shapes, name, lower, turns, beside[name]))
    return Plan(
        device=devices[0],
        devices=len(devices),
        processes=len({device.process_index for device in devices}),
        memory=device_memory(devices[0]),
        meshes={g.name: MeshSizes(**programs.layout(g).sizes) for g in programs.groups},
        residents={group.name: residents(programs, group) for group in programs.groups},
        resident=max(_held(programs).values()),
        programs=tuple(planned),
        notes=tuple(_notes(programs)),
    )


def compile_program(
    shapes: "GroupShapes", name: str, lower: Callable[[], Any], turns: int, beside: int
) -> Planned:
    """One program of a group, and what it needs.

    Args:
      shapes: of the group.
      name: of the program.
      lower: gives what is to be compiled.
      turns: of a loop that may stop early.
      beside: bytes on the device that are not among its arguments.
    """
    started, agents = time.monotonic(), shapes.group.name
    try:
        with shapes.layout.use():
            compiled = lower().compile()
    except jax.errors.JaxRuntimeError as error:
        needed = beside + _out_of_memory(error)
        seconds = time.monotonic() - started
        return Planned(agents, name, None, beside, needed, 0.0, (), seconds)
    seconds = time.monotonic() - started
    found, program = compiled.memory_analysis(), parse(compiled.as_text(), turns)
    memory = ProgramBytes(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes,
        reused=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
    )
    return Planned(
        agents=agents,
        program=name,
        bytes=memory,
        beside=beside,
        needed=beside + memory.peak,
        flops=program.flops(),
        collectives=tuple(program.collectives()),
        seconds=seconds,
    )


def _out_of_memory(error: Exception) -> int:
    """Bytes that a program would have needed which the compiler refused for its size."""
    text = str(error)
    used = re.search(r"Used ([\d.]+)([KMG])?i?B? of", text)
    if "RESOURCE_EXHAUSTED" not in text or used is None:
        raise error
    return int(float(used[1]) * 1024 ** " KMG".index(used[2] or " "))


def residents(programs: Programs, group: AgentGroup) -> Residents:
    """What a group keeps on each of its devices."""
    shapes = GroupShapes(programs, group)
    state, kept = shapes.state, programs.keeps_reference(group)
    params = local_bytes(state.params)
    return Residents(
        params=params,
        optimizer=local_bytes(state) - params,
        reference=params if kept else 0,
        base=local_bytes(shapes.base),
    )


def resident_beside(programs: Programs, group: AgentGroup) -> dict[str, int]:
    """Bytes that stay on a group's device while it runs a program and that are not among the
    program's arguments, for each program."""
    held = [residents(programs, each) for each in programs.groups]
    own = held[programs.groups.index(group)]
    devices = set(programs.layout(group).mesh.devices.flat)
    others = sum(
        one.total
        for one, each, layout in zip(held, programs.groups, programs.layouts, strict=True)
        if each is not group and devices & set(layout.mesh.devices.flat)
    )
    without_optimizer = others + own.optimizer + own.reference
    found = dict.fromkeys(("decode", "evaluate", "score"), without_optimizer)
    return {**found, "update": others + own.reference}


def _held(programs: Programs) -> dict[Any, int]:
    """Bytes that stay of all groups, by device."""
    found: dict[Any, int] = {}
    for group, layout in zip(programs.groups, programs.layouts, strict=True):
        for device in layout.mesh.devices.flat:
            found[device] = found.get(device, 0) + residents(programs, group).total
    return found


def _notes(programs: Programs) -> Iterator[str]:
    config = programs.config
    for group in programs.groups:
        shapes = GroupShapes(programs, group)
        if shapes.takes_others_tokens and group.algorithm.max_peer_tokens is None:
            yield (
                f"{group.name} takes answers of peers with other tokenizers, planned as up to "
                f"{shapes.widest()} of its own tokens; algorithm.max_peer_tokens bounds them"
            )
    if config.diagnostics.every is not None:
        yield "diagnostics keep one more gradient on the steps that they look at"
    if any(agent.warm_start for agent in programs.agents):
        yield "warm starts are not planned"


def local_bytes(tree: Any) -> int:
    """Bytes of a tree of shapes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def device_memory(device: Any) -> int | None:
    """Bytes that programs have of a device; None where nobody knows.

    The compiler for TPUs keeps some for itself: it gives 15.75 GiB of the 16 of a v5e to programs.
    """
    memory = chip_of(device).memory
    return memory if memory is None or device.platform != "tpu" else memory - memory // 64


class GroupShapes:
    """Arguments of the programs of one group, as shapes that lie on its mesh."""

    def __init__(self, programs: Programs, group: AgentGroup):
        self.run, self.group, self.layout = programs, group, programs.layout(group)
        model, dtype = group.model, programs.param_dtype
        total = programs.total_updates(group)
        self.state: LearnerState = abstract_learner(self.layout, group, dtype, total)
        self.base: Params | None = None
        axes = base_axes(model)
        if axes is not None:
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, dtype), split(abstract_params(model)).base
            )
            self.base = self.layout.abstract(shapes, axes)
        self.params = with_base(self.state.params, self.base)

    def programs(self) -> Iterator[tuple[str, Any, int]]:
        """Name, a function that lowers it, and turns of the loop that may stop early."""
        run, group, evaluation = self.run, self.group, self.run.config.evaluation
        spec, samples = run.sampling_spec(group), run.config.training.group_size
        count = run.config.training.prompts_per_step
        turns = spec.max_new_tokens - 1
        yield "decode", lambda: self._decode(spec, count, samples), turns
        long = run.evaluation_spec(group)
        # How many problems there are is not known; as many as fit are the most.
        rows = max(run.config.sampling.max_rows // evaluation.samples, 1)
        yield (
            "evaluate",
            lambda: self._decode(long, rows, evaluation.samples),
            long.max_new_tokens - 1,
        )
        if run.rescores or group.algorithm.kl_coef:
            yield "score", self._score, 1
        yield "update", self._update, 1

    def _decode(self, spec: DecodeSpec, count: int, samples: int):
        layout, config, agents = self.layout, self.run.config, len(self.group.agents)
        share = local_share(count, layout.processes)
        chunk = chunk_prompts(layout, share, samples, config.sampling.max_rows)
        prompts, width = chunk * layout.processes, bucket(config.task.max_prompt_tokens)
        key = jax.eval_shape(lambda: jax.random.key(0)).dtype
        array = layout.abstract_array
        return decode.lower(
            self.params,
            array((prompts, width), jnp.int32, "rows"),
            array((prompts,), jnp.int32, "rows"),
            array((agents, prompts, samples), key, "agents", "rows"),
            array((prompts,), jnp.bool_, "rows"),
            spec=spec,
        )

    def _score(self):
        training, layout = self.run.config.training, self.layout
        share = local_share(training.prompts_per_step, layout.processes)
        cut = layout.micro_batches(training.micro_batch_rows, share * training.group_size)
        answers = self._answers(*cut, self.run.config.sampling.max_new_tokens)
        return score.lower(self.params, answers, spec=self.run.policy_spec(self.group))

    def _update(self):
        run, group, layout = self.run, self.group, self.layout
        training = run.config.training
        owners = np.arange(training.prompts_per_step) % layout.processes
        pairs = update_pairs(run, group, 0)
        most = max(most_groups(each, owners, layout.processes) for each in pairs)
        needed = most * training.group_size
        size = layout.micro_batch(training.micro_batch_rows, needed)
        count, width = num_micro_batches(needed, needed, size), self.widest()
        rows = (len(group.agents), count, size * layout.processes)
        axes = ("agents", None, "rows")

        def array(dtype, *more: int):
            return layout.abstract_array((*rows, *more), dtype, *axes)

        batch = MiniBatch(
            answers=self._answers(count, size, width),
            source=array(jnp.int32),
            advantages=array(jnp.float32),
            behavior_mean_log_prob=array(jnp.float32),
            old_log_probs=array(jnp.float32, width),
            reference_log_probs=array(jnp.float32, width),
            transfer_weight=array(jnp.float32),
        )
        learners = jax.ShapeDtypeStruct((len(group.agents),), jnp.int32)
        index = jax.ShapeDtypeStruct((), jnp.int32)
        spec = run.update_spec(group)
        return update.lower(self.state, batch, learners, index, spec=spec, base=self.base)

    def _answers(self, count: int, size: int, width: int) -> Answers:
        """`count` micro-batches of `size` rows of each process, answers `width` tokens wide."""
        rows = (len(self.group.agents), count, size * self.layout.processes)

        def array(*more: int):
            return self.layout.abstract_array((*rows, *more), jnp.int32, "agents", None, "rows")

        prompt = bucket(self.run.config.task.max_prompt_tokens)
        return Answers(array(prompt), array(), array(width), array())

    def widest(self) -> int:
        """Tokens of the widest answers in an update.

        A peer's answer in this group's tokens may be longer than in its own, up to
        `algorithm.max_peer_tokens`; without that limit the next bucket is taken, half as much
        again or less.
        """
        longest, algorithm = self.run.config.sampling.max_new_tokens, self.group.algorithm
        if not self.takes_others_tokens:
            return bucket(longest)
        return bucket(max(longest, algorithm.max_peer_tokens or longest + 1))

    @property
    def takes_others_tokens(self) -> bool:
        """Whether answers come from agents with another tokenizer: models of one family with
        equally many ids are taken to share theirs."""
        algorithm, model = self.group.algorithm, self.group.model
        own = (model.model_type, model.vocab_size)
        others = {(a.model.model_type, a.model.vocab_size) for a in self.run.agents} - {own}
        return bool(others) and (algorithm.shares_answers or algorithm.rescue_coef > 0)
