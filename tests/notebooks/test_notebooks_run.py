"""The notebooks run from the first cell to the last, with fewer steps, and say what is true."""

import json
import math
import re

import numpy as np
import pytest
from notebook_runs import (
    NOTEBOOKS,
    execute,
    outputs,
    pictures,
    printed,
    read,
    replaced,
    write_models,
)
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer

from hacpo_jax.config import load_config
from hacpo_jax.launch import main
from hacpo_jax.parallel.plan import prepare_plan
from hacpo_jax.parallel.topology import topology_devices
from hacpo_jax.training.run import prepare
from hacpo_jax.training.run_dir import read_rows

PICTURES = {"train_two_models": 3, "loss_in_your_own_code": 3, "your_reward_and_data": 1}
# Their config.json on huggingface.co, as far as it decides the shape.
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 8192,
        "rope_theta": 130000,
        "rope_scaling": None,
        "rms_norm_eps": 1e-05,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "tie_word_embeddings": True,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def models(folder):
    return write_models(folder / "models")


@pytest.fixture(scope="module")
def two_models(folder):
    # Sums of digits, of which a short warm start gets some right.
    fewer = [("size: 6000", "size: 60, high: 9")]
    fewer += [("held_out, size: 256", "held_out, size: 4, high: 9")]
    fewer += [("steps: 800", "steps: 60"), ("check_problems: 256", "check_problems: 60")]
    fewer += [("prompts_per_step: 64", "prompts_per_step: 8")]
    fewer += [("mini_batch_prompts: 64", "mini_batch_prompts: 8")]
    after = {"parameters": "STEPS = 2", "small": replaced("SMALL", fewer)}
    return execute("train_two_models", folder / "two_models", after)


@pytest.fixture(scope="module")
def own_loss(folder, models):
    paths = [str(path) for path in models]
    after = {"parameters": f"REAL_MODELS, MODELS = True, {paths}", "end": _OWN_LOSS_VALUES}
    return execute("loss_in_your_own_code", folder / "own_loss", after)


_OWN_LOSS_VALUES = """
import json

values = {
    "worth": worth[:, :, 0],
    "ratios": ratios,
    "own": pulls(ratios, 0, 0, 1.0),
    "peer": {str(update): pulls(ratios, 1, update, 1.0) for update in (0, 1, 2)},
    "together": [agent["reward"] for agent in together],
    "own_ratio": [together[k][f"ratio/{k}"] for k in range(2)],
    "real": [first, second],
}
with open("values.json", "w") as file:
    json.dump(jax.tree.map(lambda x: x.tolist(), values), file)
"""


@pytest.fixture(scope="module")
def own_reward(folder):
    fewer = [("steps: 400", "steps: 20"), ("prompts_per_step: 32", "prompts_per_step: 8")]
    fewer += [("mini_batch_prompts: 32", "mini_batch_prompts: 8")]
    fewer = replaced("SMALL", fewer) + "\n" + replaced("TASK", [("in_order}\n  ver", _FEW_TESTS)])
    after = {"parameters": "STEPS = 2", "config": fewer}
    return execute("your_reward_and_data", folder / "own_reward", after)


_FEW_TESTS = "in_order, limit: 16}\n  ver"


@pytest.mark.parametrize("name", PICTURES)
def test_committed_notebooks_have_been_run_and_hold_nothing_of_the_machine(name):
    notebook = read(name)  # which validates it
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert {out.output_type for out in outputs(notebook)} <= {
        "stream", "display_data", "execute_result"
    }  # fmt: skip
    assert pictures(notebook) == PICTURES[name]
    assert not re.search(r"/(tmp|home|root|usr|work|content|opt)\b|\x1b", printed(notebook))
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 300_000
    (parameters,) = (c for c in code if "parameters" in c.metadata.get("tags", ()))
    assert parameters.source.startswith("REAL_MODELS = False")


def test_two_models_are_trained_together(two_models, folder):
    run = folder / "two_models" / "runs" / "small"
    rows = read_rows(run / "metrics.jsonl")
    names = ["llama-bpe", "qwen3-characters"]
    assert [(row["step"], row["agent"]) for row in rows] == [(s, n) for s in (1, 2) for n in names]
    for row in rows:
        peer = names[1 - names.index(row["agent"])]
        assert all(math.isfinite(row[key]) for key in ("loss", "reward/mean", f"omega/{peer}"))
        assert row["grad_norm"] > 0
        assert row[f"ratio/{peer}"] > 0
        assert row[f"samples/{peer}"] == row["samples/own"] == 8 * 8
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["rollouts"]) == (2, 2 * 2 * 8 * 8)


