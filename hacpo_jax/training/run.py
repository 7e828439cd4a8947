"""Everything about a run that does not change while it runs, checked and put together once."""

import dataclasses
from collections.abc import Callable
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
from hacpo_jax.rollout import DecodeSpec, Sampler
from hacpo_jax.tasks import Verifier, check_template, make_verifier, render
from hacpo_jax.tasks.problems import Problems, encode_problems, load_examples
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.places import lay_out
from hacpo_jax.training.scoring import PolicySpec
from hacpo_jax.training.update import UpdateSpec

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
        """Where a group works."""
        return self.layouts[self.groups.index(group)]

    @property
    def partitioned(self) -> bool:
        """Whether no device belongs to two groups."""
        meshes = [set(layout.mesh.devices.flat) for layout in self.layouts]
        return len(meshes) > 1 and len(set().union(*meshes)) == sum(map(len, meshes))

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
        chosen = self.config.training.behavior_log_probs
        return self.dtype != jnp.float32 if chosen == "auto" else chosen == "trainer"

    def keeps_reference(self, group: AgentGroup) -> bool:
        """Whether the frozen start of a group's policies is looked at again."""
        return group.algorithm.kl_coef > 0 or self.config.diagnostics.every is not None

    def attention(self, group: AgentGroup) -> AttentionKind:
        """Which implementation of attention a group runs."""
        return _attention(self.config, group, self.layout(group), self.dtype)

    def sampling_spec(self, group: AgentGroup) -> DecodeSpec:
        """How training answers are drawn."""
        sampling = self.config.sampling
        return self._decode_spec(group, Sampler(sampling.temperature), sampling.max_new_tokens)

    def evaluation_spec(self, group: AgentGroup) -> DecodeSpec:
        """How answers to benchmarks are drawn."""
        evaluation = self.config.evaluation
        sampler = Sampler(evaluation.temperature, evaluation.top_k, evaluation.top_p)
        return self._decode_spec(group, sampler, evaluation_tokens(self.config))

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
      hosts: the processes that drive the run.
      train: problems to learn from.
      benchmarks: problems to measure on, by name.
      verifier: grades answers; close it when done.
    """

    hosts: Hosts
    train: Problems
    benchmarks: dict[str, Problems]
    verifier: Verifier

    def each_group(
        self, work: Callable[[int, AgentGroup], Result], *, talks: bool = False
    ) -> list[Result]:
        """What `work` makes of every group and its number: in turn, or at the same time where
        groups have devices of their own.

        Args:
          work: called once for each group.
          talks: whether it exchanges anything with other processes, which all must do in turn.
        """
        pairs = list(enumerate(self.groups))
        if not self.partitioned or (talks and self.hosts.count > 1):
            return [work(g, group) for g, group in pairs]
        with ThreadPoolExecutor(len(pairs)) as pool:
            return list(pool.map(lambda pair: work(*pair), pairs))


def prepare(config: Config, saved: Path | None = None, hosts: Hosts = ALONE) -> Run:
    """Load problems and tokenizers, check models, and start the verifier; no weights yet.

    Args:
      config: as resolved.
      saved: the agents that the run has written, if it has begun; see `build_agents`.
      hosts: the processes that drive the run, of which this is one.

    Raises:
      UserError: something in the config cannot work.
    """
    task = config.task
    check_template(task.template, "task.template")
    train_examples = load_examples(task.train, "task.train")
    benchmark_examples = {
        name: load_examples(source, f"task.eval.{name}") for name, source in task.eval.items()
    }
    texts = [render(task.template, example) + example.solution for example in train_examples]
    agents = build_agents(config.agents, texts, saved, longest=config.longest_sequence)
    groups = tuple(group_agents(agents))
    layouts = lay_out(groups)
    dtype = compute_dtype(config.training.compute_dtype)
    for group, layout in zip(groups, layouts, strict=True):
        _attention(config, group, layout, dtype)
    train = encode_problems(
        train_examples,
        agents,
        task,
        max_new_tokens=config.sampling.max_new_tokens,
        field="task.train",
    )
    if len(train) < config.training.prompts_per_step:
        raise UserError(
            "training.prompts_per_step",
            config.training.prompts_per_step,
            f"there are only {len(train)} training problems; lower it or add problems",
        )
    benchmarks = {
        name: encode_problems(
            examples,
            agents,
            task,
            max_new_tokens=evaluation_tokens(config),
            field=f"task.eval.{name}",
        )
        for name, examples in benchmark_examples.items()
    }
    try:
        verifier = make_verifier(
            task.verifier.name, workers=task.verifier.workers, timeout=task.verifier.timeout
        )
    except UserError as error:
        raise UserError("task.verifier.name", error.value, error.remedy) from None
    return Run(
        config=config,
        agents=tuple(agents),
        groups=groups,
        layouts=layouts,
        hosts=hosts,
        train=train,
        benchmarks=benchmarks,
        verifier=verifier,
        dtype=dtype,
    )


def evaluation_tokens(config: Config) -> int:
    """Longest answer in evaluations."""
    return config.evaluation.max_new_tokens or config.sampling.max_new_tokens


def _attention(config: Config, group: AgentGroup, layout: Layout, dtype) -> AttentionKind:
    """By the devices that the group's programs are compiled for, which need not be there."""
    device = layout.mesh.devices.flat[0]
    return choose_attention(config.training.attention, group.model, dtype, device=device)


def compute_dtype(name: str, platform: str | None = None) -> jnp.dtype:
    """The dtype that `training.compute_dtype` names; `auto` follows the platform, None the one at
    hand."""
    if name == "auto":
        # Skinny bfloat16 products are several times slower than float32 ones on CPU.
        name = "float32" if (platform or jax.default_backend()) == "cpu" else "bfloat16"
    return jnp.dtype(name)
