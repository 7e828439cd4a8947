"""Bad input, as the user meets it: exit code 2 and one clear line before anything expensive."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerFast

from hacpo_jax.config import load_config, save_config
from hacpo_jax.training import trainer

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture
def model(tmp_path) -> Path:
    """A Hugging Face directory: tiny weights with a tokenizer of their own."""
    directory = tmp_path / "model"
    shutil.copytree(FIXTURES / "llama", directory)
    tokenizer(eos_token="<end>").save_pretrained(directory)
    return directory


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    vocab = {token: i for i, token in enumerate(["<pad>", "<bos>", "<end>", *"0123456789?"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@pytest.fixture
def refused_train(refused, tiny_config, tmp_path, monkeypatch):
    """Runs `train` with overrides that must be refused before weights are made or loaded."""

    def expensive(*_):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(trainer, "start_or_resume", expensive)
    run_dir = tmp_path / "run"

    def run(*words: str) -> str:
        line = refused("train", "--config", str(tiny_config), f"run_dir={run_dir}", *words)
        assert not run_dir.exists()
        return line

    return run


def test_a_sound_config_gets_as_far_as_the_weights(refused_train, model):
    with pytest.raises(AssertionError, match="weights were loaded"):
        refused_train(f"agents.0.model={model}", "agents.0.tokenizer=null")


@pytest.mark.parametrize("name", ["/no/such/model", "./no/such/model", "nobody/no-such-model"])
def test_a_missing_model_directory(refused_train, name):
    line = refused_train(f"agents.0.model={name}")
    assert line.startswith(f"error: agents.0.model = '{name}': ")
    assert "no such directory" in line


def test_weights_that_do_not_fit_the_config(refused_train, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 20}))
    line = refused_train(f"agents.0.model={model}", "agents.0.tokenizer=null")
    assert line.startswith(f"error: agents.0.model = '{model}': ")
    assert "model.layers.0.mlp.up_proj.weight is [24, 32], must be [20, 32]" in line


def test_weights_that_lack_a_tensor(refused_train, model):
    tensors = load_file(model / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    line = refused_train(f"agents.0.model={model}", "agents.0.tokenizer=null")
    assert "missing: model.norm.weight" in line


def test_a_directory_without_weights(refused_train, model):
    (model / "model.safetensors").unlink()
    (model / "reference.safetensors").unlink()
    assert "no *.safetensors file" in refused_train(f"agents.0.model={model}")


def test_a_tokenizer_without_an_end_token(refused_train, model, tmp_path):
    tokenizer().save_pretrained(tmp_path / "endless")
    words = (f"agents.0.model={model}", f"agents.0.tokenizer={tmp_path / 'endless'}")
    line = refused_train(*words)
    assert line.startswith(f"error: agents.0.tokenizer = '{tmp_path / 'endless'}': ")
    assert "no end token" in line


def test_a_tokenizer_larger_than_the_model(refused_train, model):
    line = refused_train(f"agents.0.model={model}", "agents.0.tokenizer={kind: bytes}")
    assert "agents.0.tokenizer" in line
    assert "257" in line
    assert "48" in line


@pytest.mark.parametrize("key", ["task.train", "task.eval.parity"])
def test_an_empty_dataset(refused_train, tmp_path, key):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    line = refused_train(f"{key}.path={tmp_path / 'empty.jsonl'}")
    assert line.startswith(f"error: {key}.path = '{tmp_path / 'empty.jsonl'}': ")
    assert "empty dataset" in line


def test_a_missing_dataset(refused_train, tmp_path):
    line = refused_train(f"task.train.path={tmp_path / 'none.jsonl'}")
    assert line.startswith(f"error: task.train.path = '{tmp_path / 'none.jsonl'}': ")


def test_a_prompt_longer_than_the_limit(refused_train):
    """A prompt of 2 tokens ("3?"), limit 1: told, and never cut in silence."""
    line = refused_train("task.max_prompt_tokens=1")
    assert line.startswith("error: task.train (prompt tokens of agent left) = 2: ")
    assert "8 of 8 prompts exceed task.max_prompt_tokens = 1; raise it" in line
    assert "task.overlong=drop" in line


def test_answers_that_leave_no_room_for_a_prompt(refused_train):
    line = refused_train("sampling.max_new_tokens=32")
    assert line.startswith("error: sampling.max_new_tokens = 32: ")


def test_a_group_of_one_answer(refused_train):
    line = refused_train("training.group_size=1")
    assert line.startswith("error: training.group_size = 1: ")
    assert "2 or more" in line


def test_two_agents_with_one_name(refused_train):
    line = refused_train("agents.2.name=left")
    assert line.startswith("error: agents.2.name = 'left': another agent has this name")


@pytest.mark.parametrize("key", ["sampling.temperature", "evaluation.temperature"])
def test_a_negative_temperature(refused_train, key):
    line = refused_train(f"{key}=-0.5")
    assert line.startswith(f"error: {key} = -0.5: ")
    assert {"s": "above 0", "e": "0 or more"}[key[0]] in line


def test_more_prompts_in_a_step_than_problems(refused_train):
    line = refused_train("training.prompts_per_step=16")
    assert line.startswith("error: training.prompts_per_step = 16: there are only 8")


def test_a_template_without_a_place_for_the_problem(refused_train):
    assert "task.template = 'solve'" in refused_train("task.template=solve")


def test_a_system_message_without_a_chat_template(refused_train):
    line = refused_train("task.system=Be brief.")
    assert line.startswith("error: task.system = 'Be brief.': agent left: needs a chat template")


def test_a_verifier_that_cannot_be_imported(refused_train):
    line = refused_train("task.verifier.name=no_such_module:grade")
    assert line.startswith("error: task.verifier.name = 'no_such_module:grade': ")


@pytest.mark.parametrize(
    ("body", "field", "word"),
    [
        ("raise ValueError('boom')", "task.verifier.name", "boom"),
        ("return 7", "algorithm.max_reward", "a reward of 7"),
    ],
)
def test_a_verifier_that_cannot_work_stops_the_first_evaluation(
    refused, tiny_config, tmp_path, monkeypatch, body, field, word
):
    (tmp_path / "unfit.py").write_text(f"def grade(response, answer):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = (f"run_dir={tmp_path / 'run'}", "task.verifier.name=unfit:grade")
    line = refused("--config", str(tiny_config), *words, "agents.0.warm_start=null")
    assert line.startswith(f"error: {field} = ") and word in line
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_model_directory_without_a_tokenizer(refused_train, tmp_path):
    shutil.copytree(FIXTURES / "llama", tmp_path / "bare")
    line = refused_train(f"agents.0.model={tmp_path / 'bare'}", "agents.0.tokenizer=null")
    assert line.startswith("error: agents.0.tokenizer = ") and "has no tokenizer" in line


def test_a_chat_template_that_a_made_tokenizer_cannot_have(refused_train):
    line = refused_train("agents.1.chat=true")
    assert line.startswith("error: agents.1.chat = true: ") and "chat template" in line


def test_an_agent_that_is_not_there(refused_train):
    line = refused_train("agents.7.name=x")
    assert "'agents.7.name=x'" in line and "list does not have" in line


def test_a_run_directory_of_another_config(refused, tiny_config, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    other = load_config(tiny_config, [f"run_dir={run_dir}", "optimizer.learning_rate=0.5"])
    save_config(other, run_dir / "config.yaml")
    before = (run_dir / "config.yaml").read_bytes()
    line = refused("--config", str(tiny_config), f"run_dir={run_dir}")
    assert line.startswith(f"error: run_dir = '{run_dir}': belongs to another config: ")
    assert "agents.0.optimizer.learning_rate is 0.5 there and 0.001 here" in line
    assert (run_dir / "config.yaml").read_bytes() == before


def test_a_run_directory_that_holds_something_else(refused, tiny_config, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    line = refused("--config", str(tiny_config), f"run_dir={tmp_path}")
    assert line.startswith(f"error: run_dir = '{tmp_path}': exists and is no run")


def test_a_run_directory_that_is_a_file(refused, tiny_config, tmp_path):
    (tmp_path / "file").write_text("")
    assert "run_dir" in refused("--config", str(tiny_config), f"run_dir={tmp_path / 'file'}")
