"""Plans of small studies, and runs that look finished."""

import json

import yaml
from collaboration_study.plan import plan

from hacpo_jax.cli.configs import find_config
from hacpo_jax.config import save_config

BASE = yaml.safe_load(find_config("quickstart").read_text())


def make_plan(out, *, settings=("model",), algorithms=("hacpo", "gspo"), seeds=(0,), **rest):
    options = {"steps": 4, "budget": "steps"} | rest
    return plan(
        BASE,
        settings=list(settings),
        algorithms=list(algorithms),
        seeds=list(seeds),
        out=out,
        **options,
    )


def by_algorithm(runs):
    return {run.algorithm: run for run in runs}


def finish(run, accuracy=0.5) -> None:
    """Made-up output of a run: its first step takes 100 s, later ones 2 s for each agent."""
    run.directory.mkdir(parents=True)
    save_config(run.config, run.directory / "config.yaml")
    steps, names = run.config.training.steps, [agent.name for agent in run.config.agents]
    metrics = []
    for step in range(1, steps + 1):
        for name, peer in (names, names[::-1]):
            row = {"step": step, "agent": name, "ratio/own": 1.0, "gated_prompts": 0.25}
            row |= {"time/rollout": 0.5, "time/update": 99.5 if step == 1 else 1.5}
            if run.config.algorithm.shares_answers:
                row |= {f"ratio/{peer}": 0.5 + 0.1 * step, "cross_gradient_fraction": 0.1 * step}
            metrics.append(row)
    evaluations = [
        {"step": step, "agent": name, "benchmark": "addition", "accuracy": value}
        for step, value in ((0, 0.25), (steps, accuracy))
        for name in names
    ]
    for name, rows in (("metrics", metrics), ("evaluations", evaluations)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run.directory / f"{name}.jsonl").write_text(text)
    (run.directory / "summary.json").write_text(json.dumps({"steps": steps}))
