"""One step's answers of three agents, made up rather than drawn."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from one_process import drawn_alone
from tiny import random_params, stacked
from tiny_runs import AGENTS, tiny_config

from hacpo_jax.rollout import Rollouts
from hacpo_jax.training.batches import LearnerView
from hacpo_jax.training.drawn import answer_texts
from hacpo_jax.training.gather import learner_views
from hacpo_jax.training.publish import make_records, publish
from hacpo_jax.training.run import Run, prepare

P, G, C = 2, 3, 4
INDICES = np.array([5, 1])
RATIO = np.array([[1.0, 0.5, 0.8], [2.0, 1.0, 1.6], [1.25, 0.625, 1.0]], np.float32)

# Per agent, P * G answers: text and whether the agent ended it.
TEXTS = {
    0: [("12", True), ("8", True), ("1234", False), ("", True), ("7", True), ("99", True)],
    1: [("What", False), ("5", True), ("Wh", True), ("12", True), ("", True), ("3?", True)],
    2: [("0", True), ("1", True), ("2", True), ("3", True), ("4444", False), ("5", True)],
}
VALID = np.ones((3, P, G), bool)
VALID[1, 0, 1] = VALID[0, 1, 2] = False


def run_of(agents=("one", "two", "three"), **algorithm) -> Run:
    """A run that grades nothing; the first and the last agent make up a group.

    Args:
      agents: names of `tiny_runs.AGENTS`, or pairs of a name and keys of its own algorithm.
      algorithm: of all others.
    """
    sections = [
        agent if isinstance(agent, str) else AGENTS[agent[0]] | {"algorithm": agent[1]}
        for agent in agents
    ]
    return prepare(
        tiny_config(
            "unused",
            agents=sections,
            task={"verifier": {"name": "exact"}},
            algorithm={"name": "hacpo", **algorithm},
            sampling={"temperature": 0.7},
        )
    )


def tokens_of(run: Run, agent: int, text: str, *, ended: bool) -> list[int]:
    """One token per byte or character, which is not how a text would be encoded."""
    tokenizer = run.agents[agent].tokenizer
    ids = [token for character in text for (token,) in tokenizer.encode_texts([character])]
    return [*ids, tokenizer.eos_id] if ended else ids


@dataclasses.dataclass
class Step:
    """A step's answers with distinct made-up log-probs and, unless given, rewards `[3, P, G]`."""

    run: Run
    rewards: np.ndarray | None = None

    def __post_init__(self):
        run, rng = self.run, np.random.default_rng(0)
        self.ids = {
            a: [tokens_of(run, a, text, ended=ended) for text, ended in rows]
            for a, rows in TEXTS.items()
        }
        self.log_probs = {
            a: [-rng.random(len(row)).astype(np.float32) for row in rows]
            for a, rows in self.ids.items()
        }
        if self.rewards is None:
            self.rewards = rng.integers(0, 2, (3, P, G)).astype(np.float32)
        self.params = [
            stacked(*(random_params(group.model, agent.index) for agent in group.agents))
            for group in run.groups
        ]
        rollouts = tuple(self._rollouts(group.indices) for group in run.groups)
        texts = {
            agent.index: answer_texts(group, found, member)
            for group, found in zip(run.groups, rollouts, strict=True)
            for member, agent in enumerate(group.agents)
        }
        by_agent = [rollouts[g] for g, _ in (run.place(agent) for agent in run.agents)]
        members = [member for _, member in (run.place(agent) for agent in run.agents)]
        pairs = list(zip(by_agent, members, strict=True))
        self.drawn = drawn_alone(
            INDICES,
            self.rewards,
            VALID,
            rollouts=rollouts,
            texts=tuple(texts[a] for a in range(3)),
            lengths=np.stack([r.lengths[m] for r, m in pairs]),
            stopped=np.stack([r.stopped[m] for r, m in pairs]),
            sampled=np.stack([r.log_probs[m].sum(axis=-1) for r, m in pairs]),
        )
        self.records = [make_records(run, agent, self.drawn, 7) for agent in run.agents]
        self.exchange = publish(run, self.records, np.arange(P))

    def _rollouts(self, agents) -> Rollouts:
        tokens = np.zeros((len(agents), P * G, C), np.int32)
        log_probs = np.zeros(tokens.shape, np.float32)
        lengths = np.zeros(tokens.shape[:2], np.int32)
        for member, agent in enumerate(agents):
            for i, (ids, values) in enumerate(
                zip(self.ids[agent], self.log_probs[agent], strict=True)
            ):
                tokens[member, i, : len(ids)] = ids
                log_probs[member, i, : len(ids)] = values
                lengths[member, i] = len(ids)
        stopped = np.array([[ended for _, ended in TEXTS[agent]] for agent in agents])
        shape = (len(agents), P, G)
        return Rollouts(
            tokens=tokens.reshape(*shape, C),
            log_probs=log_probs.reshape(*shape, C),
            lengths=lengths.reshape(shape),
            stopped=stopped.reshape(shape),
        )

    def views(self, group: int, step: int = 6):
        """`learner_views` of one group."""
        return learner_views(
            self.run,
            self.run.groups[group],
            self.drawn,
            self.exchange,
            jnp.asarray(RATIO),
            self.params[group],
            None,
            step,
        )

    def view(self, learner: int) -> LearnerView:
        """What one agent trains on."""
        g, member = self.run.place(self.run.agents[learner])
        return self.views(g)[0][member]

    def encoded(self, learner: int, source: int, number: int) -> list[int]:
        """One answer in a learner's tokens: ids where tokenizers are equal, or the text's."""
        mine, theirs = (self.run.agents[a].tokenizer for a in (learner, source))
        if mine.fingerprint == theirs.fingerprint:
            return self.ids[source][number]
        text, ended = TEXTS[source][number]
        return [*mine.encode_texts([text])[0], *[mine.eos_id] * ended]


def answer(view: LearnerView, agent: int, number: int) -> list[int]:
    """Ids of one answer as a learner trains on it."""
    place = (agent, *divmod(number, G))
    return view.responses[place][: view.response_lengths[place]].tolist()


def transferred(view: LearnerView, agent: int, number: int) -> list[int]:
    """Ids of one answer as the rescue term would take it."""
    place = (agent, *divmod(number, G))
    return view.responses[place][: view.transfer_lengths[place]].tolist()


def standardised(values, valid=None) -> np.ndarray:
    """(R - mean) / (std + 1e-6) of valid values in float64, ddof 1; 0 where invalid or alike."""
    values = np.asarray(values, np.float64)
    valid = np.ones(values.shape, bool) if valid is None else valid
    chosen = values[valid]
    if len(set(chosen.tolist())) < 2:
        return np.zeros(values.shape)
    return np.where(valid, (values - chosen.mean()) / (chosen.std(ddof=1) + 1e-6), 0)
