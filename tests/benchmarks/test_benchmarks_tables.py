"""The study's numbers, tables and figure."""

import dataclasses

import matplotlib.image
import pytest
from collaboration_study import tables
from collaboration_study.figure import draw_figure
from collaboration_study.plan import ALGORITHMS
from collaboration_study.results import Result, read_results, standard_error
from study_cases import BASE, by_algorithm, finish, make_plan


def test_numbers_of_a_run(tmp_path):
    runs = by_algorithm(make_plan(tmp_path))
    for run in runs.values():
        finish(run, accuracy=0.75)
    shared, own = read_results(runs["hacpo"]), read_results(runs["gspo"])
    assert [result.agent for result in shared] == [agent["name"] for agent in BASE["agents"]]
    assert (shared[0].steps, shared[0].accuracy) == ([0, 4], [0.25, 0.75])
    assert shared[0].change == 0.5
    assert shared[0].rollouts == 4 * 64 * 8
    assert (shared[0].updates, own[0].updates) == (8, 4)
    # Steps of 100, 2, 2 and 2 s: the first one compiles.
    assert shared[0].seconds == pytest.approx(8.0)
    # Ratios 0.6, 0.7, 0.8 and 0.9; shares 0.1, 0.2, 0.3 and 0.4.
    assert shared[0].cross_ratio == pytest.approx(0.75)
    assert shared[0].cross_gradient == pytest.approx(0.25)
    assert shared[0].gated == own[0].gated == 0.25
    assert own[0].cross_ratio is None
    assert own[0].cross_gradient is None


def test_standard_error_of_the_mean():
    # Deviations -2, 0, 2: variance 8 / 2 = 4, so sqrt(4 / 3).
    assert standard_error([1.0, 3.0, 5.0]) == pytest.approx(1.1547005)
    assert standard_error([1.0]) is None


def result(algorithm="gspo", seed=0, agent="a", *, before=0.2, after=0.4, ratios=(), **rest):
    rest = {"cross_gradient": None, "gated": 0.125} | rest
    return Result(
        setting="model",
        algorithm=algorithm,
        seed=seed,
        agent=agent,
        steps=[0, 4],
        accuracy=[before, after],
        rollouts=2048,
        updates=4,
        seconds=10.0 + seed,
        cross_ratios=list(ratios),
        **rest,
    )


def cells(table):
    """Rows of a Markdown table below its heading."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_a_row_for_each_agent():
    results = [
        result("hacpo", 0, "a", after=0.4, ratios=[0.6, 0.8], cross_gradient=0.2),
        result("hacpo", 1, "a", before=0.3, after=0.6, ratios=[0.9, 0.9], cross_gradient=0.4),
        result("gspo", 0, "b", before=0.4, after=0.35),
    ]
    # Before 20 and 30, after 40 and 60, changes 20 and 30: half the difference is the error.
    means = ["25.0 ± 5.0", "50.0 ± 10.0", "+25.0 ± 5.0"]
    assert cells(tables.agents_table(results)) == [
        ["model", "hacpo", "a", "2", *means, "2,048", "4", "10", "0.80", "30%", "12%"],
        ["model", "gspo", "b", "1", "40.0", "35.0", "-5.0", "2,048", "4", "10", "-", "-", "12%"],
    ]


def test_the_ranking_compares_seed_by_seed():
    results = []
    # Means over both agents. gspo: +10 and +30; hacpo: +20 and +50; naive: +15 in seed 1 only.
    for algorithm, seed, changes in (
        ("naive", 1, (0.1, 0.2)),
        ("gspo", 0, (0.05, 0.15)),
        ("gspo", 1, (0.3, 0.3)),
        ("hacpo", 0, (0.1, 0.3)),
        ("hacpo", 1, (0.6, 0.4)),
    ):
        for agent, change in zip("ab", changes, strict=True):
            results.append(result(algorithm, seed, agent, after=0.2 + change))
    assert cells(tables.ranking_table(results, "model")) == [
        ["1", "hacpo", "55.0 ± 15.0", "+35.0 ± 15.0", "+15.0 ± 5.0", "2 of 2"],
        ["2", "gspo", "40.0 ± 10.0", "+20.0 ± 10.0", "-", "-"],
        ["3", "naive", "35.0", "+15.0", "-15.0", "0 of 1"],
    ]


def test_without_a_baseline_nothing_is_compared():
    table = tables.ranking_table([result("hacpo"), result("naive", after=0.5)], "model")
    assert [row[1] for row in cells(table)] == ["naive", "hacpo"]
    assert {tuple(row[4:]) for row in cells(table)} == {("-", "-")}


def test_settings_and_cross_ratios_stand_beside_the_result(tmp_path):
    runs = make_plan(tmp_path, algorithms=["hacpo", "gspo_x2", "sgt"], seeds=[0, 1])
    rows = cells(tables.settings_table(runs))
    assert [row[:7] for row in rows] == [
        ["hacpo", "4", "64", "8", "64", "2", "0.0003"],
        ["gspo_x2", "4", "64", "16", "32", "2", "0.0003"],
        ["sgt", "4", "64", "8", "64", "1", "0.0003"],
    ]
    assert "peers' 0.5 + 0.01 u to 1, alpha 1" in rows[0][7]
    assert rows[1][7] == "1 - 0.0003 to 1 + 0.0004"
    assert rows[2][7] == "tokens 1 - 0.2 to 1 + 0.28; rescue 0.3"
    found = [result("hacpo", ratios=[0.7, 0.65]), result("hacpo", 1, ratios=[0.9]), result()]
    told = tables.cross_ratio_range(found, "model")
    assert told == "Cross ratios in model are 0.65 to 0.90 (means of a step)"


def test_the_figure_holds_every_algorithm(tmp_path):
    results = [
        result(algorithm, seed, agent, after=0.3 + 0.1 * seed)
        for algorithm in ALGORITHMS
        for seed in (0, 1)
        for agent in "ab"
    ]
    draw_figure(results, tmp_path / "figure.png")
    picture = matplotlib.image.imread(tmp_path / "figure.png")[..., :3].reshape(-1, 3)
    seen = {tuple(color) for color in (picture[::3] * 255).round().astype(int)}
    # The first two colours: Okabe and Ito's blue and vermillion.
    assert {(0, 114, 178), (213, 94, 0)} <= seen


def test_curves_are_means_over_seeds():
    results = [
        dataclasses.replace(result(seed=0), steps=[0, 10], accuracy=[0.2, 0.5]),
        dataclasses.replace(result(seed=1), steps=[0, 10], accuracy=[0.4, 0.6]),
        dataclasses.replace(result("sgt"), steps=[0, 5], accuracy=[0.1, 0.3]),
    ]
    table = tables.curves_table(results)
    assert table.splitlines()[0].endswith("| agent | 0 | 5 | 10 |")
    first, second = cells(table)
    assert first[1:] == ["gspo", "a", "30.0", "-", "55.0"]
    assert second[1:] == ["sgt", "a", "10.0", "30.0", "-"]
