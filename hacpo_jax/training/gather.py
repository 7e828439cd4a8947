"""Sharing one step's answers: what every learner of a group sees of all agents."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax import objectives
from hacpo_jax.agents import Agent, AgentGroup
from hacpo_jax.exchange import (
    AlignmentReport,
    Exchange,
    Outcome,
    Rollout,
    Trace,
    reencode,
    transfer_trace,
)
from hacpo_jax.parallel.shares import gather_arrays
from hacpo_jax.rollout import bucket
from hacpo_jax.training.batches import LearnerView, pad_prompts, pad_responses, pad_right
from hacpo_jax.training.drawn import Drawn, answer_ids
from hacpo_jax.training.objective import Feedback, make_objective, peer_records
from hacpo_jax.training.rescore import policy_log_probs
from hacpo_jax.training.rescue import transfer_weights
from hacpo_jax.training.run import Run

LogProbs = Sequence[float] | np.ndarray
Encoded = dict[tuple[int, int], tuple[list[int], LogProbs, AlignmentReport]]
"""By source and number of the answer: ids, log-probs if a trace was aligned, and its report."""


@dataclasses.dataclass
class _Taken:
    """Answers in one learner's tokens; arrays are `[A source, P, G]`, 0 where nothing is taken."""

    rows: list[list[list[int]]]  # per source P·G lists of ids, empty where not taken
    traces: list[list[LogProbs]]  # log-probs of the same ids, where a trace was aligned
    rewards: np.ndarray
    valid: np.ndarray
    solved: np.ndarray
    stopped: np.ndarray
    group_advantages: np.ndarray
    mean: np.ndarray
    mean_without_eos: np.ndarray
    rescuers: np.ndarray  # peers' right answers to problems that the learner failed
    counts: "_Counts"

    @classmethod
    def nothing(cls, shape: tuple[int, int, int]) -> "_Taken":
        """Of `[A, P, G]` answers."""
        answers = shape[1] * shape[2]
        numbers = ("rewards", "group_advantages", "mean", "mean_without_eos")
        return cls(
            rows=[[[]] * answers for _ in range(shape[0])],
            traces=[[()] * answers for _ in range(shape[0])],
            counts=_Counts(),
            **{name: np.zeros(shape, np.float32) for name in numbers},
            **{name: np.zeros(shape, bool) for name in ("valid", "solved", "stopped", "rescuers")},
        )

    def put(self, source: int, records: Sequence) -> None:
        """Fill in what one source's records say."""
        if not records:
            return

        def column(field: str) -> np.ndarray:
            return np.reshape([getattr(r, field) for r in records], self.rewards.shape[1:])

        self.rewards[source], self.valid[source] = column("reward"), column("valid")
        if isinstance(records[0], Outcome):
            self.solved[source] = column("success")
            self.stopped[source] = column("finish_reason") == "stop"
        if isinstance(records[0], Rollout):
            self.group_advantages[source] = column("group_advantage")
            self.mean[source] = column("behavior_mean_log_prob")
            self.mean_without_eos[source] = column("behavior_mean_log_prob_without_eos")


@dataclasses.dataclass
class _Counts:
    """What became of peers' answers on the way into a learner's tokens."""

    taken: int = 0
    dropped: int = 0
    ours: int = 0
    theirs: int = 0
    alignment: AlignmentReport = dataclasses.field(default_factory=AlignmentReport)

    def metrics(self, aligned: bool) -> dict[str, float | None]:
        found = {
            "peer/dropped": self.dropped / max(self.taken, 1),
            "peer/length_ratio": self.ours / self.theirs if self.theirs else None,
        }
        if aligned:
            found["peer/several_words"] = self.alignment.several_words_share
            found["peer/tokens_per_segment"] = self.alignment.tokens_per_segment
        return found


