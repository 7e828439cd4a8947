"""From sections of the config to agents, groups and first parameters."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizer_zoo
from tiny_runs import AGENTS, LLAMA
from tokenizer_zoo import EXACT, STORY, THINKING, byte_level_hf, letters_hf
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hacpo_jax.agents import (
    AgentGroup,
    Tokenizer,
    build_agents,
    export_agent,
    group_agents,
    initial_params,
    save_agent,
    saved_agents,
)
from hacpo_jax.config import AgentConfig
from hacpo_jax.errors import UserError
from hacpo_jax.models import load_model

# See tests/exchange/test_exchange_real_tokenizers.py.
ASSETS = os.environ.get("HACPO_ASSETS")
REAL = ("tok-llama3", "tok-qwen", "tok-mistral", "tok-tekken", "smollm2-135m")
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture
def directory(tmp_path) -> Path:
    """A tiny checkpoint with a tokenizer of fewer ids than the model has."""
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "qwen3" / name, path / name)
    letters_hf().save_pretrained(path)
    return path


def built(*sections):
    configs = [
        AgentConfig.model_validate({"name": f"agent{i}"} | section)
        for i, section in enumerate(sections)
    ]
    return build_agents(configs, [STORY])


def test_an_agent_from_a_directory(directory):
    _, agent = built(AGENTS["one"], {"name": "pupil", "model": str(directory)})
    assert (agent.index, agent.name, agent.directory) == (1, "pupil", directory)
    assert agent.model.vocab_size == 48
    assert agent.tokenizer.size == 1 + len(set(STORY))
    assert agent.tokenizer.decode(agent.tokenizer.encode_texts(["the cat"])[0]) == "the cat"


def test_stop_ids_are_gathered_from_all_files(directory):
    """A base model whose files disagree on EOS: an explicit set of stop ids."""
    (agent,) = built({"model": str(directory)})
    assert agent.tokenizer.eos_id == 0
    assert agent.tokenizer.stop_ids == (0, 2)  # the tokenizer's, and that of config.json
    path = directory / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [7, 5, 2]}))
    (agent,) = built({"model": str(directory)})
    assert agent.tokenizer.stop_ids == (0, 2, 5, 7)
    path.write_text(json.dumps({"eos_token_id": 9}))
    (agent,) = built({"model": str(directory)})
    assert agent.tokenizer.stop_ids == (0, 2, 9)
    path.write_text("{}")
    (agent,) = built({"model": str(directory)})
    assert agent.tokenizer.stop_ids == (0, 2)
    path.write_text(json.dumps({"eos_token_id": 47}))  # the model has it, the tokenizer not
    with pytest.raises(UserError, match=r"agents\.0\.tokenizer\.stop_ids = 47: must be in \[0, "):
        built({"model": str(directory)})


@pytest.mark.parametrize(
    ("text", "says"), [("{", "not readable as JSON"), ("[1]", "must hold a JSON object")]
)
def test_a_broken_generation_config_is_named(directory, text, says):
    (directory / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=rf"agents\.0\.model = .*config.json': {says}"):
        built({"model": str(directory)})


def test_agents_that_differ_by_a_switch_of_the_template_are_apart(directory, tmp_path):
    """One thinks and the other does not: same model, same template, two kinds of prompts."""
    byte_level_hf(template=THINKING).save_pretrained(tmp_path / "chat")
    model = LLAMA | {"max_position_embeddings": 64}
    thinks = {"model": model, "tokenizer": str(tmp_path / "chat")}
    agents = built(thinks, thinks | {"chat_options": {"enable_thinking": False}}, thinks)
    prompts = [agent.tokenizer.decode(agent.tokenizer.encode_prompt("1")) for agent in agents]
    assert prompts[0] == prompts[2] != prompts[1] == prompts[0] + "<think>\n\n</think>\n\n"
    assert [group.indices for group in group_agents(agents)] == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (
            {"chat_options": {"enable_thinkin": False}},
            r"chat_options\.enable_thinkin = .*did",
        ),
        ({"chat_options": {"enable_thinking": 1}, "chat": False}, r"chat_options\.enable_thinking"),
        ({"chat_options": {"x": 1}, "tokenizer": {"kind": "bytes"}}, r"chat_options = .*made from"),
        ({"chat": True, "tokenizer": "plain"}, r"chat = true: .* has no chat template"),
    ],
)
def test_chat_settings_that_cannot_work_are_named_as_in_the_config(tmp_path, section, line):
    byte_level_hf(template=THINKING).save_pretrained(tmp_path / "chat")
    byte_level_hf().save_pretrained(tmp_path / "plain")
    section = {"model": LLAMA, "tokenizer": "chat"} | section
    if isinstance(section["tokenizer"], str):
        section["tokenizer"] = str(tmp_path / section["tokenizer"])
    with pytest.raises(UserError, match=rf"^agents\.1\.{line}"):
        built(AGENTS["one"], section)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(UserError, match=r"agents\.1\.model = .*nowhere': no such directory"):
        built(AGENTS["one"], {"model": str(tmp_path / "nowhere")})


def test_a_directory_without_weights_is_named(directory):
    (directory / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"agents\.0\.model = .*no \*\.safetensors"):
        built({"model": str(directory)})


def test_a_tokenizer_that_knows_more_ids_than_the_model_is_refused(directory):
    with pytest.raises(UserError, match=r"agents\.0\.tokenizer = .*knows 257 ids and the model 48"):
        built({"model": str(directory), "tokenizer": {"kind": "bytes"}})


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
def test_a_new_model_fits_its_tokenizer(family, kind):
    model = LLAMA | {"family": family, "rope_theta": 500.0}
    (agent,) = built({"model": model, "tokenizer": {"kind": kind, "vocab_size": 290}})
    assert agent.directory is None
    assert agent.model.vocab_size == agent.tokenizer.size
    assert (agent.model.qkv_bias, agent.model.qk_norm) == (family == "qwen2", family == "qwen3")
    assert (agent.model.model_type, agent.model.rope_theta) == (family, 500.0)
    assert agent.model.max_position_embeddings == 32
    if kind == "bpe":
        assert agent.tokenizer.size == 290


def test_agents_of_one_shape_tokenizer_and_optimizer_make_a_group(directory):
    copy = directory.parent / "copy"
    shutil.copytree(directory, copy)
    one, two = AGENTS["one"], AGENTS["two"]
    agents = built(
        two,
        one | {"name": "a"},
        {"model": str(directory)},
        one | {"name": "b", "warm_start": {"steps": 3}},
        one | {"name": "fast", "optimizer": {"learning_rate": 0.5}},
        one | {"name": "wide", "model": LLAMA | {"intermediate_size": 40}},
        one | {"name": "bytes", "tokenizer": {"kind": "bytes"}},
        {"model": str(copy)},
    )
    groups = group_agents(agents)
    assert [group.indices for group in groups] == [[0], [1, 3], [2, 7], [4], [5], [6]]
    assert groups[1].name == "a+b"
    for group in groups:
        for agent in group.agents:
            assert agent.model == group.model
            assert agent.tokenizer.fingerprint == group.tokenizer.fingerprint
            assert agent.optimizer == group.optimizer


def tokenizer_directory(name: str, path: Path) -> str:
    """One of real people's if HACPO_ASSETS names the directory that holds them, or of ours."""
    if ASSETS:
        return f"{ASSETS}/{name}"
    tokenizer_zoo.exact(name).save(str(path))
    return str(path)


