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
from hacpo_jax.rollout import bucket
from hacpo_jax.training.batches import LearnerView, pad_prompts, pad_responses, pad_right
from hacpo_jax.training.drawn import Drawn, answer_ids
from hacpo_jax.training.objective import Feedback, make_objective, peer_records
from hacpo_jax.training.rescore import policy_log_probs
from hacpo_jax.training.rescue import transfer_weights
from hacpo_jax.training.run import Run


@dataclasses.dataclass
class _Taken:
    """Answers in one learner's tokens; arrays are `[A source, P, G]`, 0 where nothing is taken."""

    rows: list[list[list[int]]]  # per source P·G lists of ids, empty where not taken
    traces: list[list[Sequence[float]]]  # log-probs of the same ids, where a trace was aligned
    rewards: np.ndarray
    valid: np.ndarray
    solved: np.ndarray
    stopped: np.ndarray
    group_advantages: np.ndarray
    mean: np.ndarray
    mean_without_eos: np.ndarray
    counts: "_Counts"

    def put(self, source: int, records: Sequence) -> None:
        """Fill in what one source's records say."""

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
    objective asks for.

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
    algorithm = group.algorithm
    traced = peer_records(algorithm) is Trace
    prompts, prompt_lengths = pad_prompts(
        run.train.prompts(group.indices[0], drawn.indices.tolist())
    )
    longest = _peer_limit(group, int(prompt_lengths.max()))
    taken = [_take(run, agent, drawn, exchange, longest) for agent in group.agents]
    width = bucket(max(len(row) for one in taken for rows in one.rows for row in rows))
    own = drawn.rollouts[run.groups.index(group)]
    if reference is None:
        reference_log_probs = np.zeros_like(own.log_probs)
    else:
        reference_log_probs = policy_log_probs(
            run, group, reference, own.tokens, own.lengths, drawn.indices
        )
    views = []
    for member, (learner, one) in enumerate(zip(group.agents, taken, strict=True)):
        responses, lengths = pad_responses(one.rows, run.config.training.group_size, width)
        is_own = (np.arange(len(run.agents)) == learner.index)[:, None, None]
        keep_eos = is_own | algorithm.eos_in_ratio
        counted = np.where(one.valid, lengths, 0)
        old_log_probs = np.zeros(responses.shape, np.float32)
        old_log_probs[learner.index] = _fit(own.log_probs[member], width)
        if traced:
            aligned = pad_right(one.traces, width, np.float32).reshape(responses.shape)
            old_log_probs = np.where(is_own[..., None], old_log_probs, aligned)
        views.append(
            LearnerView(
                learner=learner.index,
                prompts=prompts,
                prompt_lengths=prompt_lengths,
                responses=responses,
                response_lengths=np.where(keep_eos, counted, _shortened(counted, one.stopped)),
                advantages=_advantages(run, learner, one, ratio),
                behavior_mean_log_prob=np.where(keep_eos, one.mean, one.mean_without_eos),
                old_log_probs=old_log_probs,
                reference_log_probs=_fit(reference_log_probs[member], width),
                transfer_weight=_transfers(run, learner, one, lengths, step),
                transfer_lengths=lengths,
            )
        )
    if algorithm.name == "prp" and algorithm.prp.denominator == "learner_snapshot":
        views = _with_snapshots(run, group, params, views, drawn.indices)
    return views, [one.counts.metrics(traced) for one in taken]


