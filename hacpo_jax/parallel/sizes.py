"""What the estimates of work and memory are made from: a model and a step's sizes."""

import dataclasses

import jax.numpy as jnp

from hacpo_jax.agents import AgentGroup
from hacpo_jax.config import Config
from hacpo_jax.models import AttentionKind, ModelConfig
from hacpo_jax.rollout import bucket
from hacpo_jax.training.cuts import Load, longest_loads


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """What every agent of a group does in one step; tokens are those of padded arrays.

    Args:
      prompts: P, prompts answered.
      samples: G, answers of each agent to each prompt.
      prompt_tokens: S, width of prompts.
      answer_tokens: C, longest answer drawn.
      row_tokens: T, width of answers in an update, where own and peers' ones lie in one array.
      updates: U, optimizer updates.
      update_rows: answers in one update.
      micro_batch_tokens: at most so many tokens have their gradient taken at once.
      decode_rows: at most so many answers are decoded at once.
      rescores: the trainer scores own answers again before they are shared.
      reference_scores: the frozen start scores own answers, for a KL penalty.
      keeps_reference: a copy of the trained parameters' start is held.
      snapshot_peers: peers whose answers the learner scores before its first update (PRP).
      param_bytes: of one parameter.
      compute_bytes: of one activation.
      remat: layers are computed again in the backward pass.
      attention: its implementation over whole sequences.
    """

    prompts: int
    samples: int
    prompt_tokens: int
    answer_tokens: int
    row_tokens: int
    updates: int
    update_rows: int
    micro_batch_tokens: int
    decode_rows: int
    rescores: bool = False
    reference_scores: bool = False
    keeps_reference: bool = False
    snapshot_peers: int = 0
    param_bytes: int = 4
    compute_bytes: int = 4
    remat: bool = False
    attention: AttentionKind = "xla"

    @property
    def chunk_prompts(self) -> int:
        """Prompts whose answers are decoded at once."""
        return min(max(self.decode_rows // self.samples, 1), self.prompts)

    @property
    def chunks(self) -> int:
        """Decodes in a step; the last one is filled up."""
        return -(-self.prompts // self.chunk_prompts)

    def update_loads(self, rows: int) -> tuple[Load, ...]:
        """Micro-batches of one update laid in so many rows, at the longest. A rescue may add some;
        peers' answers to one prompt share it, which is left out."""
        return longest_loads(
            self.update_rows,
            self.samples,
            rows,
            self.prompt_tokens,
            self.row_tokens,
            self.micro_batch_tokens,
        )

    def score_loads(self, answers: int, width: int, rows: int) -> tuple[Load, ...]:
        """Micro-batches of a scoring pass over so many answers to all prompts, at the longest."""
        return longest_loads(
            answers,
            answers // self.prompts,
            rows,
            self.prompt_tokens,
            width,
            self.micro_batch_tokens,
        )

    @property
    def scored(self) -> tuple[tuple[str, int, int], ...]:
        """Scoring passes: what for, how many answers, and their width."""
        own = self.prompts * self.samples
        passes = []
        if self.rescores:
            passes.append(("rescore", own, self.answer_tokens))
        if self.reference_scores:
            passes.append(("reference", own, self.answer_tokens))
        if self.snapshot_peers:
            passes.append(("snapshot", self.snapshot_peers * own, self.row_tokens))
        return tuple(passes)


@dataclasses.dataclass(frozen=True)
class GroupWork:
    """A group of agents that one program serves, and what each of them does in a step.

    Args:
      agents: their names.
      model: their shape.
      sizes: of the step.
    """

    agents: tuple[str, ...]
    model: ModelConfig
    sizes: StepSizes

    @property
    def name(self) -> str:
        return "+".join(self.agents)


def group_work(
    config: Config,
    group: AgentGroup,
    *,
    dtype: jnp.dtype,
    rescores: bool,
    attention: AttentionKind = "xla",
) -> GroupWork:
    """The work of one group at its longest: full prompts, full answers.

    Peers' answers are taken to be as long in the learner's tokens as in their own. What a rescue
    adds to the updates is left out: it depends on what is solved.

    Args:
      config: of the run.
      group: the agents.
      dtype: of activations.
      rescores: whether the trainer scores own answers again (`Run.rescores`).
      attention: its implementation over whole sequences (`Run.attention`).
    """
    training, algorithm, longest = config.training, group.algorithm, config.sampling.max_new_tokens
    peers = len(config.agents) - 1 if algorithm.shares_answers else 0
    snapshots = algorithm.name == "prp" and algorithm.prp.denominator == "learner_snapshot"
    wants_reference = bool(algorithm.kl_coef)
    sizes = StepSizes(
        prompts=training.prompts_per_step,
        samples=training.group_size,
        prompt_tokens=bucket(config.task.max_prompt_tokens),
        answer_tokens=longest,
        row_tokens=bucket(longest),
        updates=config.updates_per_step(algorithm),
        update_rows=training.mini_batch_prompts * training.group_size,
        micro_batch_tokens=training.micro_batch_tokens,
        decode_rows=config.sampling.max_rows,
        rescores=rescores,
        reference_scores=wants_reference,
        keeps_reference=wants_reference or config.diagnostics.every is not None,
        snapshot_peers=peers if snapshots else 0,
        param_bytes=jnp.dtype(training.param_dtype).itemsize,
        compute_bytes=jnp.dtype(dtype).itemsize,
        remat=training.remat,
        attention=attention,
    )
    return GroupWork(tuple(agent.name for agent in group.agents), group.model, sizes)
