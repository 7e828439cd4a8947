"""Numbers of one step for `metrics.jsonl`; names are listed in the README."""

import contextlib
import time
from collections.abc import Iterator

import numpy as np

from hacpo_jax.agents import Agent
from hacpo_jax.training.drawn import Drawn
from hacpo_jax.training.run import Run

Metrics = dict[str, float | int | str | None]


class StepTimes:
    """Seconds of each phase, of one group or of all, and when in the step it first began."""

    def __init__(self, num_groups: int):
        self._zero = time.perf_counter()
        self._of_group: list[dict[str, float]] = [{} for _ in range(num_groups)]
        self._of_all: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, phase: str, group: int | None = None) -> Iterator[None]:
        """Add up the time of a phase, of one group or (None) of all of them."""
        start = time.perf_counter()
        yield
        times = self._of_all if group is None else self._of_group[group]
        name = f"time/{phase}"
        times[name] = times.get(name, 0.0) + time.perf_counter() - start
        times.setdefault(f"started/{phase}", start - self._zero)

    def of(self, group: int, tokens: int) -> Metrics:
        """Phases that a group took part in, and one agent's sampling speed."""
        times = self._of_all | self._of_group[group]
        return {**times, "tokens_per_second": tokens / times["time/rollout"]}


def own_metrics(run: Run, agent: Agent, drawn: Drawn, history: np.ndarray, ratio) -> Metrics:
    """How one agent's own answers did, and how able it is beside its peers."""
    k = agent.index
    valid, lengths = drawn.valid[k], drawn.lengths[k]
    rewards = drawn.rewards[k][valid]
    groups = [row[ok] for row, ok in zip(drawn.rewards[k], valid, strict=True)]
    known = history[:, k][~np.isnan(history[:, k])]
    sampled = drawn.sampled[k].sum() / max(lengths.sum(), 1)
    solved = np.any(drawn.successes(run.config.algorithm.max_reward), axis=-1)  # [A, P]
    return {
        "reward/mean": _mean(rewards),
        "reward/std": float(rewards.std()) if rewards.size else None,
        "reward/equal_groups": float(np.mean([len(np.unique(g)) < 2 for g in groups])),
        "gated_prompts": float(np.mean(np.any(solved, axis=0) & ~solved[k])),
        "capability": _mean(known),
        **{
            f"omega/{peer.name}": float(ratio[k, peer.index])
            for peer in run.agents
            if peer.index != k
        },
        "entropy/sampled": -float(sampled),
        "response_length/mean": float(lengths.mean()),
        "truncated": float((~drawn.stopped[k]).mean()),
        "invalid": int((~valid).sum()),
    }


def update_metrics(updates: list[dict], member: int, agent: Agent, run: Run) -> Metrics:
    """Means over the updates of a step, weighted by the sequences each metric is a mean of."""
    rows = [{name: value[member] for name, value in update.items()} for update in updates]
    shares, found = agent.algorithm.shares_answers, {}
    for peer in run.agents:
        name = "own" if peer.index == agent.index else peer.name
        if name != "own" and not shares:
            continue
        found[f"samples/{name}"] = int(sum(row[f"count/{peer.index}"] for row in rows))
        for metric in ("ratio", "clip_fraction", "capped_fraction"):
            found[f"{metric}/{name}"] = _weighted(
                rows, f"{metric}/{peer.index}", f"count/{peer.index}"
            )
    if shares:
        peers = [peer.index for peer in run.agents if peer.index != agent.index]
        for row in rows:
            row["count/cross"] = sum(row[f"count/{j}"] for j in peers)
        found["cross_gradient_fraction"] = _weighted(rows, "cross_gradient_fraction", "count/cross")
    if agent.algorithm.rescue_coef:
        found["rescue/sequences"] = int(sum(row["rescue/sequences"] for row in rows))
        found["rescue/nll"] = _weighted(rows, "rescue/nll", "rescue/prompts")
    found["kl"] = _weighted(rows, "kl", "count/own") if "kl" in rows[0] else None
    found["entropy"] = _weighted(rows, "entropy", "count/own")
    found["grad_norm"] = _finite(np.mean([row["grad_norm"] for row in rows]))
    found["loss"] = _finite(np.mean([row["loss"] for row in rows]))
    # Before the first update the trainer's weights are the sampler's: the rest is rounding.
    found["sampler_gap"] = _finite(rows[0]["sampler_gap"])
    return found


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def _weighted(rows: list[dict], name: str, weight: str) -> float | None:
    total = sum(row[weight] for row in rows)
    if total == 0:
        return None
    return _finite(sum(row[name] * row[weight] for row in rows if row[weight]) / total)


def _finite(value) -> float | None:
    """JSON has no NaN and no infinity; updates that lead to them are skipped and counted."""
    return float(value) if np.isfinite(value) else None