def test_the_exported_model_is_the_trained_one(two_models, folder):
    run = folder / "two_models" / "runs" / "small"
    exported = run / "exported" / "llama-bpe"
    assert AutoConfig.from_pretrained(exported).architectures == ["LlamaForCausalLM"]
    assert AutoTokenizer.from_pretrained(exported).encode("17+25 is ")
    start = folder / "start"
    assert main(["export", str(run), "step=0", "agent=llama-bpe", f"out={start}"]) == 0
    before, after = (
        load_file(path / "model.safetensors") for path in (start / "llama-bpe", exported)
    )
    assert before.keys() == after.keys()
    moved = max(np.abs(after[name] - before[name]).max() for name in before)
    assert 0 < moved < 0.1


def test_what_the_first_notebook_shows(two_models, folder):
    text = printed(two_models)
    run = folder / "two_models" / "runs" / "small"
    measured = json.loads((run / "evaluation.json").read_text())
    assert measured["step"] == 2
    for row in read_rows(run / "evaluations.jsonl"):
        if row["step"] == 2:
            assert row["accuracy"] == measured["agents"][row["agent"]]["addition"]["accuracy"]
    answers = read_rows(run / "answers.jsonl")
    assert len(answers) == 4 * 2 * 2  # problems, agents, before and after
    for row in answers:
        assert f"{row['prompt']!r} {row['agent']}" in text
    assert pictures(two_models) == PICTURES["train_two_models"]
    assert "\x1b" not in text
    assert "text/html" not in {kind for out in outputs(two_models) for kind in out.get("data", {})}


def test_the_loss_pulls_as_the_second_notebook_says(own_loss, folder):
    values = json.loads((folder / "own_loss" / "values.json").read_text())
    # Rewards 1 1 1 0 and 1 0 0 0: mean 1/2, deviation sqrt(8/4/7), skills 3/4 and 1/4. Baselines:
    # (3 + 3 * 1) / 8 for the strong one, (3 / 3 + 1) / 8 for the weak one.
    right = np.array([[[1, 1, 1, 0], [1, 0, 0, 0]]])
    worth = (right - np.array([3 / 4, 1 / 4])[:, None, None]) / math.sqrt(2 / 7)
    worth *= np.array([[1, 1 / 3], [3, 1]])[:, :, None]
    np.testing.assert_allclose(values["worth"], worth, rtol=1e-4)

    ratios = np.array(values["ratios"])
    far = np.abs(ratios - 1) > 1e-3  # from the bounds of own answers
    own = np.where(ratios < 1, ratios, 0)
    np.testing.assert_allclose(np.array(values["own"])[far], own[far], rtol=1e-4)
    for update, low in (("0", 0.8), ("1", 0.85), ("2", 0.9)):
        clear = np.minimum(np.abs(ratios - low), np.abs(ratios - 1)) > 1e-3
        peer = np.where((ratios > low) & (ratios < 1), ratios**2, 0)
        np.testing.assert_allclose(np.array(values["peer"][update])[clear], peer[clear], rtol=1e-4)


def test_the_loop_of_the_second_notebook_teaches_both(own_loss, folder):
    """Chance moves the mean of 3 x 128 answers by 5 * 0.5 / sqrt(384), 0.13, at most."""
    values = json.loads((folder / "own_loss" / "values.json").read_text())
    for rewards, own_ratios in zip(values["together"], values["own_ratio"], strict=True):
        assert len(rewards) == 80
        assert rewards[0] == pytest.approx(0.1, abs=0.13)
        assert min(rewards[-5:]) > rewards[0] + 2 * 0.13
        np.testing.assert_allclose(own_ratios, 1, atol=1e-5)
    assert pictures(own_loss) == PICTURES["loss_in_your_own_code"] + 1  # that of real models


def test_real_models_of_the_second_notebook_are_asked_right(own_loss, folder, models):
    values = json.loads((folder / "own_loss" / "values.json").read_text())
    answers = ["42", "The answer is 42.", "17 + 25 = 17 + 20 + 5 = 42"]
    for path, found in zip(models, values["real"], strict=True):
        tokenizer = AutoTokenizer.from_pretrained(path)
        weights = load_file(path / "model.safetensors")
        table = weights["model.embed_tokens.weight"].astype(np.float64)
        eps = json.loads((path / "config.json").read_text())["rms_norm_eps"]
        hidden = table / np.sqrt((table**2).mean(1, keepdims=True) + eps)
        logits = hidden @ table.T
        log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        prompt = tokenizer.encode("What is 17 + 25?\n")
        for answer, mean in zip(answers, found, strict=True):
            ids = tokenizer.encode(answer, add_special_tokens=False)
            before = [prompt[-1], *ids[:-1]]
            assert mean == pytest.approx(log_probs[before, ids].mean(), rel=1e-4)


def test_own_data_is_read_and_bad_rows_are_named(own_reward):
    text = printed(own_reward)
    # 8 * 7 * 6 * 5 problems, 200 of them for the test; lines 300 and 400 of all, counted from 0.
    assert "1478 of 1480 rows are good" in text
    assert "line 101: not JSON" in text
    assert re.search(r"line 201: .*in_order", text)
    (refusal,) = re.findall(r"^error: task\.train.*$", text, re.M)
    assert "2 of 1480 rows are bad" in refusal
    assert "exit code 2" in text


