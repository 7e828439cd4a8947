"""The whole run: every section, and every check that crosses sections."""

import difflib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from hacpo_jax.config.agents import Agent, NewModel, Optimizer
from hacpo_jax.config.algorithm import Algorithm
from hacpo_jax.config.base import Section, refused
from hacpo_jax.config.evaluation import BenchmarkDraws, Draws, Evaluation
from hacpo_jax.config.mesh import Mesh
from hacpo_jax.config.task import VERIFIERS, Arithmetic, ReasoningGym, Task
from hacpo_jax.config.tracking import Tracking
from hacpo_jax.errors import UserError


class Sampling(Section):
    """How training answers are drawn.

    Truncated sampling (top-k, top-p, min-p) is refused here: the trainer's log-probs are those of
    the whole tempered distribution, and both sides must have the same support.

    Attributes:
      temperature: of sampler and trainer alike.
      max_new_tokens: longest answer; longer ones are cut off, with finish reason `length`.
      max_rows: at most this many answers are decoded at a time by one agent.
    """

    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(ge=1)
    max_rows: int = Field(default=1024, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _whole_distribution(cls, data: Any):
        for key in ("top_k", "top_p", "min_p"):
            if isinstance(data, dict) and key in data:
                remedy = "would draw from fewer tokens than the trainer scores; remove it"
                there = f"; evaluation.{key} exists" if key in Evaluation.model_fields else ""
                raise refused(key, data[key], remedy + there)
        return data


class Training(Section):
    """The loop.

    Attributes:
      steps: how often algorithm 1 is run.
      prompts_per_step: P, problems in one step.
      group_size: G, answers of each agent to each problem.
      prompt_rounds: how many times P problems may be drawn for one step. Above 1, problems that
        teach no learner anything (all answers right, or all wrong) are replaced (dynamic sampling,
        DAPO, arXiv 2503.14476) until P are found or the rounds are over.
      mini_batch_prompts: groups of G answers in one update.
      micro_batch_tokens: tokens whose gradient is taken at once, on all of a group's devices
        together; the rest accumulates. Prompts, which answers share, and padding count. A single
        answer may have more.
      compute_dtype: of activations; `auto` is float32 on CPU and bfloat16 elsewhere.
      param_dtype: of parameters. In bfloat16 they take half the memory and small steps are lost to
        rounding; gradients and the optimizer's means are float32 in any case.
      behavior_log_probs: whose log-probs of own answers ratios start from: the `sampler`'s, or the
        `trainer`'s at the cost of one more pass; `auto` takes the sampler's in float32, where both
        agree, and the trainer's in bfloat16, where they differ by more than the own clip is wide.
      remat: recompute layers in the backward pass instead of storing them.
      attention: its implementation over whole sequences: `xla` (plain), `cudnn` (flash attention of
        NVIDIA GPUs from compute capability 8.0 on, in bfloat16) or `splash` (of TPUs); `auto` is
        the platform's own where it can run the model, and `xla` elsewhere.
    """

    steps: int = Field(ge=1)
    prompts_per_step: int = Field(ge=1)
    group_size: int = Field(default=8, ge=1)
    prompt_rounds: int = Field(default=1, ge=1)
    mini_batch_prompts: int = Field(ge=1)
    micro_batch_tokens: int = Field(default=16384, ge=1)
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    behavior_log_probs: Literal["auto", "sampler", "trainer"] = "auto"
    remat: bool = False
    attention: Literal["auto", "xla", "cudnn", "splash"] = "auto"


class Diagnostics(Section):
    """Looking closer at a step before its first update, into `diagnostics.jsonl`.

    Attributes:
      every: steps between two looks; null never looks. Costs one more gradient of the whole step,
        and memory for a frozen copy of the start (for the KL) and one more gradient.
    """

    every: int | None = Field(default=None, ge=1)


class Checkpoint(Section):
    """Saving, so that a killed run goes on where it was.

    Attributes:
      every: steps between two checkpoints; the start and the end are saved too.
      keep: how many of the latest to keep, besides the start.
    """

    every: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)


