"""Trained agents outside of their run: exported, and asked."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from hacpo_jax.agents import Tokenizer
from hacpo_jax.config import load_config
from hacpo_jax.launch import main
from hacpo_jax.models import load_model
from hacpo_jax.training.run import prepare
from hacpo_jax.training.saved_run import saved_groups, saved_params

NAMES = ["left", "middle", "right"]


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    assert main(["export", str(tiny_run), f"out={out}"]) == 0
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
        (["temperature=-1"], "temperature = '-1': must be a number, 0 or more"),
        (["max_new_tokens=1.5"], "max_new_tokens = '1.5': must be a whole number, 1 or more"),
        (["samples=2"], "samples = 2: greedy answers are all alike"),
        (["samples=2", "samples=3"], "samples = '3': is given twice, first as '2'"),
        (["chat=perhaps"], "chat = 'perhaps': must be true or false"),
        (["promt=x"], "promt = 'x': unknown key; did you mean 'prompt'?"),
        (["agent=left"], "agent = 'left': goes with run; of=RUN:AGENT@STEP"),
        (["run=somewhere"], "model = '/no/such/model': goes without run"),
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


def test_chat_options_go_with_a_model(exported, refused, tiny_run):
    line = r"chat_options = \{'enable_thinking': False\}: goes with model"
    run = ["generate", f"run={tiny_run}", "agent=left", "prompt=1?"]
    assert re.search(line, refused(*run, "chat_options={enable_thinking: false}"))
    model = ["generate", f"model={exported / 'left'}", "prompt=1?"]
    told = refused(*model, "chat_options={enable_thinking: false}")
    assert "chat_options.enable_thinking = false" in told and "chat template" in told
