"""The collaboration study: its plan, what it skips, its arithmetic and its tables."""

import json
import subprocess
import sys
from pathlib import Path

import collaboration
import pytest
from collaboration_study import execute
from collaboration_study.plan import ALGORITHMS, SETTINGS
from study_cases import BASE, by_algorithm, finish, make_plan

SCRIPT = Path(collaboration.__file__)


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
