"""Measuring agents on problems: avg@k and best@k."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.evaluation.estimators import pass_at_k
from hacpo_jax.exchange import response_texts
from hacpo_jax.parallel.hosts import ALONE, Hosts
from hacpo_jax.parallel.layout import Layout, one_device
from hacpo_jax.parallel.shares import whole
from hacpo_jax.rollout import DecodeSpec, answer, answer_keys
from hacpo_jax.tasks import Verifier
from hacpo_jax.tasks.problems import Problems

# Evaluation draws with its own "step", which training never reaches.
EVALUATION_STEP = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Graded:
    """One agent's answers to every problem with their verdicts.

    Args:
      texts: N lists of k answers.
      rewards: `[N, k]`; 0 where the verifier failed.
      valid: `[N, k]`, False where the verifier failed.
      lengths: `[N, k]` tokens.
      stopped: `[N, k]`, False where the answer was cut off.
    """

    texts: list[list[str]]
    rewards: np.ndarray
    valid: np.ndarray
    lengths: np.ndarray
    stopped: np.ndarray

    def summary(self, best_of: Sequence[int], max_reward: float) -> dict[str, float]:
        """Metrics of the answers; those that could not be graded count as wrong, and are counted.

        Args:
          best_of: each k of best@k.
          max_reward: the largest reward; an answer is right above half of it.
        """
        right = (self.rewards > 0.5 * max_reward).sum(axis=1)
        k = self.rewards.shape[1]
        found = {
            "accuracy": float(self.rewards.mean() / max_reward),
            "problems": len(self.rewards),
            "samples": k,
            "invalid": int((~self.valid).sum()),
            "truncated": float((~self.stopped).mean()),
            "response_length/mean": float(self.lengths.mean()),
        }
        for size in best_of:
            chances = [pass_at_k(k, int(c), size) for c in right]
            found[f"best@{size}"] = float(np.mean(chances))
        return found


def evaluate_group(
    group: AgentGroup,
    params,
    problems: Problems,
    verifier: Verifier,
    *,
    spec: DecodeSpec,
    samples: int,
    seed: int,
    max_rows: int,
    layout: Layout | None = None,
    hosts: Hosts = ALONE,
) -> list[Graded]:
    """Answer every problem `samples` times with every agent of a group and grade the answers.

    Args:
      group: the agents.
      params: their parameters, `[A, ...]`.
      problems: what to answer.
      verifier: grades.
      spec: how answers are drawn.
      samples: k answers to each problem.
      seed: the run's seed.
      max_rows: answers of one agent decoded at a time.
      layout: where the parameters are; None is one device.
      hosts: the processes that drive it, each of which answers and grades its share.

    Returns:
      One result for each agent, the same in every process.
    """
    layout, everything = layout or one_device(), range(len(problems))
    keys = answer_keys(seed, group.indices, EVALUATION_STEP, everything, samples)
    prompts = problems.prompts(group.indices[0], everything)
    rollouts = answer(params, prompts, keys, spec, max_rows=max_rows, layout=layout)
    mine = layout.mine(len(problems))
    golds = [problems.examples[i].answer for i in mine for _ in range(samples)]
    graded = []
    for a in range(len(group.agents)):
        lengths, stopped = rollouts.lengths[a], rollouts.stopped[a]
        rows = rollouts.tokens[a].reshape(-1, spec.max_new_tokens)
        ids = [row[:n].tolist() for row, n in zip(rows, lengths.flat, strict=True)]
        texts = response_texts(group.tokenizer, ids, stopped.reshape(-1).tolist())
        verdicts = verifier.score(list(zip(texts, golds, strict=True)))
        shape = lengths.shape
        graded.append(
            Graded(
                texts=[texts[i * samples : (i + 1) * samples] for i in range(len(mine))],
                rewards=np.array([v.reward for v in verdicts], float).reshape(shape),
                valid=np.array([v.valid for v in verdicts], bool).reshape(shape),
                lengths=lengths,
                stopped=stopped,
            )
        )
    return graded if hosts.count == 1 else _of_all(graded, hosts, len(problems), group.name)


def _of_all(graded: list[Graded], hosts: Hosts, count: int, name: str) -> list[Graded]:
    """The answers of all processes to all problems."""
    owners = np.arange(count) % hosts.count
    numbers = [field for field in vars(graded[0]) if field != "texts"]
    arrays = {field: np.stack([getattr(one, field) for one in graded]) for field in numbers}
    found = whole(hosts, f"evaluation of {name}", arrays, owners)
    parts = hosts.gather(f"evaluation of {name}: texts", [one.texts for one in graded])
    every = [[part[a] for part in parts] for a in range(len(graded))]
    return [
        Graded(
            texts=[texts[owner].pop(0) for owner in owners],
            **{field: values[a] for field, values in found.items()},
        )
        for a, texts in enumerate(every)
    ]
