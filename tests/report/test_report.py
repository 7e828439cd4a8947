"""Plots: what is drawn, how, and what is refused."""

import json
import math
from pathlib import Path

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colors, pyplot

from hacpo_jax.errors import UserError
from hacpo_jax.report import Ensemble, ensembles, read_log, write_report
from hacpo_jax.report.curves import Panel, Style, _running_mean, draw
from hacpo_jax.report.pictures import PANELS

AGENTS = ("red", "blue")
UNSEEN = {"kl"}  # null in these runs
PICTURES = {"overview", "accuracy", "sharing", "time", *PANELS} - UNSEEN


def write_run(path: Path, *, agents=AGENTS, steps: int = 4, shares: bool = True) -> Path:
    """A run directory with made-up numbers: reward 0.1·step plus 0.01 per agent before it."""
    path.mkdir(parents=True)
    lines = []
    for step in range(1, steps + 1):
        for i, agent in enumerate(agents):
            row = {"step": step, "agent": agent, "reward/mean": 0.1 * step + 0.01 * i}
            row |= {"capability": 0.5, "ratio/own": 1.0, "clip_fraction/own": 0.25}
            row |= {"entropy": 2.0, "response_length/mean": 3.0, "kl": None, "truncated": 0.0}
            row |= {"gated_prompts": 0.5, "grad_norm": 1.0, "samples/own": 8}
            row |= {"time/rollout": 2.0, "time/update": 1.0}
            for peer in agents:
                if peer != agent:
                    row[f"omega/{peer}"] = 2.0 if i == 0 else 0.5
                    if shares:
                        row[f"ratio/{peer}"] = 0.5
                        row[f"clip_fraction/{peer}"] = 0.75
                        row[f"samples/{peer}"] = 8
            if shares:
                row["cross_gradient_fraction"] = 0.5
            lines.append(json.dumps(row))
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    evaluations = [
        {"step": step, "agent": agent, "benchmark": "sums", "accuracy": 0.2 + 0.1 * step}
        for step in (0, steps)
        for agent in agents
    ]
    text = "".join(json.dumps(row) + "\n" for row in evaluations)
    (path / "evaluations.jsonl").write_text(text)
    return path


def as_shown(path: Path) -> Ensemble:
    """One run as pictures take it."""
    (one,) = ensembles([read_log(path, path.name)])
    return one


@pytest.fixture
def axes():
    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


def test_every_picture_is_there_and_is_a_picture(tmp_path):
    page, *pictures = write_report([write_run(tmp_path / "run")])
    assert page == tmp_path / "run" / "report" / "report.html"
    assert pictures[0] == tmp_path / "run" / "report" / "overview.png"
    assert {path.stem for path in pictures} == PICTURES
    for path in pictures:
        height, width, _ = matplotlib.image.imread(path).shape
        assert width > height > 300


def test_pictures_leave_pyplot_as_the_caller_has_it(tmp_path):
    """In a notebook they would end its own pictures."""
    mine = pyplot.figure()
    settings = dict(matplotlib.rcParams)
    write_report([write_run(tmp_path / "run")])
    assert pyplot.get_fignums() == [mine.number]
    assert dict(matplotlib.rcParams) == settings
    pyplot.close(mine)


def test_an_algorithm_that_shares_nothing_has_no_pictures_of_sharing(tmp_path):
    _, *pictures = write_report([write_run(tmp_path / "run", shares=False)], tmp_path / "out")
    shared = {"cross_ratio", "clip_fraction_cross", "cross_gradient_fraction"}
    assert {path.stem for path in pictures} == PICTURES - shared
    assert {path.parent for path in pictures} == {tmp_path / "out"}


def test_a_run_without_evaluations_is_drawn(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "evaluations.jsonl").unlink()
    assert {path.stem for path in write_report([run])[1:]} == PICTURES - {"accuracy"}


def test_curves_are_the_metrics_of_each_agent(tmp_path, axes):
    log = as_shown(write_run(tmp_path / "run"))
    style = Style([log])
    assert draw(axes, PANELS["reward"], [log], style, legend=True)
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == set(AGENTS)
    np.testing.assert_allclose(lines["red"].get_xydata(), [[s, 0.1 * s] for s in range(1, 5)])
    np.testing.assert_allclose(
        lines["blue"].get_xydata(), [[s, 0.1 * s + 0.01] for s in range(1, 5)]
    )
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "mean reward")
    assert "Reward" in axes.get_title(loc="left")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(AGENTS)


