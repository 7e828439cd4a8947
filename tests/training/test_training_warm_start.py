"""Supervised warm starts: the loss by hand, and where they end."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from tiny import full_log_probs, random_params
from tiny_runs import AGENTS, tiny_config

from hacpo_jax.config import WarmStart
from hacpo_jax.parallel.layout import one_device
from hacpo_jax.training.run import prepare
from hacpo_jax.training.warm_start import warm_start

PROBLEMS = [("left:", "12"), ("right:", "3"), ("up:", "4")]


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "problems.jsonl"
    lines = [json.dumps({"problem": p, "answer": a}) for p, a in PROBLEMS]
    path.write_text("\n".join(lines))
    source = {"kind": "jsonl", "path": str(path)}
    return prepare(
        tiny_config(
            tmp_path / "run",
            agents=("one", AGENTS["two"]),
            task={"train": source, "eval": {"same": source}},
            sampling={"max_new_tokens": 4, "temperature": 0.5},
        )
    )


def started(run, **settings):
    """Parameters before and after, and what was reported."""
    agent = dataclasses.replace(
        run.agents[1],
        warm_start=WarmStart(steps=40, batch_size=8, learning_rate=0.03, **settings),
    )
    before, reports = random_params(agent.model, 0), []
    after = warm_start(run, agent, one_device(), before, reports.append)
    return before, after, reports


def test_the_loss_is_the_mean_over_solution_tokens_at_temperature_1(run):
    """Prompts weigh nothing, the end token counts, and lengths 1 and 2 make one mean."""
    agent = run.agents[1]
    before, after, (report, *others) = started(run, check_every=1)
    rows = np.random.default_rng([run.config.seed, 1, 1]).integers(3, size=8)
    values = []
    for prompt, answer in (PROBLEMS[row] for row in rows):
        solution = [*agent.tokenizer.encode_texts([answer])[0], agent.tokenizer.eos_id]
        prompt = agent.tokenizer.encode_prompt(prompt)
        size = agent.tokenizer.size
        values.append(full_log_probs(agent.model, before, prompt, solution, num_tokens=size))
    assert len({len(value) for value in values}) == 2
    assert report.step == 1
    assert all(other.accuracy is None for other in others)
    assert others[-1].loss < report.loss / 10
    assert report.loss == pytest.approx(-np.concatenate(values).mean(), rel=1e-5)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
    assert all(jax.tree.leaves(moved))


def test_it_ends_once_training_problems_are_solved(run):
    _, _, reports = started(run, until_accuracy=1.0, check_every=3)
    assert [report.step for report in reports] == list(range(3, 3 * len(reports) + 1, 3))
    assert 1 < len(reports) < 13
    assert reports[-1].accuracy == 1
    assert all(report.accuracy < 1 for report in reports[:-1])


def test_or_after_its_last_update(run):
    _, _, reports = started(run, check_every=15)
    assert [report.step for report in reports] == [15, 30, 40]