@pytest.mark.parametrize("name", REAL if ASSETS else EXACT)
def test_saved_agents_are_those_that_were_saved(tmp_path, name):
    """Whatever class transformers takes the tokenizer for beside each family's config."""
    tokenizer = tokenizer_directory(name, tmp_path / "tokenizer")
    sections = [
        {"name": family, "model": LLAMA | {"family": family}, "tokenizer": tokenizer}
        for family in ("llama", "qwen2", "qwen3")
    ]
    agents = built(*sections)
    for agent in agents:
        save_agent(agent, tmp_path / "agents" / agent.name)
    configs = [AgentConfig.model_validate(section) for section in sections]
    for saved, agent in zip(saved_agents(configs, tmp_path / "agents"), agents, strict=True):
        assert saved.tokenizer.fingerprint == agent.tokenizer.fingerprint
        assert saved.tokenizer.stop_ids == agent.tokenizer.stop_ids
        assert saved.model == agent.model
        assert (saved.directory, saved.index, saved.name) == (None, agent.index, agent.name)
        for text in (STORY, " é 수학은 😀\r\n  x", "<|im_end|>12345"):
            assert saved.tokenizer.encode_prompt(text) == agent.tokenizer.encode_prompt(text)
            assert saved.tokenizer.encode_texts([text]) == agent.tokenizer.encode_texts([text])