def learner_views(
    run: Run,
    group: AgentGroup,
    drawn: Drawn,
    exchange: Exchange,
    ratio: jax.Array,
    params,
    reference,
    step: int,
) -> tuple[list[LearnerView], list[dict[str, float | None]]]:
    """What each learner of a group trains on in this step.

    Of its own answers a learner knows everything; of its peers' only the records that its
    objective asks for. Peers' answers are put into the group's tokens once for all its learners.

    Args:
      run: the run.
      group: the learners.
      drawn: the step's answers, of which only the group's own are looked at.
      exchange: every agent's records of the step.
      ratio: `[A, A]` capability ratio.
      params: parameters of the learners before the step, `[A, ...]`.
      reference: those of their frozen start, or None without a KL penalty.
      step: steps done; seeds what is picked at random.

    Returns:
      One view per learner, and for each counts of what was shared: `peer/dropped`, the share of
      peers' answers left out as too long, `peer/length_ratio`, learner's tokens per source's
      token, and for aligned traces `peer/several_words` and `peer/tokens_per_segment`.
    """
    algorithm, encoded = group.algorithm, Encoded()
    everybodys = pad_prompts(run.train.prompts(group.indices[0], drawn.indices.tolist()))
    longest = _peer_limit(group, int(everybodys[1].max()))
    prompts = (everybodys[0][drawn.mine], everybodys[1][drawn.mine])
    taken = [_take(run, agent, drawn, exchange, longest, encoded) for agent in group.agents]
    width, counts = _of_all(run, group, taken, step)
    own = drawn.rollouts[run.groups.index(group)]
    reference_log_probs = (
        np.zeros_like(own.log_probs)
        if reference is None
        else policy_log_probs(
            run, group, reference, own.tokens, own.lengths, drawn.indices, drawn.owners
        )
    )
    log_probs = zip(own.log_probs, reference_log_probs, strict=True)
    views = [
        _view(run, agent, one, drawn, prompts, width, *of_agent, ratio, step)
        for agent, one, of_agent in zip(group.agents, taken, log_probs, strict=True)
    ]
    if algorithm.name == "prp" and algorithm.prp.denominator == "learner_snapshot":
        views = _with_snapshots(run, group, params, views, drawn)
    traced = peer_records(algorithm) is Trace
    return views, [count.metrics(traced) for count in counts]


def _of_all(
    run: Run, group: AgentGroup, taken: Sequence[_Taken], step: int
) -> tuple[int, list[_Counts]]:
    """The width that holds the answers of every process, and their counts for each learner."""
    longest = max((len(row) for one in taken for rows in one.rows for row in rows), default=0)
    rows = [dataclasses.astuple(one.counts) for one in taken]
    counts = np.array([[*row, *alignment] for *row, alignment in rows])
    parts = gather_arrays(
        run.hosts,
        f"step {step} answers for {group.name}",
        {"longest": np.array(longest), "counts": counts},
    )
    total = np.sum([part["counts"] for part in parts], axis=0).tolist()
    width = bucket(max(int(part["longest"]) for part in parts))
    summed = [
        _Counts(taken, dropped, ours, theirs, AlignmentReport(*alignment))
        for taken, dropped, ours, theirs, *alignment in total
    ]
    return width, summed


def _take(
    run: Run, learner: Agent, drawn: Drawn, exchange: Exchange, longest: int, encoded: Encoded
) -> _Taken:
    """A learner's own answers, and of its peers' what its objective asks for."""
    k, algorithm = learner.index, learner.algorithm
    shape = drawn.rewards.shape
    taken = _Taken.nothing((shape[0], len(drawn.mine), shape[2]))
    g, member = run.place(learner)
    taken.put(k, exchange.own(learner.name))
    taken.rows[k] = answer_ids(drawn.rollouts[g], member)
    record_type = peer_records(algorithm)
    if record_type is None:
        return taken
    records = exchange.collect(record_type, learner=learner.name, own=False)
    peers = [agent for agent in run.agents if agent.index != k]
    found = {peer.index: [r for r in records if r.source == peer.name] for peer in peers}
    for j, rows in found.items():
        taken.put(j, rows)
    if algorithm.rescue_coef:
        # The learner failed all of a gated problem's answers, so that those left are its peers'.
        solved, valid = jnp.asarray(taken.solved), jnp.asarray(taken.valid)
        gate = np.asarray(objectives.success_gate(solved, valid=valid))[k]
        taken.rescuers = taken.solved & gate[:, None]
    for peer in peers:
        wanted = algorithm.shares_answers | taken.rescuers[peer.index].reshape(-1)
        if wanted.any():
            numbers, rows = np.flatnonzero(wanted).tolist(), found[peer.index]
            _encode(encoded, learner, peer, rows, numbers)
            _keep(taken, encoded, peer.index, rows, numbers, longest)
    return taken


def _encode(
    encoded: Encoded, learner: Agent, source: Agent, records: Sequence, numbers: Sequence[int]
) -> None:
    """Put those of a source's answers that are not yet there into the learner's tokens."""
    new = [i for i in numbers if (source.index, i) not in encoded]
    if peer_records(learner.algorithm) is Trace:
        granularity = learner.algorithm.prp.granularity
        for i in new:
            encoded[source.index, i] = transfer_trace(
                records[i], source.tokenizer, learner.tokenizer, granularity
            )
        return
    rows = reencode(
        [records[i].response for i in new],
        [records[i].finish_reason == "stop" for i in new],
        source.tokenizer,
        learner.tokenizer,
        [records[i].tokens for i in new],
    )
    for i, row in zip(new, rows, strict=True):
        encoded[source.index, i] = (row, (), AlignmentReport())


