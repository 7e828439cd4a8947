"""Which runs make up a study: settings of two agents, algorithms, and equal budgets."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

from hacpo_jax.config import Config, parse_config
from hacpo_jax.errors import UserError

BUDGETS = ("steps", "rollouts", "updates")
SETTINGS = ("state", "size", "model", "complementary")
EVALUATIONS = 6
"""Of one run, besides the one before it; as many as the step count lets be evenly spaced."""
# Two-digit addition has no more; answering them all takes a tenth of a second.
_HELD_OUT = 986
# Greedy accuracy on training problems at which the warm starts of a setting end. On a half of the
# problems it is higher, because the other half stays unsolved: 0.7 there is just under 0.4 of all.
_STATES = {"stronger": 0.45, "weaker": 0.25}
_HALF = 0.7


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One way to learn.

    Args:
      section: keys of the `algorithm` section that differ from the quickstart's.
      answers: factor of the group size; the mini-batch has as many prompts less, so that an update
        stays as large.
    """

    section: dict[str, Any]
    answers: int = 1


_RESCUE = {"rescue": {"coef": 0.3}}
ALGORITHMS = {
    "hacpo": Algorithm({"name": "hacpo"}),
    # For agents so far apart that no ratio lies within the bounds.
    "hacpo_open": Algorithm(
        {"name": "hacpo", "hacpo": {"clip_low": 0.0, "clip_step": 0.0, "alpha": 0.0}}
    ),
    "gspo": Algorithm({"name": "gspo"}),
    "grpo": Algorithm({"name": "grpo"}),
    "gspo_x2": Algorithm({"name": "gspo"}, answers=2),
    "naive": Algorithm({"name": "naive"}),
    "xgrpo": Algorithm({"name": "xgrpo"}),
    "prp": Algorithm({"name": "prp"}),
    "prp_peer": Algorithm({"name": "prp", "prp": {"denominator": "thl_peer"}}),
    "sgt": Algorithm({"name": "sgt"}),
    "hacpo+rescue": Algorithm({"name": "hacpo", **_RESCUE}),
    "gspo+rescue": Algorithm({"name": "gspo", **_RESCUE}),
}


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One run of the study.

    Args:
      setting: one of `SETTINGS`.
      algorithm: one of `ALGORITHMS`.
      seed: of data order and sampling; the start has the same.
      directory: its run directory.
      data: its config.
      start: where its agents' first weights are.
    """

    setting: str
    algorithm: str
    seed: int
    directory: Path
    data: dict[str, Any]
    start: "Start"

    @property
    def config(self) -> Config:
        return parse_config(self.data)

    @property
    def name(self) -> str:
        return f"{self.setting}, {self.algorithm}, seed {self.seed}"

    @property
    def updates(self) -> int:
        """Optimizer updates of each learner."""
        return self.config.training.steps * self.config.updates_per_step(self.config.algorithm)


@dataclasses.dataclass(frozen=True)
class Start:
    """Warm-started agents that every algorithm of one setting and seed begins from.

    Args:
      setting: one of `SETTINGS`.
      seed: of first weights and warm starts.
      directory: where it is made; `agents/` in it holds Hugging Face directories.
      runs: configs whose runs make it, by the names of the agents that each trains.
    """

    setting: str
    seed: int
    directory: Path
    runs: dict[tuple[str, ...], dict[str, Any]]

    def model(self, agent: str) -> Path:
        """The Hugging Face directory of one agent."""
        return self.directory / "agents" / agent


def plan(
    base: dict[str, Any],
    *,
    settings: list[str],
    algorithms: list[str],
    seeds: list[int],
    steps: int,
    budget: str,
    out: Path,
) -> list[StudyRun]:
    """All runs of a study, one seed after the other.

    Args:
      base: the quickstart's config.
      settings: some of `SETTINGS`.
      algorithms: some of `ALGORITHMS`.
      seeds: one start and one run of each algorithm for each.
      steps: of an algorithm with the quickstart's group size (`steps`, `rollouts`), or of one that
        shares answers (`updates`).
      budget: which of `BUDGETS` all algorithms have in common.
      out: where everything is written.

    Raises:
      UserError: a budget leaves no step, or a config is wrong.
    """
    runs = []
    for seed in seeds:
        for setting in settings:
            start = make_start(base, setting, seed, out)
            for algorithm in algorithms:
                runs.append(_study_run(base, start, algorithm, steps, budget, out))
    return runs


def _study_run(
    base: dict[str, Any], start: Start, algorithm: str, steps: int, budget: str, out: Path
) -> StudyRun:
    data = _common(base, start.seed)
    data["agents"] = [
        {"name": name, "model": str(start.model(name))} for names in start.runs for name in names
    ]
    chosen = ALGORITHMS[algorithm]
    data["algorithm"] = data.get("algorithm", {}) | chosen.section
    training = data["training"]
    training["group_size"] *= chosen.answers
    training["mini_batch_prompts"] //= chosen.answers
    own_steps = budget_steps(parse_config(data), base["training"], steps, budget)
    if not own_steps:
        raise UserError("--steps", steps, f"leaves {algorithm} no step at equal {budget}")
    training["steps"] = own_steps
    data["evaluation"] = {"every": max(1, round(own_steps / EVALUATIONS))}
    # The number of steps is part of the name, so that budgets share the runs they have in common.
    directory = out / start.setting / f"{algorithm}_{own_steps}_steps" / f"seed_{start.seed}"
    data["run_dir"] = str(directory)
    parse_config(data)
    return StudyRun(start.setting, algorithm, start.seed, directory, data, start)


def budget_steps(config: Config, reference: dict[str, Any], steps: int, budget: str) -> int:
    """How many steps of a run cost as much as `steps` of the reference.

    Args:
      config: of the run.
      reference: the quickstart's `training` section. For `updates` the reference shares answers:
        its learners make as many updates on each peer's answers as on their own.
      steps: of the reference.
      budget: one of `BUDGETS`.
    """
    if budget == "rollouts":
        return steps * reference["group_size"] // config.training.group_size
    if budget == "updates":
        own = reference["prompts_per_step"] // reference["mini_batch_prompts"]
        return steps * own * len(config.agents) // config.updates_per_step(config.algorithm)
    return steps


def make_start(base: dict[str, Any], setting: str, seed: int, out: Path) -> Start:
    """The runs whose step 0 is what one setting and seed starts from."""
    directory = out / "starts" / setting / f"seed_{seed}"
    agents = _agents(base, setting)
    if setting == "complementary":
        parts = [[agent] for agent in agents]
        files = [directory.parent / f"{half}_half.jsonl" for half in ("low", "high")]
    else:
        parts, files = [agents], [None]
    runs = {}
    for part, file in zip(parts, files, strict=True):
        data = _common(base, seed)
        if file is not None:
            data["task"]["train"] = {"kind": "jsonl", "path": str(file)}
        names = tuple(agent["name"] for agent in part)
        data["agents"], data["algorithm"] = part, {"name": "gspo"}
        # A run must have a step; this one is as short as can be and thrown away.
        smallest = {"prompts_per_step": 1, "group_size": 2, "mini_batch_prompts": 1}
        data["training"] |= {"steps": 1, **smallest}
        data["run_dir"] = str(directory / "-".join(names))
        parse_config(data)
        runs[names] = data
    return Start(setting, seed, directory, runs)


def _common(base: dict[str, Any], seed: int) -> dict[str, Any]:
    data = copy.deepcopy(base)
    data["seed"] = seed
    for source in data["task"]["eval"].values():
        source["size"] = _HELD_OUT
    return data


def _agents(base: dict[str, Any], setting: str) -> list[dict[str, Any]]:
    """The two agents of a setting, with their warm starts."""
    agents = copy.deepcopy(base["agents"])
    characters = next(a for a in agents if a["tokenizer"]["kind"] == "characters")
    if setting == "state":
        return [_altered(characters, name, goal) for name, goal in _STATES.items()]
    if setting == "size":
        goal = characters["warm_start"]["until_accuracy"]
        larger = {"hidden_size": 96, "intermediate_size": 288}
        return [
            _altered(characters, "small", goal),
            _altered(characters, "large", goal, larger),
        ]
    if setting == "complementary":
        return [_altered(agent, agent["name"], _HALF) for agent in agents]
    return agents


def _altered(
    agent: dict[str, Any], name: str, goal: float, shape: dict[str, int] | None = None
) -> dict[str, Any]:
    warm_start = agent["warm_start"] | {"until_accuracy": goal}
    model = agent["model"] | (shape or {})
    return copy.deepcopy(agent | {"name": name, "warm_start": warm_start, "model": model})