def test_ratios_are_about_peers_and_never_about_oneself(tmp_path, axes):
    log = as_shown(write_run(tmp_path / "run"))
    draw(axes, PANELS["cross_ratio"], [log], Style([log]), legend=True)
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 4]
    assert [set(line.get_ydata()) for line in curves] == [{0.5}, {0.5}]
    assert axes.get_yscale() == "log"
    # The level of no difference is in sight.
    low, high = axes.get_ylim()
    assert low < 0.5
    assert high > 1


def test_rounding_of_own_ratios_does_not_look_like_news(tmp_path, axes):
    log = as_shown(write_run(tmp_path / "run"))
    draw(axes, PANELS["own_ratio"], [log], Style([log]), legend=True)
    low, high = axes.get_ylim()
    assert low <= 0.999
    assert high >= 1.001
    axes.figure.canvas.draw()
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_with_three_agents_curves_name_their_peer(tmp_path, axes):
    log = as_shown(write_run(tmp_path / "run", agents=("a", "b", "c")))
    draw(axes, PANELS["capability_ratio"], [log], Style([log]), legend=True)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(labels) == sorted(f"{x}, peer {y}" for x in "abc" for y in "abc" if x != y)


def test_an_agent_has_one_color_everywhere_and_a_run_one_dash(tmp_path, axes):
    logs = [
        as_shown(write_run(tmp_path / name, agents=agents))
        for name, agents in (("first", ("red", "blue")), ("second", ("blue", "green")))
    ]
    style = Style(logs)
    draw(axes, PANELS["reward"], logs, style, legend=True)
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == {"red (first)", "blue (first)", "blue (second)", "green (second)"}
    assert lines["blue (first)"].get_color() == lines["blue (second)"].get_color()
    assert len({line.get_color() for line in lines.values()}) == 3
    assert lines["blue (first)"].get_linestyle() == lines["red (first)"].get_linestyle()
    assert lines["blue (first)"].get_linestyle() != lines["blue (second)"].get_linestyle()


def test_colors_are_told_apart_without_seeing_red_and_green(tmp_path):
    """Deuteranopia as simulated by Viénot et al. (1999): any two of the first five stay apart."""
    log = as_shown(write_run(tmp_path / "run", agents=tuple("abcde")))
    style = Style([log])
    rgb = np.array([colors.to_rgb(style.color(agent)) for agent in "abcde"])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = (
        linear @ np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]).T
    )
    shown = np.clip(seen, 0, 1) ** (1 / 2.2)
    apart = [np.linalg.norm(shown[i] - shown[j]) for i in range(5) for j in range(i)]
    assert min(apart) > 0.1


def test_values_that_are_missing_or_not_finite_are_left_out(tmp_path, axes):
    """Masks: a row without a valid value neither hides nor moves the others."""
    run = tmp_path / "run"
    run.mkdir()
    values = [1.0, None, float("nan"), float("inf"), 5.0]
    lines = [
        json.dumps({"step": i + 1, "agent": "red", "kl": value}) for i, value in enumerate(values)
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    log = read_log(run, "run")
    assert log.series("red", "kl") == ([1, 5], [1.0, 5.0])
    (one,) = ensembles([log])
    assert draw(axes, Panel("KL", "nats", "kl"), [one], Style([one]), legend=True)
    assert not draw(axes, Panel("none", "none", "no_such"), [one], Style([one]), legend=True)


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), reach=st.integers(0, 6))
def test_the_running_mean_is_centred(values, reach):
    expected = []
    for i in range(len(values)):
        r = min(reach, i, len(values) - 1 - i)
        window = values[i - r : i + r + 1]
        expected.append(math.fsum(window) / len(window))
    np.testing.assert_allclose(_running_mean(values, reach), expected, atol=1e-9)


def test_long_runs_are_smoothed_and_drawn_raw_as_well(tmp_path, axes):
    log = as_shown(write_run(tmp_path / "run", agents=("a", "b"), steps=80))
    draw(axes, PANELS["reward"], [log], Style([log]), legend=True)
    assert len(axes.get_lines()) == 4
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


@pytest.mark.parametrize("content", [None, "", "\n", '{"step": 1, "agent": "a'])
def test_a_run_without_metrics_is_refused(tmp_path, content):
    (tmp_path / "run").mkdir()
    if content is not None:
        (tmp_path / "run" / "metrics.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"run directory = .*run'.*metrics\.jsonl"):
        write_report([tmp_path / "run"])
    assert not (tmp_path / "run" / "report").exists()


def test_a_run_named_twice_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(UserError, match="is named twice"):
        write_report([run, run])


def test_runs_of_one_name_in_two_folders_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / folder / "run") for folder in ("a", "b")]
    assert len(write_report(runs)) == 1 + len(PICTURES)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"out = .*file"):
        write_report([write_run(tmp_path / "run")], tmp_path / "file")