def _keep(
    taken: _Taken,
    encoded: Encoded,
    source: int,
    records: Sequence,
    numbers: Sequence[int],
    longest: int,
) -> None:
    """Take those of a source's answers that are not too long, and count."""
    counts = taken.counts
    for i in numbers:
        row, trace, report = encoded[source, i]
        counts.taken += 1
        counts.ours += len(row)
        counts.theirs += records[i].num_tokens
        counts.alignment += report
        if len(row) > longest:
            counts.dropped += 1
        else:
            taken.rows[source][i], taken.traces[source][i] = row, trace


def _view(
    run: Run,
    learner: Agent,
    taken: _Taken,
    drawn: Drawn,
    prompts: tuple[np.ndarray, np.ndarray],
    width: int,
    own_log_probs: np.ndarray,
    reference_log_probs: np.ndarray,
    ratio: jax.Array,
    step: int,
) -> LearnerView:
    """One learner's answers as arrays; log-probs of own answers are `[P, G, C]`."""
    algorithm = learner.algorithm
    responses, lengths = pad_responses(taken.rows, run.config.training.group_size, width)
    old_log_probs = pad_right(taken.traces, width, np.float32).reshape(responses.shape)
    old_log_probs[learner.index] = _fit(own_log_probs, width)
    is_own = (np.arange(len(run.agents)) == learner.index)[:, None, None]
    keep_eos = is_own | algorithm.eos_in_ratio
    counted = np.where(taken.valid, lengths, 0)
    without_eos = np.maximum(counted - taken.stopped, 0)
    rescuers = taken.rescuers & (lengths > 0)
    # One for each problem: what is picked does not depend on which process has it.
    seeds = [run.config.seed, step, learner.index, 3]
    rngs = [np.random.default_rng([*seeds, problem]) for problem in drawn.indices[drawn.mine]]
    return LearnerView(
        learner=learner.index,
        prompts=prompts[0],
        prompt_lengths=prompts[1],
        responses=responses,
        response_lengths=np.where(keep_eos, counted, without_eos),
        advantages=_advantages(run, learner, taken, ratio),
        behavior_mean_log_prob=np.where(keep_eos, taken.mean, taken.mean_without_eos),
        old_log_probs=old_log_probs,
        reference_log_probs=_fit(reference_log_probs, width),
        transfer_weight=transfer_weights(rescuers, lengths, algorithm.rescue.pick, rngs),
        transfer_lengths=lengths,
    )


def _advantages(run: Run, learner: Agent, taken: _Taken, ratio: jax.Array) -> np.ndarray:
    objective = make_objective(learner.algorithm, len(run.agents))
    feedback = Feedback(
        rewards=jnp.asarray(taken.rewards),
        valid=jnp.asarray(taken.valid),
        group_advantages=jnp.asarray(taken.group_advantages),
    )
    return np.asarray(objective.advantages(feedback, ratio, learner.index))


def _with_snapshots(
    run: Run, group: AgentGroup, params, views: list[LearnerView], drawn: Drawn
) -> list[LearnerView]:
    """The same views with peers' answers scored by the learners as they are before the step."""
    peers = [[j for j in range(len(run.agents)) if j != view.learner] for view in views]

    def by_prompt(values: np.ndarray) -> np.ndarray:
        """`[A, P, G, ...]` as `[P, A * G, ...]`."""
        values = values.swapaxes(0, 1)
        return values.reshape(values.shape[0], -1, *values.shape[3:])

    pairs = list(zip(views, peers, strict=True))
    tokens = np.stack([by_prompt(view.responses[others]) for view, others in pairs])
    lengths = np.stack([by_prompt(view.response_lengths[others]) for view, others in pairs])
    scored = policy_log_probs(run, group, params, tokens, lengths, drawn.indices, drawn.owners)
    found = []
    for (view, others), values in zip(pairs, scored, strict=True):
        whole, shape = view.old_log_probs.copy(), view.responses[others].shape
        whole[others] = values.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1)
        found.append(dataclasses.replace(view, old_log_probs=whole))
    return found


def _peer_limit(group: AgentGroup, longest_prompt: int) -> int:
    """Longest peer's answer that a group takes, in its own tokens."""
    room = group.model.max_position_embeddings - longest_prompt
    limit = group.algorithm.max_peer_tokens
    return room if limit is None else min(limit, room)


def _fit(log_probs: np.ndarray, width: int) -> np.ndarray:
    """`[P, G, C]` cut or padded with zeros to `[P, G, width]`; what is cut is beyond every end."""
    cut = log_probs[..., :width]
    return np.pad(cut, [(0, 0), (0, 0), (0, width - cut.shape[-1])])
