"""`train`, `eval`, `generate`, `export` and `report` on one tiny run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_rows import rows

from hacpo_jax.config import Jsonl, load_config
from hacpo_jax.launch import main
from hacpo_jax.training.run import prepare
from hacpo_jax.training.saved_run import saved_groups

NAMES = ["left", "middle", "right"]
PEERS = {name: [peer for peer in NAMES if peer != name] for name in NAMES}


@pytest.fixture
def run_copy(tiny_run, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


@pytest.fixture(scope="module")
def evaluated(tiny_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("evaluated")
    assert main(["eval", str(tiny_run), f"out={out}"]) == 0
    return out


def test_training_leaves_a_whole_run_directory(tiny_run, tiny_config):
    saved = load_config(tiny_run / "config.yaml")
    assert saved == load_config(tiny_config)
    metrics = rows(tiny_run / "metrics.jsonl")
    assert [(row["step"], row["agent"]) for row in metrics] == [
        (step, name) for step in (1, 2) for name in NAMES
    ]
    for row in metrics:
        wanted = {"reward/mean", "reward/std", "capability", "ratio/own", "clip_fraction/own", "kl"}
        wanted |= {"entropy", "grad_norm", "loss", "response_length/mean", "truncated"}
        wanted |= {"time/rollout", "time/verify", "time/update", "tokens_per_second"}
        for peer in PEERS[row["agent"]]:
            wanted |= {f"omega/{peer}", f"ratio/{peer}", f"clip_fraction/{peer}"}
        assert wanted <= row.keys()
    rollouts = [rows(path) for path in sorted((tiny_run / "rollouts").glob("*.jsonl"))]
    assert [len(step) for step in rollouts] == [3 * 4 * 2] * 2
    assert {path.name for path in (tiny_run / "checkpoints").iterdir()} == {"0", "1", "2"}
    assert (tiny_run / "report" / "overview.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_has_accuracies_before_and_after(tiny_run):
    summary = json.loads((tiny_run / "summary.json").read_text())
    found = {(r["step"], r["agent"]): r["accuracy"] for r in rows(tiny_run / "evaluations.jsonl")}
    assert summary["algorithm"] == "hacpo"
    assert (summary["steps"], summary["rollouts"]) == (2, 2 * 4 * 2 * 3)
    for name in NAMES:
        assert summary["agents"][name]["eval"] == {
            "before": {"parity": found[0, name]},
            "after": {"parity": found[2, name]},
        }
    # The warm start has taught the first agent to answer with a digit; the others know nothing.
    assert found[0, "left"] > 0


def test_a_finished_run_is_shown_again_and_not_touched(run_copy, capsys):
    before = (run_copy / "metrics.jsonl").read_bytes(), (run_copy / "summary.json").read_bytes()
    words = ["--config", str(run_copy / "config.yaml"), f"run_dir={run_copy}"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "is complete" in out
    assert all(name in out for name in (*NAMES, "before", "after"))
    after = (run_copy / "metrics.jsonl").read_bytes(), (run_copy / "summary.json").read_bytes()
    assert after == before


def test_a_killed_run_goes_on_and_ends_the_same(run_copy, capsys):
    """Checkpoints: resumed, the next draw equals the uninterrupted run's."""
    before, evaluations = rows(run_copy / "metrics.jsonl"), rows(run_copy / "evaluations.jsonl")
    shutil.rmtree(run_copy / "checkpoints" / "2")
    (run_copy / "summary.json").unlink()
    text = "".join(json.dumps(row | {"time/run": 1000.0 * row["step"]}) + "\n" for row in before)
    (run_copy / "metrics.jsonl").write_text(text[:-40])  # killed in the middle of a line
    words = ["--config", str(run_copy / "config.yaml"), f"run_dir={run_copy}"]
    assert main(["train", *words]) == 0
    assert "continuing after step 1" in capsys.readouterr().out

    def lasting(row):
        clocks = ("time/", "started/", "tokens_per_second")
        return {k: v for k, v in row.items() if not k.startswith(clocks)}

    for now, then in zip(rows(run_copy / "metrics.jsonl"), before, strict=True):
        assert lasting(now) == lasting(then)
    assert rows(run_copy / "evaluations.jsonl") == evaluations
    # The killed process had taken 2000 s when it wrote its last whole row, of step 2.
    times = [row["time/run"] for row in rows(run_copy / "metrics.jsonl")]
    assert times[:3] == [1000.0] * 3 and times[3] == times[4] == times[5] > 2000.0
    assert json.loads((run_copy / "summary.json").read_text())["seconds"] >= 2000.0


def test_fewer_steps_than_are_done_are_refused(run_copy, refused):
    words = ["--config", str(run_copy / "config.yaml"), f"run_dir={run_copy}", "training.steps=1"]
    assert refused(*words).startswith("error: training.steps = 1: 2 steps are done there already")


def test_a_finished_run_of_another_config_is_refused(run_copy, refused):
    line = refused("--config", str(run_copy / "config.yaml"), f"run_dir={run_copy}", "seed=1")
    assert "belongs to another config: seed is 0 there and 1 here" in line


def test_eval_measures_what_training_measured_at_its_end(tiny_run, evaluated):
    figures = json.loads((evaluated / "evaluation.json").read_text())
    assert (figures["run"], figures["step"], figures["seed"]) == (str(tiny_run), 2, 0)
    assert figures["evaluation"] == {
        "samples": 2,
        "temperature": 1.0,
        "top_k": None,
        "top_p": 1.0,
        "max_new_tokens": None,
        "best_of": [1, 2],
        "majority_of": [],
    }
    draws = figures["draws"]["parity"]
    assert (draws["max_new_tokens"], draws["best_of"], draws["samples"]) == (3, [1, 2], 2)
    assert set(figures["algorithms"].values()) == {"hacpo"}
    for row in rows(tiny_run / "evaluations.jsonl"):
        if row["step"] == 2:
            scores = figures["agents"][row["agent"]]["parity"]
            assert row == {"step": 2, "agent": row["agent"], "benchmark": "parity", **scores}


