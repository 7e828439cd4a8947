"""Measuring agents on problems: avg@k, best@k and maj@k."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hacpo_jax.agents import AgentGroup
from hacpo_jax.evaluation.estimators import majority_at_k, pass_at_k, standard_error
from hacpo_jax.evaluation.votes import classes
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

    def summary(
        self,
        max_reward: float,
        *,
        best_of: Sequence[int] = (),
        majority_of: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Metrics of the answers; those that could not be graded count as wrong, and are counted.

        Args:
          max_reward: the largest reward; an answer is right above half of it.
          best_of: each k of best@k.
          majority_of: each k of maj@k.

        Returns:
          `accuracy` (avg@k), `best@k` and `maj@k`, each with its standard error over problems
          under `<name>/se` (None where one problem has no spread), and what the answers look like.
        """
        figures = self._of_problems(max_reward, best_of, majority_of)
        columns = np.stack(list(figures.values()), axis=1)  # [N, M]
        errors = standard_error(columns).tolist() if len(columns) > 1 else [None] * len(figures)
        means = {name: float(values.mean()) for name, values in figures.items()}
        spread = {f"{name}/se": error for name, error in zip(means, errors, strict=True)}
        return {
            "problems": len(self.rewards),
            "samples": self.rewards.shape[1],
            "invalid": int((~self.valid).sum()),
            "truncated": float((~self.stopped).mean()),
            "response_length/mean": float(self.lengths.mean()),
            **means,
            **spread,
        }

    def _of_problems(
        self, max_reward: float, best_of: Sequence[int], majority_of: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Each figure of every problem, `[N]`."""
        right = self.rewards > 0.5 * max_reward  # [N, k]
        count = right.shape[1]
        found = {"accuracy": self.rewards.mean(axis=1) / max_reward}
        for k in best_of:
            chances = {c: pass_at_k(count, c, k) for c in range(count + 1)}
            found[f"best@{k}"] = np.array([chances[int(c)] for c in right.sum(axis=1)])
        if majority_of:
            rows = zip(self.texts, self.stopped.tolist(), right.tolist(), strict=True)
            votes = [classes(*row) for row in rows]
            for k in majority_of:
                chances = [majority_at_k(size, won, k, silent) for size, won, silent in votes]
                found[f"maj@{k}"] = np.array(chances)
        return found

    def take(self, count: int) -> "Graded":
        """The first `count` problems alone."""
        arrays = {name: value[:count] for name, value in vars(self).items()}
        return Graded(**arrays)


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
    places: Sequence[int] | None = None,
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
      places: which problems, by their place; None is all of them. An answer does not depend on
        which others are drawn with it.
      layout: where the parameters are; None is one device.
      hosts: the processes that drive it, each of which answers and grades its share.

    Returns:
      One result for each agent, the same in every process.
    """
    layout = layout or one_device()
    chosen = range(len(problems)) if places is None else places
    keys = answer_keys(seed, group.indices, EVALUATION_STEP, chosen, samples)
    prompts = problems.prompts(group.indices[0], chosen)
    rollouts = answer(params, prompts, keys, spec, max_rows=max_rows, layout=layout)
    mine = layout.mine(len(chosen))
    golds = [problems.examples[chosen[i]].answer for i in mine for _ in range(samples)]
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
    return graded if hosts.count == 1 else _of_all(graded, hosts, len(chosen), group.name)


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