def _take(run: Run, learner: Agent, drawn: Drawn, exchange: Exchange, longest: int) -> _Taken:
    """A learner's own answers, and of its peers' what its objective asks for."""
    shape, k = drawn.rewards.shape, learner.index
    taken = _Taken(
        rows=[[[]] * (shape[1] * shape[2]) for _ in run.agents],
        traces=[[()] * (shape[1] * shape[2]) for _ in run.agents],
        rewards=np.zeros(shape, np.float32),
        valid=np.zeros(shape, bool),
        solved=np.zeros(shape, bool),
        stopped=np.zeros(shape, bool),
        group_advantages=np.zeros(shape, np.float32),
        mean=np.zeros(shape, np.float32),
        mean_without_eos=np.zeros(shape, np.float32),
        counts=_Counts(),
    )
    g, member = run.place(learner)
    taken.put(k, exchange.own(learner.name))
    taken.rows[k] = answer_ids(drawn.rollouts[g], member)
    record_type = peer_records(learner.algorithm)
    if record_type is None:
        return taken
    records = exchange.collect(record_type, learner=learner.name, own=False)
    by_source = {
        peer.index: [r for r in records if r.source == peer.name]
        for peer in run.agents
        if peer.index != k
    }
    for j, found in by_source.items():
        taken.put(j, found)
    gated = _gate(taken, k)
    for j, found in by_source.items():
        wanted = np.full(len(found), learner.algorithm.shares_answers)
        if learner.algorithm.rescue_coef:
            wanted |= (taken.solved[j] & gated[:, None]).reshape(-1)
        if wanted.any():
            _encode(taken, learner, run.agents[j], found, np.flatnonzero(wanted), longest)
    return taken


def _encode(
    taken: _Taken,
    learner: Agent,
    source: Agent,
    records: Sequence,
    wanted: np.ndarray,
    longest: int,
) -> None:
    """Put some of a source's answers into the learner's tokens, unless they become too long."""
    chosen, counts = [records[i] for i in wanted], taken.counts
    if peer_records(learner.algorithm) is Trace:
        encoded, traces = [], []
        for record in chosen:
            ids, log_probs, report = transfer_trace(
                record, source.tokenizer, learner.tokenizer, learner.algorithm.prp.granularity
            )
            encoded.append(ids)
            traces.append(log_probs)
            counts.alignment += report
    else:
        encoded = reencode(
            [r.response for r in chosen],
            [r.finish_reason == "stop" for r in chosen],
            source.tokenizer,
            learner.tokenizer,
            [r.tokens for r in chosen],
        )
        traces = [()] * len(chosen)
    for i, record, row, trace in zip(wanted, chosen, encoded, traces, strict=True):
        counts.taken += 1
        counts.ours += len(row)
        counts.theirs += record.num_tokens
        if len(row) > longest:
            counts.dropped += 1
        else:
            taken.rows[source.index][i], taken.traces[source.index][i] = row, trace


def _gate(taken: _Taken, learner: int) -> np.ndarray:
    """`[P]`, the prompts that the learner failed and a peer solved, as far as it was told."""
    gate = objectives.success_gate(jnp.asarray(taken.solved), valid=jnp.asarray(taken.valid))
    return np.asarray(gate)[learner]


def _advantages(run: Run, learner: Agent, taken: _Taken, ratio: jax.Array) -> np.ndarray:
    objective = make_objective(learner.algorithm, len(run.agents))
    feedback = Feedback(
        rewards=jnp.asarray(taken.rewards),
        valid=jnp.asarray(taken.valid),
        group_advantages=jnp.asarray(taken.group_advantages),
    )
    return np.asarray(objective.advantages(feedback, ratio, learner.index))


def _transfers(
    run: Run, learner: Agent, taken: _Taken, lengths: np.ndarray, step: int
) -> np.ndarray:
    """Weights `[A, P, G]` of the peers' answers in the rescue term."""
    if not learner.algorithm.rescue_coef:
        return np.zeros(lengths.shape, np.float32)
    candidates = taken.solved & _gate(taken, learner.index)[:, None] & (lengths > 0)
    rng = np.random.default_rng([run.config.seed, step, learner.index, 3])
    return transfer_weights(candidates, lengths, learner.algorithm.rescue.pick, rng)


def _with_snapshots(
    run: Run, group: AgentGroup, params, views: list[LearnerView], indices: np.ndarray
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
    scored = policy_log_probs(run, group, params, tokens, lengths, indices)
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


def _shortened(lengths: np.ndarray, stopped: np.ndarray) -> np.ndarray:
    """Lengths without the end token of those that have one."""
    return np.maximum(lengths - stopped, 0)


def _fit(log_probs: np.ndarray, width: int) -> np.ndarray:
    """`[P, G, C]` cut or padded with zeros to `[P, G, width]`; what is cut is beyond every end."""
    cut = log_probs[..., :width]
    return np.pad(cut, [(0, 0), (0, 0), (0, width - cut.shape[-1])])