def test_eval_keeps_every_answer_and_its_figures_follow_from_them(evaluated):
    figures = json.loads((evaluated / "evaluation.json").read_text())
    answers = rows(evaluated / "evaluation_answers.jsonl")
    assert len(answers) == 3 * 4 * 2
    for name in NAMES:
        own = [row for row in answers if row["agent"] == name]
        right = np.array([row["response"].strip() == row["answer"] for row in own]).reshape(4, 2)
        assert [row["reward"] for row in own] == right.reshape(-1).tolist()
        scores = figures["agents"][name]["parity"]
        assert scores["accuracy"] == pytest.approx(right.mean())
        assert scores["best@1"] == pytest.approx(right.mean())
        assert scores["best@2"] == pytest.approx(right.any(axis=1).mean())
        cut = [row["finish_reason"] == "length" for row in own]
        assert scores["truncated"] == pytest.approx(np.mean(cut))
        assert all(row["length"] == 3 for row, is_cut in zip(own, cut, strict=True) if is_cut)


def test_eval_of_an_earlier_step_writes_into_the_run(run_copy, capsys):
    before = json.loads((run_copy / "summary.json").read_text())["agents"]
    assert main(["eval", str(run_copy), "step=0"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*NAMES, "parity (4)", "avg@2", "best@2"))
    figures = json.loads((run_copy / "evaluation.json").read_text())
    assert figures["step"] == 0
    for name in NAMES:
        assert (
            figures["agents"][name]["parity"]["accuracy"]
            == (before[name]["eval"]["before"]["parity"])
        )


def test_eval_of_a_config_measures_its_models_before_any_training(tiny_config, tmp_path):
    words = ["eval", "--config", str(tiny_config), f"out={tmp_path}", "evaluation.best_of=[]"]
    assert main(words) == 0
    figures = json.loads((tmp_path / "evaluation.json").read_text())
    assert figures["step"] is None
    draws = figures["draws"]["parity"]
    assert (draws["best_of"], draws["majority_of"]) == ([2], [2])
    assert set(figures["algorithms"].values()) == {None}
    # Untrained and without its warm start, an agent of 257 tokens does not find the digits.
    assert figures["agents"]["left"]["parity"]["accuracy"] == 0


@pytest.mark.parametrize("word", ["sampling.temperature=2", "agents.0.name=x", "task.template=x"])
def test_eval_refuses_to_change_what_the_run_was(tiny_run, refused, word):
    assert word.split("=")[0] in refused("eval", str(tiny_run), word)


def test_eval_names_a_step_that_is_not_kept(tiny_run, refused):
    assert "step = 7" in refused("eval", str(tiny_run), "step=7")


def test_a_resumed_run_goes_on_with_the_tokenizers_that_it_began_with(run_copy, tiny_config):
    """The training text has changed meanwhile: tokenizers made from it now would be others."""
    config = load_config(tiny_config)
    assert isinstance(config.task.train, Jsonl)
    changed = run_copy.parent / "train.jsonl"
    rows_now = [
        row | {"problem": row["problem"] + " zebra"} for row in rows(Path(config.task.train.path))
    ]
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows_now))
    train = config.task.train.model_copy(update={"path": str(changed)})
    config = config.model_copy(update={"task": config.task.model_copy(update={"train": train})})
    with (
        (anew := prepare(config)).verifier,
        (resumed := prepare(config, run_copy / "agents")).verifier,
    ):
        kept = [
            agent.tokenizer for group in saved_groups(run_copy, config) for agent in group.agents
        ]
        assert {t.fingerprint for t in kept} == {a.tokenizer.fingerprint for a in resumed.agents}
        assert {t.fingerprint for t in kept}.isdisjoint(
            {agent.tokenizer.fingerprint for agent in anew.agents}
        )


def test_a_run_that_lacks_an_agent_is_told_so(run_copy, refused):
    shutil.rmtree(run_copy / "agents" / "middle")
    line = refused("export", str(run_copy), f"out={run_copy.parent / 'out'}")
    assert "lacks agents/middle, which a run writes at its start" in line


def test_report_prints_its_pictures(tiny_run, tmp_path, capsys):
    assert main(["report", str(tiny_run), f"out={tmp_path}"]) == 0
    pictures = [Path(line) for line in capsys.readouterr().out.split()]
    assert pictures[:2] == [tmp_path / "report.html", tmp_path / "overview.png"]
    assert sorted(pictures) == sorted(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_named(run_copy, refused):
    (run_copy / "checkpoints" / "2" / "default" / "_METADATA").write_text("{}")
    line = refused("eval", str(run_copy), "step=2")
    assert line.startswith(f"error: checkpoint = '{run_copy / 'checkpoints' / '2'}'")


def test_a_checkpoint_of_other_agents_is_refused(run_copy, refused):
    """Checkpoints: restored into agents of another shape."""
    for path in (run_copy / "agents").glob("*/config.json"):
        config = json.loads(path.read_text()) | {"intermediate_size": 32}
        path.write_text(json.dumps(config))
    line = refused("export", str(run_copy), f"out={run_copy.parent / 'out'}")
    assert line.startswith(f"error: checkpoint = '{run_copy / 'checkpoints' / '2'}'")
    assert "0.layers.mlp.down is (2, 1, 24, 16) there and (2, 1, 32, 16) here" in line
    assert not (run_copy.parent / "out").exists()