class Config(Section):
    """One run.

    Attributes:
      run_dir: where everything is written.
      seed: of new weights, data order and sampling.
      task: problems and verifier.
      agents: the policies.
      placement: agents of different shapes take turns on all devices (`colocated`), or each has
        devices of its own and all work at once (`partitioned`); `auto` takes the one that fits in
        memory, and of two the one that a step is estimated to be faster with.
      algorithm: the objective of agents that name no other.
      sampling: how answers are drawn.
      training: the loop.
      optimizer: for agents that name no other.
      mesh: of agents that name no other.
      evaluation: measuring.
      diagnostics: gradients, ratios and KL by source.
      tracking: showing the run elsewhere.
      checkpoint: saving.
    """

    run_dir: str = Field(min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**31)
    task: Task
    agents: list[Agent] = Field(min_length=1)
    placement: Literal["auto", "colocated", "partitioned"] = "auto"
    algorithm: Algorithm = Algorithm()
    sampling: Sampling
    training: Training
    optimizer: Optimizer = Optimizer()
    mesh: Mesh = Mesh()
    evaluation: Evaluation = Evaluation()
    diagnostics: Diagnostics = Diagnostics()
    tracking: Tracking = Tracking()
    checkpoint: Checkpoint = Checkpoint()

    def updates_per_step(self, algorithm: Algorithm) -> int:
        """Optimizer updates in one step of a learner with this algorithm."""
        sources = len(self.agents) if algorithm.shares_answers else 1
        return sources * self.training.prompts_per_step // self.training.mini_batch_prompts

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest answer, in training or evaluation."""
        answers = [self.draws(name).max_new_tokens for name in self.task.eval]
        return self.task.max_prompt_tokens + max(self.sampling.max_new_tokens, *answers)

    def draws(self, benchmark: str) -> Draws:
        """How a benchmark is answered and counted, nothing left open."""
        return self.evaluation.draws(benchmark, self.sampling.max_new_tokens)

    def answers_key(self, benchmark: str) -> str:
        """The key that says how long an answer to a benchmark may be."""
        own = self.evaluation.benchmarks.get(benchmark)
        if own is not None and own.max_new_tokens is not None:
            return f"evaluation.benchmarks.{benchmark}.max_new_tokens"
        shared = self.evaluation.max_new_tokens is not None
        return "evaluation.max_new_tokens" if shared else "sampling.max_new_tokens"


def check(config: Config) -> Config:
    """Every check that needs more than one field and no file.

    Raises:
      UserError: naming the first field that cannot be right.
    """
    _check_held_out(config)
    _check_verifier(config)
    _check_agents(config)
    _check_batches(config)
    _check_evaluation(config)
    return config


def _check_held_out(config: Config) -> None:
    """Two ways of dividing the problems would let training problems into a benchmark."""
    train = config.task.train
    for name, source in config.task.eval.items():
        if not isinstance(train, Arithmetic | ReasoningGym):
            continue
        if not isinstance(source, Arithmetic | ReasoningGym):
            continue
        if train.kind == source.kind and source.held_out_fraction != train.held_out_fraction:
            raise UserError(
                f"task.eval.{name}.held_out_fraction",
                source.held_out_fraction,
                f"must equal task.train.held_out_fraction; use {train.held_out_fraction} for both",
            )


def _check_verifier(config: Config) -> None:
    """Verifiers fit the problems, and the largest reward of a sum is the sum of the weights."""
    parts = config.task.verifier.name
    names = [parts] if isinstance(parts, str) else [part.name for part in parts]
    for key, source in {"train": config.task.train, **config.task.eval}.items():
        made = isinstance(source, ReasoningGym)
        for name in names:
            if made and name in VERIFIERS and name not in ("reasoning_gym", "auto", "format"):
                remedy = f"cannot check the reasoning-gym problems of {key}; use reasoning_gym"
                raise UserError("task.verifier.name", name, f"{remedy}, or auto for mixed problems")
            if not made and name == "reasoning_gym":
                remedy = f"cannot check the problems of {key}, which are of another kind; use auto"
                raise UserError("task.verifier.name", name, remedy)
    if isinstance(parts, str):
        return
    for i, part in enumerate(parts):
        field = f"task.verifier.name.{i}.name"
        if ":" not in part.name and part.name not in VERIFIERS:
            remedy = f"must be {', '.join(VERIFIERS)} or package.module:function"
            raise UserError(field, part.name, remedy)
    largest, total = config.algorithm.max_reward, sum(part.weight for part in parts)
    own = [part.name for part in parts if ":" in part.name]
    if not own and abs(largest - total) > 1e-6:
        remedy = f"the weights in task.verifier.name add up to {total:g}; set it to that"
        raise UserError("algorithm.max_reward", largest, remedy)


def _check_agents(config: Config) -> None:
    names = [agent.name for agent in config.agents]
    for i, name in enumerate(names):
        if name == "own":
            remedy = "metrics call an agent's own answers so; choose another name"
            raise UserError(f"agents.{i}.name", name, remedy)
        if name in names[:i]:
            raise UserError(f"agents.{i}.name", name, "another agent has this name; rename one")
    _check_algorithms(config)
    for i, agent in enumerate(config.agents):
        if not isinstance(agent.model, NewModel):
            continue
        if agent.tokenizer is None:
            raise UserError(
                f"agents.{i}.tokenizer",
                None,
                "a new model has none of its own; write {kind: characters} or name a directory",
            )
        _check_new_model(f"agents.{i}.model", agent.model)


def _check_algorithms(config: Config) -> None:
    for i, agent in enumerate(config.agents):
        algorithm, field = agent.algorithm, f"agents.{i}.algorithm"
        if algorithm == config.algorithm:
            field = "algorithm"
        if algorithm.needs_peers and len(config.agents) < 2:
            needs = "learns from other agents and there is one; add an agent, or"
            if algorithm.name in ("gspo", "grpo"):
                coef = algorithm.rescue.coef
                raise UserError(f"{field}.rescue.coef", coef, f"{needs} set it to 0")
            raise UserError(f"{field}.name", algorithm.name, f"{needs} use gspo or grpo")
        if algorithm.name == "sgt" and not algorithm.rescue_coef:
            raise UserError(
                f"{field}.rescue.coef",
                0,
                "sgt without it is grpo; use more, or algorithm.name=grpo",
            )
        for key, value in _shared_by_all(algorithm).items():
            if value != _shared_by_all(config.algorithm)[key]:
                remedy = "is one for all agents; set it in the top-level algorithm only"
                raise UserError(f"{field}.{key}", value, remedy)


def _shared_by_all(algorithm: Algorithm) -> dict[str, Any]:
    """Settings that compare agents with each other."""
    window = algorithm.capability.model_dump()
    return {
        "max_reward": algorithm.max_reward,
        **{f"capability.{key}": value for key, value in window.items()},
    }


def _check_new_model(field: str, model: NewModel) -> None:
    if model.num_heads % model.num_kv_heads:
        divisors = [n for n in range(1, model.num_heads + 1) if model.num_heads % n == 0]
        remedy = f"must divide num_heads = {model.num_heads}; use {_one_of(divisors)}"
        raise UserError(f"{field}.num_kv_heads", model.num_kv_heads, remedy)
    if model.head_dim % 2:
        remedy = f"must be even, for rotary embedding; use {model.head_dim + 1}"
        raise UserError(f"{field}.head_dim", model.head_dim, remedy)


def _check_batches(config: Config) -> None:
    training = config.training
    if training.group_size < 2:
        raise UserError(
            "training.group_size",
            training.group_size,
            "advantages compare answers to one problem; use 2 or more",
        )
    _check_mini_batches(config)
    if config.sampling.max_rows < training.group_size:
        size = training.group_size
        remedy = f"must hold a group of training.group_size = {size} answers; use {size} or more"
        raise UserError("sampling.max_rows", config.sampling.max_rows, remedy)


def _check_mini_batches(config: Config) -> None:
    """Mini-batches of equal size make up a step, for every agent."""
    mini, prompts = config.training.mini_batch_prompts, config.training.prompts_per_step
    joint = {
        len(config.agents)
        if agent.algorithm.shares_answers and agent.algorithm.minibatch_order == "mixed"
        else 1
        for agent in config.agents
    }

    def fits(size: int) -> bool:
        return all(size % n == 0 and prompts % (size // n) == 0 for n in joint)

    if fits(mini):
        return
    sizes = [size for size in range(1, max(joint) * prompts + 1) if fits(size)]
    near = [*[n for n in sizes if n < mini][-2:], *[n for n in sizes if n > mini][:2]]
    remedy = f"must divide training.prompts_per_step = {prompts}"
    if max(joint) > 1:
        remedy = (
            f"must be {max(joint)} times a divisor of training.prompts_per_step = {prompts}, as "
            f"mixed mini-batches hold answers of {max(joint)} agents to each prompt"
        )
    way_out = f"use {_one_of(near)}" if near else f"make that a multiple of {max(joint)}"
    raise UserError("training.mini_batch_prompts", mini, f"{remedy}; {way_out}")


def _one_of(values: Sequence[int]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _check_evaluation(config: Config) -> None:
    evaluation = config.evaluation
    for name in evaluation.benchmarks:
        if name not in config.task.eval:
            close = difflib.get_close_matches(name, config.task.eval, n=1)
            nearest = f"did you mean {close[0]!r}? " if close else ""
            remedy = f"is no benchmark; {nearest}task.eval has {', '.join(config.task.eval)}"
            raise UserError("evaluation.benchmarks", name, remedy)
    for name in config.task.eval:
        _check_draws(config.draws(name), evaluation.benchmarks.get(name), name)


def _check_draws(draws: Draws, own: BenchmarkDraws | None, benchmark: str) -> None:
    """What is asked of one benchmark; faults are named where they stand."""

    def field(key: str) -> str:
        overridden = own is not None and getattr(own, key) is not None
        return f"evaluation.benchmarks.{benchmark}.{key}" if overridden else f"evaluation.{key}"

    for key in ("best_of", "majority_of"):
        for k in getattr(draws, key):
            if not 1 <= k <= draws.samples:
                remedy = f"must be from 1 to {field('samples')} = {draws.samples}"
                if k > 1:
                    remedy += f"; lower it, or set that to {k}"
                raise UserError(field(key), k, remedy)
    if draws.temperature == 0 and draws.samples > 1:
        remedy = f"greedy answers are all alike; set {field('temperature')} above 0, 1 say"
        raise UserError(field("samples"), draws.samples, remedy)
