"""The collaboration study: its plan, what it skips, its arithmetic and its tables."""

import json
import subprocess
import sys
from pathlib import Path

import collaboration
import matplotlib.image
import pytest
import yaml
from collaboration_study import execute, tables
from collaboration_study.figure import draw_figure
from collaboration_study.plan import ALGORITHMS, SETTINGS, plan
from collaboration_study.results import Result, read_results, standard_error

from hacpo_jax.cli.configs import find_config
from hacpo_jax.config import save_config

SCRIPT = Path(collaboration.__file__)
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


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        ("steps", {"hacpo": 40, "gspo": 40, "gspo_x2": 40, "sgt": 40}),
        # 64 problems x 8 answers x 40 steps = 20,480, or 64 x 16 x 20.
        ("rollouts", {"hacpo": 40, "gspo": 40, "gspo_x2": 20, "sgt": 40}),
        # Of two agents a sharing one makes 2 updates a step, one on its own answers 1.
        ("updates", {"hacpo": 40, "gspo": 80, "gspo_x2": 40, "sgt": 80}),
    ],
)
def test_budgets_are_equal(tmp_path, budget, wanted):
    runs = by_algorithm(make_plan(tmp_path, algorithms=wanted, steps=40, budget=budget))
    assert {name: run.config.training.steps for name, run in runs.items()} == wanted
    if budget == "rollouts":
        answers = {
            t.steps * t.prompts_per_step * t.group_size
            for t in (run.config.training for run in runs.values())
        }
        assert answers == {20_480}
    if budget == "updates":
        assert {run.updates for run in runs.values()} == {80}


def test_a_budget_without_a_step_is_refused(tmp_path, capsys):
    words = ["--algorithms", "gspo_x2", "--steps", "1", "--budget", "rollouts"]
    assert collaboration.main([*words, "--out", str(tmp_path), "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        "error: --steps = 1: leaves gspo_x2 no step at equal rollouts\n"
    )


def test_twice_the_answers_in_updates_of_the_same_size(tmp_path):
    runs = by_algorithm(make_plan(tmp_path, algorithms=["gspo", "gspo_x2"]))
    usual, double = (runs[name].config.training for name in ("gspo", "gspo_x2"))
    assert (usual.group_size, usual.mini_batch_prompts) == (8, 64)
    assert (double.group_size, double.mini_batch_prompts) == (16, 32)
    assert (runs["gspo"].updates, runs["gspo_x2"].updates) == (4, 8)


@pytest.mark.parametrize("setting", SETTINGS)
def test_all_algorithms_start_from_the_same_exported_agents(tmp_path, setting):
    runs = make_plan(tmp_path, settings=[setting], algorithms=ALGORITHMS, seeds=[3])
    assert [run.algorithm for run in runs] == list(ALGORITHMS)
    first = tmp_path / "starts" / setting / "seed_3" / "agents"
    made = [name for names in runs[0].start.runs for name in names]
    assert len(made) == 2
    for run in runs:
        assert run.config.seed == 3
        for agent, name in zip(run.config.agents, made, strict=True):
            assert (agent.name, agent.model) == (name, str(first / name))
            assert agent.warm_start is None
            assert agent.tokenizer is None
    assert len({run.directory for run in runs}) == len(runs)


def test_each_name_means_another_objective(tmp_path):
    configs = {
        name: run.config.algorithm
        for name, run in by_algorithm(make_plan(tmp_path, algorithms=ALGORITHMS)).items()
    }
    assert configs["hacpo"].hacpo.clip_low == BASE["algorithm"]["hacpo"]["clip_low"]
    assert configs["prp_peer"].prp.denominator == "thl_peer"
    assert configs["prp"].prp.denominator == "learner_snapshot"
    rescued = {name for name, algorithm in configs.items() if algorithm.rescue_coef == 0.3}
    assert rescued == {"sgt", "hacpo+rescue", "gspo+rescue"}
    assert configs["hacpo+rescue"].hacpo == configs["hacpo"].hacpo
    opened = configs["hacpo_open"].hacpo
    assert (opened.clip_low, opened.clip_step, opened.alpha) == (0, 0, 0)
    for name, algorithm in configs.items():
        plain = {"gspo_x2": "gspo", "prp_peer": "prp", "hacpo_open": "hacpo"}.get(name, name)
        assert algorithm.name == plain.removesuffix("+rescue")
    assert len({*configs.values()}) == len(configs) - 1  # gspo_x2 differs in its answers


def start_agents(tmp_path, setting):
    """Agents of a start by name, from all the runs that make it."""
    (run,) = make_plan(tmp_path, settings=[setting], algorithms=["gspo"])
    return {a["name"]: a for data in run.start.runs.values() for a in data["agents"]}, run.start


def test_state_differs_in_the_warm_start_alone(tmp_path):
    agents, _ = start_agents(tmp_path, "state")
    goals = {name: agent["warm_start"]["until_accuracy"] for name, agent in agents.items()}
    assert goals == {"stronger": 0.45, "weaker": 0.25}
    stronger, weaker = agents.values()
    assert stronger["model"] == weaker["model"]
    assert stronger["tokenizer"] == weaker["tokenizer"]


def test_size_differs_in_the_width_alone(tmp_path):
    agents, _ = start_agents(tmp_path, "size")
    small, large = agents["small"], agents["large"]
    different = {key for key in small["model"] if small["model"][key] != large["model"][key]}
    assert different == {"hidden_size", "intermediate_size"}
    assert large["model"]["hidden_size"] > small["model"]["hidden_size"]
    assert small["tokenizer"] == large["tokenizer"]
    assert small["warm_start"] == large["warm_start"]


def test_complementary_halves_divide_the_training_problems(tmp_path):
    agents, start = start_agents(tmp_path, "complementary")
    assert list(agents) == [agent["name"] for agent in BASE["agents"]]
    assert list(start.runs) == [(name,) for name in agents]
    execute.write_halves(start, BASE)
    files = [Path(data["task"]["train"]["path"]) for data in start.runs.values()]
    halves = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    operands = [
        [tuple(map(int, row["problem"].removesuffix(" is ").split("+"))) for row in half]
        for half in halves
    ]
    assert all(a < 50 for a, _ in operands[0])
    assert all(a >= 50 for a, _ in operands[1])
    assert len({*operands[0], *operands[1]}) == BASE["task"]["train"]["size"] == 6000
    assert min(map(len, halves)) > 2500
    for half, pairs in zip(halves, operands, strict=True):
        assert [row["answer"] for row in half] == [str(a + b) for a, b in pairs]


def test_what_counts_as_finished(tmp_path):
    (run,) = make_plan(tmp_path, algorithms=["gspo"])
    assert execute.run_status(run.directory, run.config) == "new"
    finish(run)
    assert execute.run_status(run.directory, run.config) == "finished"

    summary = run.directory / "summary.json"
    summary.write_text('{"steps": 3}')
    assert execute.run_status(run.directory, run.config) == "started"
    summary.write_text('{"steps"')
    assert execute.run_status(run.directory, run.config) == "started"
    summary.unlink()
    assert execute.run_status(run.directory, run.config) == "started"


def test_a_finished_run_of_another_config_is_not_taken(tmp_path):
    (run,) = make_plan(tmp_path, algorithms=["gspo"])
    finish(run)
    other = run.config.model_copy(update={"seed": 1})
    assert execute.run_status(run.directory, other) == "started"


@pytest.fixture
def made(monkeypatch):
    """Stands in for the processes: which starts and runs were asked for, and which fail."""

    class Made:
        def __init__(self):
            self.starts, self.runs, self.failing = [], [], set()

        def start(self, start, base):
            self.starts.append((start.setting, start.seed))
            if (start.setting, start.seed) in self.failing:
                raise execute.Failure("error: no warm start")
            for names in start.runs:
                for name in names:
                    start.model(name).mkdir(parents=True)

        def run(self, run):
            self.runs.append(run.name)
            if run.name in self.failing:
                raise execute.Failure("error: no run")
            finish(run)

    made = Made()
    monkeypatch.setattr(collaboration, "make_start", made.start)
    monkeypatch.setattr(collaboration, "make_run", made.run)
    return made


def study(out, *words):
    names = ["--algorithms", "hacpo", "gspo", "--steps", "2", "--out", str(out)]
    return collaboration.main([*names, "--setting", "model", "--seeds", "0", "1", *words])


def test_a_start_is_made_once_and_finished_runs_are_skipped(tmp_path, made, capsys):
    assert study(tmp_path, "--seeds", "0") == 0
    assert made.starts == [("model", 0)]
    assert made.runs == ["model, hacpo, seed 0", "model, gspo, seed 0"]
    capsys.readouterr()
    made.runs.clear()
    assert study(tmp_path) == 0
    assert made.starts == [("model", 0), ("model", 1)]
    assert made.runs == ["model, hacpo, seed 1", "model, gspo, seed 1"]
    told = capsys.readouterr().out
    assert "[1/4] model, hacpo, seed 0: finished already, skipped\n" in told
    assert told.count("skipped") == 2


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path, made, capsys):
    made.failing = {"model, hacpo, seed 0"}
    assert study(tmp_path) == 1
    assert len(made.runs) == 4
    assert "[1/4] model, hacpo, seed 0: FAILED: error: no run\n" in capsys.readouterr().out
    text = (tmp_path / "steps_2.md").read_text()
    assert "1 of 4 runs are not finished and left out." in text

    made.failing, made.runs = set(), []
    assert study(tmp_path) == 0
    assert made.runs == ["model, hacpo, seed 0"]


