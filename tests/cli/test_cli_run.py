"""`train`, `eval`, `generate`, `export` and `report` on one tiny run."""

import importlib.util
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from cli_rows import rows
from safetensors.numpy import load_file

from hacpo_jax.agents import Tokenizer
from hacpo_jax.config import Jsonl, load_config
from hacpo_jax.launch import main
from hacpo_jax.models import load_model
from hacpo_jax.training.run import prepare
from hacpo_jax.training.saved_run import saved_groups, saved_params

NAMES = ["left", "middle", "right"]
PEERS = {name: [peer for peer in NAMES if peer != name] for name in NAMES}


@pytest.fixture
def run_copy(tiny_run, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    assert main(["export", str(tiny_run), f"out={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def evaluated(tiny_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("evaluated")
    assert main(["eval", str(tiny_run), f"out={out}"]) == 0
    return out


def agent_params(run_dir: Path, step: int) -> dict:
    """Parameters of each agent at a checkpoint, by name."""
    groups = saved_groups(run_dir, load_config(run_dir / "config.yaml"))
    stacked = saved_params(run_dir, groups, step, 0)
    return {
        agent.name: jax.tree.map(lambda x, m=member: np.asarray(x[m]), params)
        for group, params in zip(groups, stacked, strict=True)
        for member, agent in enumerate(group.agents)
    }


def generate(capsys, *words: str) -> list[tuple[str, str]]:
    """Header and text of each answer."""
    capsys.readouterr()
    assert main(["generate", *words]) == 0
    answers = capsys.readouterr().out.removeprefix("--- ").split("\n--- ")
    return [(header, text.rstrip("\n")) for header, _, text in (a.partition("\n") for a in answers)]


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
    text = (run_copy / "metrics.jsonl").read_text()
    (run_copy / "metrics.jsonl").write_text(text[:-40])  # killed in the middle of a line
    words = ["--config", str(run_copy / "config.yaml"), f"run_dir={run_copy}"]
    assert main(["train", *words]) == 0
    assert "continuing after step 1" in capsys.readouterr().out

    def lasting(row):
        return {k: v for k, v in row.items() if k[:5] != "time/" and k != "tokens_per_second"}

    for now, then in zip(rows(run_copy / "metrics.jsonl"), before, strict=True):
        assert lasting(now) == lasting(then)
    assert rows(run_copy / "evaluations.jsonl") == evaluations
    assert (run_copy / "summary.json").exists()


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
        "max_new_tokens": 3,
        "best_of": [1, 2],
    }
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
    assert figures["evaluation"]["best_of"] == [2]
    # Untrained and without its warm start, an agent of 257 tokens does not find the digits.
    assert figures["agents"]["left"]["parity"]["accuracy"] == 0


@pytest.mark.parametrize("word", ["sampling.temperature=2", "agents.0.name=x", "task.template=x"])
def test_eval_refuses_to_change_what_the_run_was(tiny_run, refused, word):
    assert word.split("=")[0] in refused("eval", str(tiny_run), word)


def test_eval_names_a_step_that_is_not_kept(tiny_run, refused):
    assert "step = 7" in refused("eval", str(tiny_run), "step=7")


@pytest.mark.parametrize("name", NAMES)
def test_an_export_holds_the_weights_of_the_checkpoint(tiny_run, exported, name):
    _, params = load_model(exported / name, name)
    jax.tree.map(np.testing.assert_array_equal, params, agent_params(tiny_run, 2)[name])


@pytest.mark.parametrize("name", NAMES)
def test_an_export_holds_the_tokenizer_and_its_end_tokens(tiny_run, exported, name):
    with (run := prepare(load_config(tiny_run / "config.yaml"))).verifier:
        agent = next(agent for agent in run.agents if agent.name == name)
    read = Tokenizer.load(str(exported / name))
    assert read.fingerprint == agent.tokenizer.fingerprint
    assert read.encode_prompt("17?") == agent.tokenizer.encode_prompt("17?")
    config = json.loads((exported / name / "config.json").read_text())
    generation = json.loads((exported / name / "generation_config.json").read_text())
    assert config["eos_token_id"] == read.eos_id
    assert generation["eos_token_id"] == list(read.stop_ids)
    for held in (config, generation):
        assert (held["pad_token_id"], held["bos_token_id"]) == (read.pad_id, None)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_gives_equal_logits(tiny_run, exported, name):
    """Weights: export, reload with transformers, equal logits (or our own loader without torch)."""
    from hacpo_jax.models import bind

    config, params = load_model(exported / name, name)
    tokens = np.arange(3, 15, dtype=np.int32).reshape(2, 6)
    model = bind(config, agent_params(tiny_run, 2)[name])
    positions, valid = np.broadcast_to(np.arange(6), (2, 6)), np.ones((2, 6), bool)

    def logits(decoder):
        hidden = decoder(tokens, positions, valid, dtype=np.float32)
        return np.asarray(hidden @ decoder.unembedding().T)

    ours = logits(model)
    np.testing.assert_array_equal(logits(bind(config, params)), ours)
    if importlib.util.find_spec("torch"):
        import torch
        from transformers import AutoModelForCausalLM

        theirs = AutoModelForCausalLM.from_pretrained(exported / name).eval()
        with torch.no_grad():
            expected = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-4)


def test_agents_come_back_from_the_run_directory_as_they_were_trained(tiny_run):
    """Shape, tokenizer, stops and grouping: what the checkpoint is read into."""
    config = load_config(tiny_run / "config.yaml")
    with (run := prepare(config)).verifier:
        groups = saved_groups(tiny_run, config)
        assert [group.indices for group in groups] == [group.indices for group in run.groups]
        for saved, made in zip(groups, run.groups, strict=True):
            for agent, fresh in zip(saved.agents, made.agents, strict=True):
                assert agent.model == fresh.model
                assert agent.tokenizer.fingerprint == fresh.tokenizer.fingerprint
                assert agent.tokenizer.stop_ids == fresh.tokenizer.stop_ids


def test_a_run_is_exported_and_asked_without_its_task_or_models(tiny_run, tmp_path, capsys):
    """Its tokenizers were made from training text that is gone, and is not needed."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["task"]["train"]["path"] = config["task"]["eval"]["parity"]["path"] = "/gone.jsonl"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["export", str(run), f"out={tmp_path / 'out'}"]) == 0
    asked = ["prompt=3?", "max_new_tokens=3"]
    of_run = generate(capsys, f"run={run}", "agent=left", *asked)
    assert of_run == generate(capsys, f"model={tmp_path / 'out' / 'left'}", *asked)
    for name in NAMES:
        kept, exported = run / "agents" / name, tmp_path / "out" / name
        files = {path.name for path in exported.iterdir()}
        assert {path.name for path in kept.iterdir()} == files - {"model.safetensors"}
        for file in files - {"model.safetensors", "tokenizer_config.json"}:
            assert (kept / file).read_bytes() == (exported / file).read_bytes()
        # transformers notes there where it has read a tokenizer.
        now, then = (
            json.loads((d / "tokenizer_config.json").read_text()) for d in (exported, kept)
        )
        assert now == then | {key: now[key] for key in ("is_local", "local_files_only")}
        assert {path.stat().st_mode & 0o777 for path in exported.iterdir()} == {
            (run / "config.yaml").stat().st_mode & 0o777
        }


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


def test_an_export_of_one_agent_in_bfloat16(tiny_run, tmp_path):
    words = ["export", str(tiny_run), "agent=right", f"out={tmp_path}", "dtype=bfloat16", "step=1"]
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["right"]
    held = load_file(tmp_path / "right" / "model.safetensors").values()
    assert {tensor.dtype.name for tensor in held} == {"bfloat16"}
    _, params = load_model(tmp_path / "right", "right")
    exact = agent_params(tiny_run, 1)["right"]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2**-8), params, exact)


def test_an_export_is_never_overwritten_nor_half_there(tiny_run, exported, refused, tmp_path):
    assert f"out = '{exported / 'left'}'" in refused("export", str(tiny_run), f"out={exported}")
    line = refused("export", str(tiny_run), f"out={tmp_path}", "agent=nobody")
    assert "agent = 'nobody': the run has left, middle, right" in line
    assert list(tmp_path.iterdir()) == []


def test_an_agent_and_its_export_generate_the_same(tiny_run, exported, capsys):
    settings = ["prompt=3?", "samples=3", "temperature=1", "max_new_tokens=5", "seed=5"]
    of_run = generate(capsys, f"run={tiny_run}", "agent=right", *settings)
    of_export = generate(capsys, f"model={exported / 'right'}", *settings)
    assert of_run == of_export
    assert len(set(of_run)) == 3
    # An untrained agent of 257 tokens does not end within 5.
    headers = [f"answer {i} of 3: 5 tokens, finish reason length" for i in (1, 2, 3)]
    assert [header for header, _ in of_run] == headers
    again = generate(capsys, f"model={exported / 'right'}", *settings[:-1], "seed=6")
    assert again != of_export


def test_generate_tells_why_an_answer_ended(tiny_run, capsys):
    ((header, text),) = generate(capsys, f"run={tiny_run}", "agent=left", "prompt=3?")
    # Warm-started on answers of one digit and the end token.
    assert header == "answer 1 of 1: 2 tokens, finish reason stop"
    assert text in ("0", "1")


def test_several_prompts_are_answered_each_as_if_alone(tiny_run, capsys):
    """Greedy, of different lengths; the answers come in the order of the prompts."""
    agent = [f"run={tiny_run}", "agent=left", "max_new_tokens=4"]
    prompts = ["prompt=3?", "prompt=12 and 7?", "prompt=a=b"]
    together = generate(capsys, *agent, *prompts)
    alone = [generate(capsys, *agent, prompt)[0] for prompt in prompts]
    assert [text for _, text in together] == [text for _, text in alone]
    assert [header for header, _ in together] == [
        f"prompt {i} of 3, {header}" for i, (header, _) in enumerate(alone, start=1)
    ]
    sampled = generate(capsys, *agent, *prompts[:2], "samples=2", "temperature=1")
    starts = [header.split(":")[0] for header, _ in sampled]
    assert starts == [f"prompt {p} of 2, answer {i} of 2" for p in (1, 2) for i in (1, 2)]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["temperature=hot"], "temperature = 'hot': must be a number"),
        (["temperature=-1"], "temperature = '-1': must be greater than or equal to 0"),
        (["max_new_tokens=1.5"], "max_new_tokens = '1.5': must be a whole number"),
        (["samples=2"], "samples = 2: greedy answers are all alike"),
        (["samples=2", "samples=3"], "samples = '3': is given twice, first as '2'"),
        (["chat=perhaps"], "chat = 'perhaps': must be true or false"),
        (["promt=x"], "promt = 'x': unknown key; did you mean 'prompt'?"),
        (["agent=left"], "agent = 'left': goes with run, not with model"),
        (["run=somewhere"], "model = '/no/such/model': name one of model="),
        ([], "model = '/no/such/model': no such directory"),
    ],
)
def test_generate_refuses_bad_input_in_one_line(refused, words, line):
    told = refused("generate", "model=/no/such/model", "prompt=a", "prompt=b", *words)
    assert told.startswith(f"error: {line}")


def test_generate_refuses_prompts_that_do_not_fit(tiny_run, refused):
    words = ("generate", f"run={tiny_run}", "agent=left")
    assert "prompt = ''" in refused(*words, "prompt=")
    assert "prompt = ''" in refused(*words, "prompt=3?", "prompt=", "prompt=4?")
    assert "has 40 tokens" in refused(*words, f"prompt={'7' * 40}")
    assert "has 2 tokens" in refused(*words, "prompt=3?", "max_new_tokens=31")
    assert "agent = 'nobody'" in refused(*words[:2], "agent=nobody", "prompt=3?")
    assert "system" in refused(*words, "prompt=3?", "system=x")


def test_report_prints_its_pictures(tiny_run, tmp_path, capsys):
    assert main(["report", str(tiny_run), f"out={tmp_path}"]) == 0
    pictures = [Path(line) for line in capsys.readouterr().out.split()]
    assert pictures[0] == tmp_path / "overview.png"
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
