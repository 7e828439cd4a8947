"""Everything about a run that does not change while it runs, checked and put together once."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp

from hacpo_jax.agents import Agent, AgentGroup, build_agents, group_agents
from hacpo_jax.config import Config
from hacpo_jax.errors import UserError
from hacpo_jax.models import AttentionKind, choose_attention
from hacpo_jax.parallel.hosts import ALONE, Hosts
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.mesh import all_devices
from hacpo_jax.parallel.placement import Placement
from hacpo_jax.rollout import DecodeSpec, Sampler
from hacpo_jax.tasks import Example, Verifier, check_template, make_verifier, render
from hacpo_jax.tasks.leaks import warn_of_leaks
from hacpo_jax.tasks.problems import NO_PROBLEMS, Problems, encode_problems, load_examples
from hacpo_jax.training.host_memory import return_freed_memory
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.places import lay_out, place
from hacpo_jax.training.scoring import PolicySpec
from hacpo_jax.training.update import UpdateSpec
from hacpo_jax.training.whose import work_of

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Programs:
    """What the programs of a run are compiled from.

    Args:
      config: as resolved.
      agents: all agents, by index.
      groups: the same agents as they are trained together.
      layouts: where each group works.
      dtype: dtype of activations.
    """

    config: Config
    agents: tuple[Agent, ...]
    groups: tuple[AgentGroup, ...]
    layouts: tuple[Layout, ...]
    dtype: jnp.dtype

    def place(self, agent: Agent) -> tuple[int, int]:
        """Number of an agent's group, and its own within it."""
        for g, group in enumerate(self.groups):
            if agent.index in group.indices:
                return g, group.indices.index(agent.index)
        raise ValueError(f"agent {agent.name!r} is in no group of this run")

    def layout(self, group: AgentGroup) -> Layout:
        """Where a group, or a part of one, works."""
        return self.layouts[self.place(group.agents[0])[0]]

    def updates_per_step(self, group: AgentGroup) -> int:
        """Optimizer updates of each of the group's learners in one step."""
        return self.config.updates_per_step(group.algorithm)

    def total_updates(self, group: AgentGroup) -> int:
        """Optimizer updates of each of the group's learners in the whole run."""
        return self.config.training.steps * self.updates_per_step(group)

    @property
    def param_dtype(self) -> jnp.dtype:
        """Dtype of parameters."""
        return jnp.dtype(self.config.training.param_dtype)

    @property
    def rescores(self) -> bool:
        """Whether the trainer scores own answers again before the first update of a step."""
        return rescores(self.config, self.dtype)

    def keeps_reference(self, group: AgentGroup) -> bool:
        """Whether the frozen start of a group's policies is looked at again."""
        return group.algorithm.kl_coef > 0 or self.config.diagnostics.every is not None

    def attention(self, group: AgentGroup) -> AttentionKind:
        """Which implementation of attention a group runs."""
        device = self.layout(group).mesh.devices.flat[0]
        kind = self.config.training.attention
        return choose_attention(kind, group.model, self.dtype, device=device)

    def sampling_spec(self, group: AgentGroup) -> DecodeSpec:
        """How training answers are drawn."""
        sampling = self.config.sampling
        return self._decode_spec(group, Sampler(sampling.temperature), sampling.max_new_tokens)

    def evaluation_spec(self, group: AgentGroup, benchmark: str) -> DecodeSpec:
        """How answers to a benchmark are drawn."""
        draws = self.config.draws(benchmark)
        sampler = Sampler(draws.temperature, draws.top_k, draws.top_p)
        return self._decode_spec(group, sampler, draws.max_new_tokens)

    def _decode_spec(self, group: AgentGroup, sampler: Sampler, max_new_tokens: int) -> DecodeSpec:
        return DecodeSpec(
            model=group.model,
            sampler=sampler,
            max_new_tokens=max_new_tokens,
            stop_ids=group.tokenizer.stop_ids,
            num_tokens=group.tokenizer.size,
            missing_ids=group.tokenizer.missing_ids,
            dtype=self.dtype,
            attention=self.attention(group),
            for_cpu=self.layout(group).is_one_cpu,
        )

    def policy_spec(self, group: AgentGroup) -> PolicySpec:
        """How a group's log-probs are computed: tempered exactly as its samples were."""
        return PolicySpec(
            model=group.model,
            temperature=self.config.sampling.temperature,
            num_tokens=group.tokenizer.size,
            missing_ids=group.tokenizer.missing_ids,
            dtype=self.dtype,
            remat=self.config.training.remat,
            attention=self.attention(group),
        )

    def update_spec(self, group: AgentGroup) -> UpdateSpec:
        """How a group is updated."""
        algorithm = group.algorithm
        return UpdateSpec(
            policy=self.policy_spec(group),
            objective=make_objective(algorithm, len(self.agents)),
            optimizer=group.optimizer,
            total_updates=self.total_updates(group),
            kl_coef=algorithm.kl_coef,
            entropy_coef=algorithm.entropy_coef,
            rescue_coef=algorithm.rescue_coef,
        )