def test_a_reward_that_fails_makes_answers_invalid(own_reward):
    blocks = re.split(r"^(in_place|careless|endless)\n", printed(own_reward), flags=re.M)
    found = {
        name: re.findall(r"^  '.*?' +([\d.]+|invalid: .*)$", block, re.M)
        for name, block in zip(blocks[1::2], blocks[2::2], strict=True)
    }
    assert found["in_place"] == ["1.00", "1.00", "0.50", "0.00", "0.00", "0.00"]
    assert found["careless"] == [
        "1.00", "0.00", "0.50", "0.00", "invalid: IndexError: string index out of range", "0.00"
    ]  # fmt: skip
    assert found["endless"] == ["1.00", *["invalid: took longer than 1.0 s"] * 5]


def test_the_own_reward_is_what_agents_learn_from(own_reward, folder):
    run = folder / "own_reward" / "runs" / "small"
    rows = read_rows(run / "metrics.jsonl")
    assert {(row["step"], row["agent"]) for row in rows} == {
        (step, name) for step in (1, 2) for name in ("llama-bytes", "qwen3-bpe")
    }
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert max(row["grad_norm"] for row in rows) > 0
    paths = sorted((run / "rollouts").glob("*.jsonl"))
    for step, path in enumerate(paths, start=1):
        answers = read_rows(path)
        assert len(answers) == 2 * 8 * 8
        for row in answers:
            letters, wanted = row["response"].strip(), "".join(sorted(row["prompt"][:4]))
            right = sum(letters[i] == wanted[i] for i in range(4)) if len(letters) == 4 else 0
            assert row["reward"] == right / 4
        for name in ("llama-bytes", "qwen3-bpe"):
            own = [row["reward"] for row in answers if row["source"] == name]
            (logged,) = (r for r in rows if (r["step"], r["agent"]) == (step, name))
            assert logged["reward/mean"] == pytest.approx(np.mean(own), abs=1e-6)
    assert len(paths) == 2
    assert pictures(own_reward) == PICTURES["your_reward_and_data"]
    assert "could not be graded: 0" in printed(own_reward)


def real_config(name, folder, models):
    """That of a notebook, with other models in place of those of the hub."""
    (cell,) = (c for c in read(name).cells if "config" in c.metadata.get("tags", ()))
    texts: dict[str, str] = {}
    exec(cell.source, texts)
    text = texts.get("TASK", "") + texts["REAL"]
    for hub_id, path in zip(PUBLISHED, models, strict=True):
        assert text.count(hub_id) == 1
        text = text.replace(hub_id, str(path))
    (folder / "real.yaml").write_text(text)
    return load_config(folder / "real.yaml", ["run_dir=never made"])


@pytest.mark.parametrize("name", ["train_two_models", "your_reward_and_data"])
def test_real_models_are_prepared_from_their_folders(name, own_reward, folder, models, monkeypatch):
    """Everything before the weights: tokenizers, problems in each one's tokens, the verifier."""
    monkeypatch.chdir(folder / "own_reward")
    with (run := prepare(real_config(name, folder, models))).verifier:
        assert [agent.model.model_type for agent in run.agents] == ["qwen2", "llama"]
        assert all(agent.model.lora is not None for agent in run.agents)
        (problems,) = run.benchmarks.values()
        ((tokens, *_), (others, *_)), wanted = problems.tokens, problems.examples[0].answer
        assert run.agents[0].tokenizer.decode(tokens) == problems.texts[0]
        assert run.agents[1].tokenizer.decode(others) == problems.texts[0]
        answer = f"\\boxed{{{wanted}}}" if name == "train_two_models" else wanted
        good, bad = run.verifier.score([(answer, wanted), ("I do not know", wanted)])
    assert (good.reward, bad.reward) == (1, 0)


@pytest.mark.parametrize("name", ["train_two_models", "your_reward_and_data"])
def test_configs_of_real_models_fit_what_is_published(name, tmp_path):
    """From the notebook's text to the programs that a run would compile, without weights."""
    directories = [tmp_path / hub_id.rpartition("/")[2] for hub_id in PUBLISHED]
    for directory, values in zip(directories, PUBLISHED.values(), strict=True):
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(values))
    config = real_config(name, tmp_path, directories)
    programs = prepare_plan(config, topology_devices("cpu:1"))
    shapes = [group.model for group in programs.groups]
    assert [shape.vocab_size for shape in shapes] == [151936, 49152]
    assert all(shape.lora is not None and shape.lora.rank == 16 for shape in shapes)
    assert config.training.prompts_per_step % config.training.mini_batch_prompts == 0
    for shape in shapes:
        assert config.longest_sequence <= shape.max_position_embeddings
