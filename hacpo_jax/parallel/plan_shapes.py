"""What the programs of a run are given, as shapes that lie on the mesh of their group.

Sizes are those of a run at its longest: full prompts and full answers, rows cut into chunks and
micro-batches by the code that the run itself uses.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.models import Answers, abstract_params, base_axes, trained_axes
from hacpo_jax.models.lora import Params, split, with_base
from hacpo_jax.parallel.layout import local_bytes
from hacpo_jax.parallel.mesh import local_share
from hacpo_jax.rollout import Chunk, DecodeSpec, bucket, chunk_of, ring_widths
from hacpo_jax.rollout.decode import SEGMENT, decode, gather_weights, prefill
from hacpo_jax.rollout.engine import copies_weights
from hacpo_jax.rollout.shapes import SlotShapes
from hacpo_jax.training.batches import row_size
from hacpo_jax.training.cut import most_groups, row_tokens, updates_of
from hacpo_jax.training.cuts import count_prompts, lay_rows, load_of, make_cuts
from hacpo_jax.training.places import abstract_learner
from hacpo_jax.training.run import Programs
from hacpo_jax.training.scoring import Cut, score_cut
from hacpo_jax.training.update import Found, LearnerState, MiniBatch, accumulate, apply


@dataclasses.dataclass(frozen=True)
class Job:
    """One program to be compiled.

    Args:
      name: `gather`, `prefill`, `decode`, `evaluate_prefill`, `evaluate`, `score`, `snapshot`,
        `update` (of one micro-batch) or `optimizer`.
      lower: gives its `jax.stages.Lowered`; the group's mesh must be set.
      runs: how often a step runs it; 0 for what is not part of a step.
      turns: of its loop that may stop early, if it has one.
      beside: bytes of a rollout on a device that are none of its arguments.
    """

    name: str
    lower: Callable[[], Any]
    runs: int
    turns: int = 1
    beside: int = 0


@dataclasses.dataclass(frozen=True)
class _Longest:
    """Answers at their longest, the largest of their micro-batches, and how many there are."""

    answers: Answers
    cut: Cut
    count: int


class GroupShapes:
    """Arguments of the programs of one group.

    Args:
      programs: of the run.
      group: one of its groups.
    """

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

    def jobs(self) -> Iterator[Job]:
        """All programs of a run, in the order of a step."""
        run, group, config = self.run, self.group, self.run.config
        training, algorithm = config.training, group.algorithm
        samples, longest = training.group_size, config.sampling.max_new_tokens
        share = local_share(training.prompts_per_step, self.layout.processes)
        spec = _on_accelerators(run.sampling_spec(group))
        chunk = chunk_of(self.layout, share, samples, config.sampling.max_rows)
        if self.weights is not self.params:
            yield Job("gather", lambda: gather_weights.lower(self.params, spec=spec), 1)
        jobs = share * -(-samples // chunk.samples) * training.prompt_rounds
        yield from self._rollout("prefill", "decode", spec, chunk, -(-jobs // chunk.prompts))
        if config.task.eval:
            yield from self._evaluation()
        passes = int(run.rescores) + bool(algorithm.kl_coef)
        if passes:
            yield self._score("score", share * samples, longest, passes)
        peers = len(run.agents) - 1
        if algorithm.name == "prp" and algorithm.prp.denominator == "learner_snapshot" and peers:
            theirs = share * samples * peers
            yield self._score("snapshot", theirs, self.widest(), 1)
        yield from self._update()

    def _evaluation(self) -> Iterator[Job]:
        """The benchmark with the longest answers; of those alike, with most to each problem."""
        config = self.run.config

        def size(name: str) -> tuple[int, int]:
            draws = config.draws(name)
            return draws.max_new_tokens, draws.samples

        name = max(config.task.eval, key=size)
        samples = size(name)[1]
        spec = _on_accelerators(self.run.evaluation_spec(self.group, name))
        # How many problems a benchmark has is not known; as many as are taken at once are the most.
        at_once = max(config.sampling.max_rows // samples, 1)
        share = local_share(at_once, self.layout.processes)
        chunk = chunk_of(self.layout, share, samples, config.sampling.max_rows)
        yield from self._rollout("evaluate_prefill", "evaluate", spec, chunk, 0)

    def _rollout(
        self, first: str, then: str, spec: DecodeSpec, chunk: Chunk, fills: int
    ) -> Iterator[Job]:
        """Every slot filled at once, and a segment when the answers are longest: programs that read
        fewer prompts, or draw with a narrower ring, need less.

        Args:
          first: name of the program that reads prompts.
          then: name of the program that draws further tokens.
          spec: what is static about them.
          chunk: what is decoded at a time.
          fills: how often all slots are filled in a step.
        """
        shapes = SlotShapes(self.layout, spec, len(self.group.agents), chunk)
        width, steps = bucket(self.run.config.task.max_prompt_tokens), spec.max_new_tokens - 1
        widths, scalar = ring_widths(spec.max_new_tokens), jax.ShapeDtypeStruct((), jnp.int32)
        kept = 0 if self.weights is self.params else local_bytes(self.params)
        yield Job(
            name=first,
            lower=lambda: prefill.lower(self.weights, *shapes.asked(width), spec=spec),
            runs=fills,
            beside=kept + local_bytes(shapes.ring(widths[0])),
        )
        if steps:
            state = (None, shapes.prompts(width), shapes.rows(), shapes.ring(widths[-1]))
            yield Job(
                name=then,
                lower=lambda: decode.lower(self.weights, *state, scalar, scalar, scalar, spec=spec),
                runs=fills * -(-steps // SEGMENT),
                turns=min(steps, SEGMENT),
                beside=kept,
            )

    @functools.cached_property
    def weights(self) -> Any:
        """Parameters as decoding uses them; those themselves where it takes no copy."""
        model, dtype = self.group.model, self.run.dtype
        if not copies_weights(self.layout, self.params, dtype):
            return self.params
        own = self.layout.abstract_gathered(
            self.state.params, trained_axes(model), dtype, lead=("agents",)
        )
        if self.base is None:
            return own
        return with_base(own, self.layout.abstract_gathered(self.base, base_axes(model), dtype))

    def _score(self, name: str, answers: int, width: int, passes: int) -> Job:
        """`answers` of each process, `width` tokens wide, to all of its prompts."""
        layout, training = self.layout, self.run.config.training
        prompts = local_share(training.prompts_per_step, layout.processes)
        size = -(-answers // layout.local_rows)
        found = self._cut(np.arange(answers) * prompts // answers, size, width)

        def lower():
            total = self._array((size, width), jnp.float32)
            spec = self.run.policy_spec(self.group)
            return score_cut.lower(total, self.params, found.answers, found.cut, spec=spec)

        return Job(name, lower, passes * found.count)

    def _update(self) -> Iterator[Job]:
        """One micro-batch, and what follows the last."""
        run, group, layout = self.run, self.group, self.layout
        training, width = run.config.training, self.widest()
        owners = np.arange(training.prompts_per_step) % layout.processes
        updates = updates_of(run, group, 0)
        most = max(most_groups(each, owners, layout.processes) for each in updates)
        needed = most * training.group_size
        size = row_size(needed, needed, layout.local_rows)
        (pairs, *_), *_ = updates
        mine = np.sort(pairs[owners[pairs[:, 1]] == 0, 1])  # the first process has most
        found = self._cut(np.repeat(mine, training.group_size), size, width)
        per_answer, per_token = (size,), (size, width)
        batch = MiniBatch(
            answers=found.answers,
            source=self._array(per_answer, jnp.int32),
            advantages=self._array(per_answer, jnp.float32),
            behavior_mean_log_prob=self._array(per_answer, jnp.float32),
            old_log_probs=self._array(per_token, jnp.float32),
            reference_log_probs=self._array(per_token, jnp.float32),
            transfer_weight=self._array(per_answer, jnp.float32),
        )
        learners = jax.ShapeDtypeStruct((len(group.agents),), jnp.int32)
        index, spec = jax.ShapeDtypeStruct((), jnp.int32), run.update_spec(group)
        sums = Found(
            gradient=jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding),
                self.state.params,
            ),
            log_probs=self._array(per_token, jnp.float32),
            entropy=self._array(per_token, jnp.float32),
        )

        def lower_cut():
            given = (sums, self.params, batch, found.cut, learners, index)
            return accumulate.lower(*given, spec=spec)

        def lower_step():
            return apply.lower(self.state, sums, batch, learners, index, spec=spec)

        runs = run.updates_per_step(group)
        yield Job("update", lower_cut, runs * found.count)
        yield Job("optimizer", lower_step, runs)

    def _array(self, shape: tuple[int, ...], dtype):
        """Of every agent and every row of a batch."""
        lead = (len(self.group.agents), self.layout.rows)
        return self.layout.abstract_array((*lead, *shape), dtype, "agents", "rows")

    def _cut(self, prompts: np.ndarray, size: int, width: int) -> "_Longest":
        """Answers to the prompts named, as long as they may be, in rows of `size`, and the largest
        of their micro-batches."""
        layout, tokens = self.layout, self.run.config.training.micro_batch_tokens
        laid = lay_rows(prompts, layout.local_rows, size)
        lengths, prompt_of = np.where(laid.answers < 0, 0, width), laid.prompt_of
        prompt_width = bucket(self.run.config.task.max_prompt_tokens)
        count, i32 = count_prompts(prompt_of), jnp.int32
        room = (count, prompt_width)
        cuts = make_cuts(lengths, prompt_of, room, row_tokens(tokens, layout), width)
        cut = max(cuts, key=lambda cut: load_of(cut, prompt_width).tokens)
        answers = Answers(
            prompts=self._array(room, i32),
            prompt_lengths=self._array((count,), i32),
            responses=self._array((size, width), i32),
            response_lengths=self._array((size,), i32),
            prompt_of=self._array((size,), i32),
        )
        shapes = jax.tree.map(lambda x: self._array(x.shape[1:], i32), cut)
        return _Longest(answers, shapes, len(cuts))

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


def _on_accelerators(spec: DecodeSpec) -> DecodeSpec:
    """CPUs are planned for as if they were accelerators, which they stand for here."""
    return dataclasses.replace(spec, for_cpu=False)
