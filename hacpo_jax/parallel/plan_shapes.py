"""What the programs of a run are given, as shapes that lie on the mesh of their group.

Sizes are those of a run at its longest: full prompts and full answers, rows cut into chunks and
micro-batches by the code that the run itself uses.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.models import abstract_params, base_axes
from hacpo_jax.models.lora import Params, split, with_base
from hacpo_jax.parallel.mesh import local_share
from hacpo_jax.rollout import Chunk, DecodeSpec, bucket, chunk_of, decode
from hacpo_jax.training.batches import num_micro_batches
from hacpo_jax.training.cut import most_groups, updates_of
from hacpo_jax.training.places import abstract_learner
from hacpo_jax.training.run import Programs
from hacpo_jax.training.scoring import Answers, score
from hacpo_jax.training.update import LearnerState, MiniBatch, update


@dataclasses.dataclass(frozen=True)
class Job:
    """One program to be compiled.

    Args:
      name: `decode`, `evaluate`, `score`, `snapshot` or `update`.
      lower: gives its `jax.stages.Lowered`; the group's mesh must be set.
      runs: how often a step runs it; 0 for what is not part of a step.
      turns: of its loop that may stop early, if it has one.
    """

    name: str
    lower: Callable[[], Any]
    runs: int
    turns: int = 1


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
        spec = run.sampling_spec(group)
        chunk = chunk_of(self.layout, share, samples, config.sampling.max_rows)
        yield Job(
            name="decode",
            lower=lambda: self._decode(spec, chunk),
            runs=-(-share // chunk.prompts) * -(-samples // chunk.samples) * training.prompt_rounds,
            turns=spec.max_new_tokens - 1,
        )
        if config.task.eval:
            yield self._evaluation()
        passes = int(run.rescores) + bool(algorithm.kl_coef)
        if passes:
            rows = share * samples
            yield Job("score", lambda: self._score(rows, longest), passes)
        peers = len(run.agents) - 1
        if algorithm.name == "prp" and algorithm.prp.denominator == "learner_snapshot" and peers:
            theirs = share * samples * peers
            yield Job("snapshot", lambda: self._score(theirs, self.widest()), 1)
        yield Job("update", self._update, run.updates_per_step(group))

    def _evaluation(self) -> Job:
        """The benchmark with the longest answers; of those alike, with most to each problem."""
        config = self.run.config

        def size(name: str) -> tuple[int, int]:
            draws = config.draws(name)
            return draws.max_new_tokens, draws.samples

        name = max(config.task.eval, key=size)
        (longest, samples), spec = size(name), self.run.evaluation_spec(self.group, name)
        # How many problems a benchmark has is not known; as many as are taken at once are the most.
        at_once = max(config.sampling.max_rows // samples, 1)
        share = local_share(at_once, self.layout.processes)
        chunk = chunk_of(self.layout, share, samples, config.sampling.max_rows)
        return Job(
            name="evaluate",
            lower=lambda: self._decode(spec, chunk),
            runs=0,
            turns=longest - 1,
        )

    def _decode(self, spec: DecodeSpec, chunk: Chunk):
        layout, agents, samples = self.layout, len(self.group.agents), chunk.samples
        prompts, width = (
            chunk.prompts * layout.processes,
            bucket(self.run.config.task.max_prompt_tokens),
        )
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

    def _score(self, rows: int, width: int):
        """`rows` answers of each process, `width` tokens wide."""
        cut = self.layout.micro_batches(self.run.config.training.micro_batch_rows, rows)
        answers = self._answers(*cut, width)
        return score.lower(self.params, answers, spec=self.run.policy_spec(self.group))

    def _update(self):
        run, group, layout = self.run, self.group, self.layout
        training = run.config.training
        owners = np.arange(training.prompts_per_step) % layout.processes
        pairs = updates_of(run, group, 0)
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