def test_a_saved_agent_keeps_its_template_stops_and_padding_and_needs_no_model(directory):
    """A model of 48 ids with a tokenizer of fewer, a chat template, and three end tokens."""
    hf = letters_hf()
    hf.chat_template = THINKING
    hf.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    section = {"name": "a", "model": str(directory), "chat_options": {"enable_thinking": False}}
    (agent,) = built(section)
    home = directory.parent / "agents" / "a"
    save_agent(agent, home)
    shutil.rmtree(directory)
    config = AgentConfig.model_validate(section)
    (saved,) = saved_agents([config], home.parent)
    assert saved.tokenizer.fingerprint == agent.tokenizer.fingerprint
    assert saved.tokenizer.stop_ids == (0, 2, 5, 7)
    assert saved.tokenizer.encode_prompt("the cat") == agent.tokenizer.encode_prompt("the cat")
    assert saved.model == agent.model
    assert (saved.model.vocab_size, saved.tokenizer.size) == (48, 1 + len(set(STORY)))
    generation = json.loads((home / "generation_config.json").read_text())
    # Nothing but tokens: no temperature is imposed on whoever loads it.
    assert generation == {"bos_token_id": None, "eos_token_id": [0, 2, 5, 7], "pad_token_id": 0}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_an_export_that_transformers_reads_otherwise_is_told(tmp_path, family, caplog):
    """Beside a config of Qwen2 AutoTokenizer makes of every tokenizer one of Qwen2's."""
    section = {"model": LLAMA | {"family": family}, "tokenizer": {"kind": "characters"}}
    (agent,) = built(section)
    out = tmp_path / "out"
    params = jax.tree.map(lambda x: x[0], initial_params(AgentGroup((agent,)), 0))
    export_agent(agent, params, out, dtype="float32")
    read = AutoTokenizer.from_pretrained(out)
    equal = read.encode(STORY, add_special_tokens=False) == agent.tokenizer.encode_prompt(STORY)
    assert equal == (f"{out}: AutoTokenizer takes its tokenizer for another" not in caplog.text)
    as_it_is = PreTrainedTokenizerFast.from_pretrained(out)
    for ours in (as_it_is.encode(STORY), Tokenizer.load(str(out)).encode_prompt(STORY)):
        assert ours == agent.tokenizer.encode_prompt(STORY)


def test_an_agent_is_saved_once_and_whole(directory, monkeypatch):
    (agent,) = built({"name": "a", "model": str(directory)})
    home = directory.parent / "agents" / "a"

    def full_disk(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "save", full_disk)
        with pytest.raises(OSError, match="no space"):
            save_agent(agent, home)
    assert list(home.parent.iterdir()) == []
    save_agent(agent, home)
    (home / "config.json").write_text("mine")
    save_agent(agent, home)
    assert (home / "config.json").read_text() == "mine"
    assert [path.name for path in home.parent.iterdir()] == ["a"]


def test_parameters_of_two_agents_from_one_directory_are_those_of_the_file(directory):
    agents = built({"model": str(directory)}, {"model": str(directory)})
    params = initial_params(AgentGroup(tuple(agents)), seed=3)
    _, expected = load_model(directory, "model")
    for found, value in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.stack([value, value]))


def test_new_agents_differ_by_index_and_by_seed():
    agents = built(AGENTS["one"], AGENTS["three"])
    group = AgentGroup(tuple(agents))
    first, again, other = (initial_params(group, seed)["embedding"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, other)
    alone = initial_params(AgentGroup((agents[1],)), 0)["embedding"]
    np.testing.assert_array_equal(alone[0], first[1])
