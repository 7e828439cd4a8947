"""A run directory whose names and answers are hostile, and a browser to look at its page with."""

import json
import shutil
from pathlib import Path

from tiny_runs import tiny_config

from hacpo_jax.config import save_config

ATTACK = "</script></pre><img src=x onerror=document.title='owned'><script>document.title='owned'"
BENCHMARK = "a<b>$x_1$"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


def write_hostile_run(path: Path) -> Path:
    """A run of two agents, one step, in which every text is an attack."""
    path.mkdir()
    config = tiny_config(path, agents=("one", "two"))
    save_config(config, path / "config.yaml")
    metrics = [
        {"step": 1, "agent": agent, "reward/mean": 0.5, "samples/own": 4, "time/update": 1.0}
        for agent in ("one", "two")
    ]
    evaluations = [
        {"step": step, "agent": agent, "benchmark": BENCHMARK, "accuracy": 0.5}
        for step in (0, 1)
        for agent in ("one", "two")
    ]
    answers = [
        {
            "step": step,
            "agent": agent,
            "benchmark": BENCHMARK,
            "problem": f"p<{ATTACK}>",
            "prompt": f"prompt {ATTACK}",
            "answer": f"gold {ATTACK}",
            "response": f"answer of {agent} at {step}: {ATTACK} \x1b[2J \u202e",
            "reward": 1.0,
            "valid": True,
            "finish_reason": "stop",
            "length": 3,
        }
        for step in (0, 1)
        for agent in ("one", "two")
    ]
    files = {"metrics": metrics, "evaluations": evaluations, "answers": answers}
    for name, rows in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
