"""`eval` of several runs, checkpoints and models, and of one that was killed in between."""

import json
import shutil
from pathlib import Path

import pytest
from cli_rows import rows

from hacpo_jax.errors import UserError
from hacpo_jax.evaluation import evaluate
from hacpo_jax.launch import main
from hacpo_jax.training import run

NAMES = ["left", "middle", "right"]


@pytest.fixture
def run_copy(tiny_run, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


@pytest.fixture(scope="module")
def model(tiny_run, tmp_path_factory) -> Path:
    """The first agent as a Hugging Face model."""
    out = tmp_path_factory.mktemp("exported")
    assert main(["export", str(tiny_run), f"out={out}", "agent=left"]) == 0
    return out / "left"


def test_a_killed_evaluation_goes_on_and_ends_the_same(tiny_run, tmp_path, monkeypatch, capsys):
    words = ["eval", str(tiny_run), "sampling.max_rows=4"]  # two problems at a time
    assert main([*words, f"out={tmp_path / 'whole'}"]) == 0

    real, calls = evaluate.answer, []

    def answer(*args, **kwargs):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(len(args[1]))
        return real(*args, **kwargs)

    monkeypatch.setattr(evaluate, "answer", answer)
    assert main([*words, f"out={tmp_path / 'killed'}"]) == 130
    # Two agents answered two problems twice, then the next two; then the third one two.
    assert len(rows(tmp_path / "killed" / "evaluation_answers.jsonl")) == 8 + 8 + 4
    assert not (tmp_path / "killed" / "evaluation.json").exists()
    calls.clear()
    capsys.readouterr()
    assert main([*words, f"out={tmp_path / 'killed'}"]) == 0
    assert calls == [2]  # what was missing alone was drawn
    out = capsys.readouterr().out
    assert "left+right on parity: 4 of 4 problems were answered before" in out
    assert "middle on parity: 2 of 4 problems were answered before" in out
    for name in ("evaluation.json", "evaluation.md", "evaluation_answers.jsonl"):
        whole, resumed = ((tmp_path / d / name).read_text() for d in ("whole", "killed"))
        assert whole == resumed

    calls.clear()
    assert main([*words, f"out={tmp_path / 'killed'}", "evaluation.best_of=[2]"]) == 0
    assert calls == []  # other figures of the same answers
    figures = json.loads((tmp_path / "killed" / "evaluation.json").read_text())
    assert "best@1" not in figures["agents"]["left"]["parity"]


def test_other_settings_and_other_weights_are_answered_anew(run_copy):
    path = run_copy / "evaluation_answers.jsonl"
    assert main(["eval", str(run_copy)]) == 0
    first = path.read_text()
    assert len(rows(path)) == 24
    for words in (["evaluation.temperature=0.5"], ["step=1"]):
        before = len(rows(path))
        assert main(["eval", str(run_copy), *words]) == 0
        assert len(rows(path)) == before + 24
    note = run_copy / "checkpoints" / "2" / "_CHECKPOINT_METADATA"
    note.write_text(note.read_text() + " ")  # another run of this config in the same place
    assert main(["eval", str(run_copy)]) == 0
    assert len(rows(path)) == 4 * 24
    assert path.read_text().startswith(first)


def test_runs_checkpoints_and_models_stand_in_one_table(tiny_run, model, tmp_path, capsys):
    words = [str(tiny_run), f"{tiny_run}@0", f"model={model}"]
    assert main(["eval", *words, f"out={tmp_path}", "--quiet"]) == 0
    assert "answered" not in capsys.readouterr().out
    folders = {path.name for path in tmp_path.iterdir()}
    assert folders == {"run", "run@0", "left", "evaluation.md", "evaluation.json"}
    table = (tmp_path / "evaluation.md").read_text()
    kinds = [line.split("|")[1:3] for line in table.splitlines()[2:9]]
    assert [[cell.strip() for cell in kind] for kind in kinds] == [
        ["left", "hacpo"],
        ["left", "before training"],
        ["left", "before training"],
        ["middle", "hacpo"],
        ["middle", "before training"],
        ["right", "hacpo"],
        ["right", "before training"],
    ]
    subjects = json.loads((tmp_path / "evaluation.json").read_text())["subjects"]
    assert [s["subject"] for s in subjects] == [str(tiny_run), f"{tiny_run}@0", str(model)]
    before = json.loads((tiny_run / "summary.json").read_text())["agents"]["left"]["eval"]["before"]
    assert subjects[1]["agents"]["left"]["parity"]["accuracy"] == before["parity"]
    # The export of an agent answers as the agent itself, whose place in the run is the same.
    exported, own = subjects[2]["agents"]["left"], subjects[0]["agents"]["left"]
    assert exported["parity"]["accuracy"] == own["parity"]["accuracy"]


def test_a_model_on_the_problems_of_a_config(tiny_config, model, tmp_path):
    words = ["eval", "--config", str(tiny_config), f"model={model}", f"out={tmp_path}"]
    benchmark = "evaluation.benchmarks.parity"
    words += [
        f"{benchmark}.samples=3",
        f"{benchmark}.best_of=[1,3]",
        f"{benchmark}.majority_of=[3]",
    ]
    assert main([*words, "task.train.path=gone.jsonl"]) == 0  # nothing is trained
    figures = json.loads((tmp_path / "evaluation.json").read_text())
    scores = figures["agents"]["left"]["parity"]
    assert scores["samples"] == 3
    assert {"best@1", "best@3", "maj@3", "maj@3/se"} <= scores.keys()
    assert "best@2" not in scores
    # What is named for the benchmark itself stands for it in the table.
    assert "parity (best@3)" in (tmp_path / "evaluation.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluation.benchmarks.party.samples=2"], "did you mean 'parity'?"),
        (["evaluation.benchmarks.parity.best_of=[3]"], "evaluation.benchmarks.parity.best_of = 3"),
        (["evaluation.majority_of=[3]"], "evaluation.majority_of = 3"),
        (
            ["evaluation.benchmarks.parity.temperature=0"],
            "set evaluation.benchmarks.parity.temperature above 0",
        ),
    ],
)
def test_settings_of_a_benchmark_that_cannot_be(tiny_run, refused, words, said):
    assert said in refused("eval", str(tiny_run), *words)


def test_results_that_would_lie_on_each_other(tiny_run, refused):
    line = refused("eval", str(tiny_run), f"{tiny_run}@0")
    assert "would write there too" in line
    assert "all agents of a run are measured" in refused("eval", f"{tiny_run}:left")
    assert "is required with model" in refused("eval", str(tiny_run), "model=x")


def test_what_cannot_be_trained_here_can_be_measured_here(tiny_run, tmp_path, monkeypatch):
    """Weights and answers alone have to fit the devices."""

    def too_large(*_, **__):
        raise UserError("placement", "colocated", "needs more memory than there is")

    monkeypatch.setattr(run, "place", too_large)
    assert main(["eval", str(tiny_run), f"out={tmp_path}"]) == 0


def test_why_answers_could_not_be_graded_is_told(tiny_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "no_reward.py").write_text("def refuse(response, answer):\n    raise KeyError(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["eval", str(tiny_run), f"out={tmp_path / 'out'}"]
    assert main([*words, "task.verifier={name: 'no_reward:refuse'}"]) == 0
    err = capsys.readouterr().err
    assert "could not be graded and count as wrong; the first: KeyError: 7" in err