def test_a_failed_start_blocks_its_own_runs_only(tmp_path, made):
    made.failing = {("model", 0)}
    assert study(tmp_path) == 1
    assert made.starts == [("model", 0), ("model", 1)]
    assert made.runs == ["model, hacpo, seed 1", "model, gspo, seed 1"]


def test_the_reason_of_a_failed_process_is_passed_on(tmp_path):
    (run,) = make_plan(tmp_path, algorithms=["gspo"])
    with pytest.raises(execute.Failure) as caught:
        execute.make_run(run)  # its agents' directories are not there
    assert str(caught.value).startswith("error: agents.0.model = ")
    assert str(caught.value).endswith(f"(see {run.directory}.log)")


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


def test_a_dry_run_of_the_script_shows_the_plan_and_writes_nothing(tmp_path):
    out = tmp_path / "out"
    words = "--algorithms hacpo gspo_x2 --seeds 0 1 --setting complementary --budget rollouts"
    command = [sys.executable, str(SCRIPT), *words.split()]
    done = subprocess.run(
        [*command, "--steps", "10", "--dry-run", "--out", str(out)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "start of complementary, seed 0: to be made",
        "start of complementary, seed 1: to be made",
        "complementary, hacpo, seed 0: 10 steps, 5,120 answers and 20 updates of each agent (new)",
        "complementary, gspo_x2, seed 0: 5 steps, 5,120 answers and 10 updates of each agent (new)",
        "complementary, hacpo, seed 1: 10 steps, 5,120 answers and 20 updates of each agent (new)",
        "complementary, gspo_x2, seed 1: 5 steps, 5,120 answers and 10 updates of each agent (new)",
    ]
    assert not out.exists()
