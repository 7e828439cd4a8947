"""Where an algorithm clips ratios, for the pictures of ratios."""

import dataclasses

from hacpo_jax.config import Config
from hacpo_jax.report.ensemble import Ensemble


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Ratios beyond `low` and `high` lose their gradient.

    Args:
      low: at the first update of a step.
      high: at every update.
      last_low: at the last update of a step, where the bound rises.
      of: what is clipped, in words.
    """

    low: float
    high: float
    last_low: float
    of: str


def bounds(ensemble: Ensemble, agent: str, *, cross: bool) -> Bounds | None:
    """Bounds of own or of cross ratios; None where nothing is clipped or nothing is known.

    Args:
      ensemble: the runs.
      agent: the learner.
      cross: of its peers' answers instead of its own.
    """
    algorithm, config = ensemble.algorithm(agent), ensemble.logs[0].config
    if algorithm is None or config is None or (cross and not algorithm.shares_answers):
        return None
    if algorithm.name == "hacpo":
        if not cross:
            own = algorithm.hacpo
            return _around_one(own.eps_low, own.eps_high, "answer")
        return _stepwise(config, ensemble, agent) if algorithm.hacpo.clip_cross else None
    if algorithm.name in ("gspo", "naive"):
        return _around_one(algorithm.gspo.eps_low, algorithm.gspo.eps_high, "answer")
    return _around_one(algorithm.grpo.eps_low, algorithm.grpo.eps_high, "token")


def _around_one(eps_low: float, eps_high: float, of: str) -> Bounds:
    return Bounds(1 - eps_low, 1 + eps_high, 1 - eps_low, of)


def _stepwise(config: Config, ensemble: Ensemble, agent: str) -> Bounds:
    algorithm = ensemble.algorithm(agent)
    assert algorithm is not None
    settings, updates = algorithm.hacpo, config.updates_per_step(algorithm)
    last = min(settings.clip_low + settings.clip_step * (updates - 1), 1.0)
    return Bounds(settings.clip_low, 1.0, last, "answer")