@dataclasses.dataclass(frozen=True)
class Run(Programs):
    """The fixed part of a run.

    Args:
      placement: which devices each group has, and why.
      hosts: the processes that drive the run.
      train: problems to learn from.
      benchmarks: problems to measure on, by name.
      verifier: grades answers; close it when done.
    """

    placement: Placement | None
    hosts: Hosts
    train: Problems
    benchmarks: dict[str, Problems]
    verifier: Verifier

    @property
    def partitioned(self) -> bool:
        """Whether no device belongs to two groups."""
        return self.placement is not None and self.placement.mode == "partitioned"

    def each_group(
        self, work: Callable[[int, AgentGroup], Result], *, talks: bool = False
    ) -> list[Result]:
        """What `work` makes of every group and its number: in turn, or at the same time where
        groups have devices of their own.

        Args:
          work: called once for each group.
          talks: whether it exchanges anything with other processes, which all must do in turn.
        """

        def named(pair: tuple[int, AgentGroup]) -> Result:
            with work_of(pair[1].name):
                return work(*pair)

        pairs = list(enumerate(self.groups))
        if not self.partitioned or (talks and self.hosts.count > 1):
            return [named(pair) for pair in pairs]
        with ThreadPoolExecutor(len(pairs)) as pool:
            return list(pool.map(named, pairs))


def prepare(
    config: Config, saved: Path | None = None, hosts: Hosts = ALONE, *, training: bool = True
) -> Run:
    """Load problems and tokenizers, check models, and start the verifier; no weights yet.

    Args:
      config: as resolved.
      saved: the agents that the run has written, if it has begun; see `build_agents`.
      hosts: the processes that drive the run, of which this is one.
      training: whether there is training; without it no training problem is read,
        and training need not fit the devices.

    On CPUs, whose arrays are host memory, this process returns freed memory from now on.

    Raises:
      UserError: something in the config cannot work.
    """
    task = config.task
    check_template(task.template, "task.template")
    train_examples = load_examples(task.train, "task.train") if training else ()
    benchmark_examples = {
        name: load_examples(source, f"task.eval.{name}") for name, source in task.eval.items()
    }
    if training and hosts.is_first:
        warn_of_leaks(task.train, train_examples, benchmark_examples)
    texts = [render(task.template, example) + example.solution for example in train_examples]
    agents = build_agents(config.agents, texts, saved, longest=config.longest_sequence)
    groups = tuple(group_agents(agents))
    dtype = compute_dtype(config.training.compute_dtype)
    if jax.default_backend() == "cpu":
        return_freed_memory()
    if training:
        placement, layouts = place(config, groups, dtype, rescores(config, dtype))
    else:  # nothing but weights has to fit
        placement, layouts = None, lay_out(groups, all_devices())
    train = _train_problems(config, train_examples, agents) if training else NO_PROBLEMS
    benchmarks = {
        name: encode_problems(
            examples,
            agents,
            task,
            max_new_tokens=config.draws(name).max_new_tokens,
            answers=config.answers_key(name),
            field=f"task.eval.{name}",
        )
        for name, examples in benchmark_examples.items()
    }
    try:
        verifier = make_verifier(
            task.verifier.name, workers=task.verifier.workers, timeout=task.verifier.timeout
        )
    except UserError as error:
        field = "task." + error.field.replace("verifier", "verifier.name", 1)
        raise UserError(field, error.value, error.remedy) from None
    return Run(
        config=config,
        agents=tuple(agents),
        groups=groups,
        placement=placement,
        layouts=layouts,
        hosts=hosts,
        train=train,
        benchmarks=benchmarks,
        verifier=verifier,
        dtype=dtype,
    )


def _train_problems(
    config: Config, examples: Sequence[Example], agents: Sequence[Agent]
) -> Problems:
    train = encode_problems(
        examples,
        agents,
        config.task,
        max_new_tokens=config.sampling.max_new_tokens,
        answers="sampling.max_new_tokens",
        field="task.train",
    )
    if len(train) < config.training.prompts_per_step:
        raise UserError(
            "training.prompts_per_step",
            config.training.prompts_per_step,
            f"there are only {len(train)} training problems; lower it or add problems",
        )
    return train


def rescores(config: Config, dtype: jnp.dtype) -> bool:
    """See `Run.rescores`."""
    chosen = config.training.behavior_log_probs
    return dtype != jnp.float32 if chosen == "auto" else chosen == "trainer"


def compute_dtype(name: str, platform: str | None = None) -> jnp.dtype:
    """The dtype that `training.compute_dtype` names; `auto` follows the platform, None the one at
    hand."""
    if name == "auto":
        # Skinny bfloat16 products are several times slower than float32 ones on CPU.
        name = "float32" if (platform or jax.default_backend()) == "cpu" else "bfloat16"
    return jnp.dtype(name)
