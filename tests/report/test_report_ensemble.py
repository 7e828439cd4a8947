"""Runs that differ in their seed alone are one curve; bounds of ratios; who learned from whom."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import tiny_config

from hacpo_jax.config import Config, save_config
from hacpo_jax.report import ensembles, read_log
from hacpo_jax.report.bounds import Bounds, bounds
from hacpo_jax.report.sharing import sharing


def write(path: Path, config: Config, rewards, **others) -> Path:
    """A run of the agents of `config` with a reward at each step."""
    path.mkdir()
    save_config(config, path / "config.yaml")
    rows = [
        {"step": step, "agent": agent.name, "reward/mean": reward, **others.get(agent.name, {})}
        for step, reward in enumerate(rewards, start=1)
        for agent in config.agents
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def runs(tmp_path):
    """Two seeds of one config, and another config."""
    first = tiny_config(tmp_path / "a_0", agents=("one", "two"))
    second = tiny_config(tmp_path / "a_1", agents=("one", "two"), seed=1, checkpoint={"every": 3})
    other = tiny_config(tmp_path / "b", agents=("one", "two"), algorithm={"name": "gspo"})
    return [
        read_log(write(tmp_path / "a_0", first, [0.0, 0.5, 0.5]), "a_0"),
        read_log(write(tmp_path / "b", other, [0.25]), "b"),
        read_log(write(tmp_path / "a_1", second, [0.5, 1.0]), "a_1"),
    ]


def test_seeds_are_one_curve_with_their_mean_and_spread(runs):
    seeds, single = ensembles(runs)
    assert (seeds.name, single.name) == ("a, 2 seeds", "b")
    band = seeds.series("one", "reward/mean")
    # The first run is a step ahead: a mean of fewer runs would look like a change.
    np.testing.assert_array_equal(band.steps, [1, 2])
    np.testing.assert_allclose(band.mean, [0.25, 0.75])
    spread = np.std([0.0, 0.5], ddof=1)
    np.testing.assert_allclose(band.high - band.mean, [spread, spread])
    np.testing.assert_allclose(band.mean - band.low, [spread, spread])
    alone = single.series("two", "reward/mean")
    assert (alone.mean, alone.low, alone.high) == ([0.25], [0.25], [0.25])
    assert len(seeds.series("one", "no_such").steps) == 0


def test_runs_without_a_config_stay_apart(tmp_path):
    for name in ("x_0", "x_1"):
        run = write(tmp_path / name, tiny_config(tmp_path / name), [0.5])
        (run / "config.yaml").unlink()
    found = ensembles([read_log(tmp_path / name, name) for name in ("x_0", "x_1")])
    assert [one.name for one in found] == ["x_0", "x_1"]


@pytest.mark.parametrize(
    ("algorithm", "own", "cross"),
    [
        (
            {"name": "hacpo", "hacpo": {"clip_low": 0.5, "clip_step": 0.1}},
            # Two agents' answers to 2 prompts in mini-batches of 2: two updates.
            Bounds(1 - 3e-4, 1 + 4e-4, 1 - 3e-4, "answer"),
            Bounds(0.5, 1.0, 0.6, "answer"),
        ),
        (
            {"name": "hacpo", "hacpo": {"clip_cross": False}},
            Bounds(1 - 3e-4, 1 + 4e-4, 1 - 3e-4, "answer"),
            None,
        ),
        ({"name": "grpo"}, Bounds(0.8, 1.28, 0.8, "token"), None),
        ({"name": "prp"}, Bounds(0.8, 1.28, 0.8, "token"), Bounds(0.8, 1.28, 0.8, "token")),
        (
            {"name": "naive", "gspo": {"eps_low": 0.1, "eps_high": 0.2}},
            Bounds(0.9, 1.2, 0.9, "answer"),
            Bounds(0.9, 1.2, 0.9, "answer"),
        ),
    ],
)
def test_bounds_are_those_of_the_algorithm(tmp_path, algorithm, own, cross):
    config = tiny_config(tmp_path / "run", agents=("one", "two"), algorithm=algorithm)
    (one,) = ensembles([read_log(write(tmp_path / "run", config, [0.5]), "run")])
    assert bounds(one, "one", cross=False) == own
    assert bounds(one, "one", cross=True) == cross


def test_who_learned_from_whom(tmp_path):
    """Of 10 answers a half is clipped and a tenth capped: 4 are used, in each of two steps."""
    config = tiny_config(tmp_path / "run", agents=("one", "two"))
    numbers = {
        "one": {
            "samples/own": 6,
            "clip_fraction/own": 0.0,
            "samples/two": 10,
            "clip_fraction/two": 0.5,
            "capped_fraction/two": 0.1,
        },
        "two": {"samples/own": 3, "clip_fraction/own": None},
    }
    run = write(tmp_path / "run", config, [0.5, 0.5], **numbers)
    looks = [
        {"step": s, "agent": "one", "cosine/two": c} for s, c in ((1, 0.5), (2, 0.1), (3, None))
    ]
    (run / "diagnostics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in looks))
    (one,) = ensembles([read_log(run, "run")])
    found = sharing(one)
    assert found is not None
    np.testing.assert_allclose(found.taken, [[12, 20], [np.nan, 6]])
    np.testing.assert_allclose(found.used, [[12, 8], [np.nan, 6]])
    np.testing.assert_allclose(found.cosine, [[np.nan, 0.3], [np.nan, np.nan]])


def test_rescues_count_as_used(tmp_path):
    config = tiny_config(tmp_path / "run", agents=("one", "two"), algorithm={"name": "sgt"})
    numbers = {"one": {"samples/own": 4, "rescue/sequences": 3}, "two": {"samples/own": 4}}
    (one,) = ensembles([read_log(write(tmp_path / "run", config, [1.0], **numbers), "run")])
    found = sharing(one)
    assert found is not None
    np.testing.assert_allclose(found.used, [[4, 3], [np.nan, 4]])


def test_metrics_of_an_earlier_version_have_no_matrix(tmp_path):
    config = tiny_config(tmp_path / "run", agents=("one", "two"))
    (one,) = ensembles([read_log(write(tmp_path / "run", config, [1.0]), "run")])
    assert sharing(one) is None
