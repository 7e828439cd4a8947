"""From YAML and `key=value` words to a checked config, and back."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_jax.config import NewModel, load_config, parse_config, save_config
from hacpo_jax.errors import UserError

MODEL = {
    "family": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 4,
}
PLAIN: dict[str, Any] = {
    "run_dir": "run",
    "task": {
        "train": {"kind": "arithmetic", "size": 16},
        "eval": {"sums": {"kind": "arithmetic", "split": "held_out", "size": 4}},
    },
    "agents": [
        {"name": "left", "model": MODEL, "tokenizer": {"kind": "bytes"}},
        {"name": "right", "model": "some/directory", "optimizer": {"learning_rate": 0.5}},
    ],
    "sampling": {"max_new_tokens": 4},
    "training": {"steps": 2, "prompts_per_step": 4, "group_size": 2, "mini_batch_prompts": 4},
    "optimizer": {"learning_rate": 0.25, "beta1": 0.5},
}


@pytest.fixture
def plain_file(tmp_path) -> Path:
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(PLAIN))
    return path


def plain(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(PLAIN) | changes


def error_of(call) -> UserError:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


def test_agents_inherit_the_optimizer_and_keep_what_they_name():
    left, right = parse_config(plain()).agents
    assert (left.optimizer.learning_rate, left.optimizer.beta1) == (0.25, 0.5)
    assert (right.optimizer.learning_rate, right.optimizer.beta1) == (0.5, 0.5)
    assert left.optimizer.beta2 == 0.999


def test_an_override_of_the_optimizer_reaches_agents_that_do_not_differ(plain_file):
    config = load_config(plain_file, ["optimizer.learning_rate=1e-6", "optimizer.beta1=0.1"])
    assert config.agents[0].optimizer.learning_rate == 0.000001
    assert config.agents[1].optimizer.learning_rate == 0.5
    assert config.agents[1].optimizer.beta1 == 0.1


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("optimizer.learning_rate=1e-6", ("optimizer", "learning_rate"), 1e-6),
        ("optimizer.learning_rate=2.5E-3", ("optimizer", "learning_rate"), 0.0025),
        ("training.remat=true", ("training", "remat"), True),
        ("algorithm.name=gspo", ("algorithm", "name"), "gspo"),
        ("agents.1.name=third", ("agents", 1, "name"), "third"),
        ("agents.0.warm_start={steps: 3}", ("agents", 0, "warm_start", "steps"), 3),
        ("agents.0.model.num_layers=7", ("agents", 0, "model", "num_layers"), 7),
        ("evaluation.best_of=[1]", ("evaluation", "best_of"), (1,)),
        ("algorithm.max_peer_tokens=null", ("algorithm", "max_peer_tokens"), None),
        ("run_dir=a=b", ("run_dir",), "a=b"),
        ("task.system='Answer: a sum.'", ("task", "system"), "Answer: a sum."),
        ("agents.1.model=${agents.1.name}/x", ("agents", 1, "model"), "right/x"),
        ("task.template='{prompt} = '", ("task", "template"), "{prompt} = "),
    ],
)
def test_an_override_sets_one_value(plain_file, word, path, value):
    found: Any = load_config(plain_file, [word])
    for part in path:
        found = found[part] if isinstance(part, int) else getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_an_override_may_point_at_a_mapping_elsewhere(plain_file):
    words = ["agents.1.model=${agents.0.model}", "agents.1.tokenizer=${agents.0.tokenizer}"]
    config = load_config(plain_file, words)
    assert isinstance(config.agents[1].model, NewModel)
    assert config.agents[1].model == config.agents[0].model


def test_an_override_replaces_a_whole_section(plain_file):
    word = "task.eval={other: {kind: jsonl, path: x.jsonl}}"
    assert list(load_config(plain_file, [word]).task.eval) == ["other"]


def test_three_agents_can_be_given_as_a_list(plain_file):
    agents = ", ".join(f"{{name: {name}, model: some/directory}}" for name in "abc")
    config = load_config(plain_file, [f"agents=[{agents}]"])
    assert [agent.name for agent in config.agents] == ["a", "b", "c"]
    assert {agent.optimizer.learning_rate for agent in config.agents} == {0.25}


@pytest.mark.parametrize(
    ("word", "field", "said"),
    [
        ("optimizer.learning_rat=1", "optimizer.learning_rat", "'optimizer.learning_rate'"),
        ("optimizer.lr=1", "optimizer.lr", "learning_rate"),
        ("training.step=3", "training.step", "'training.steps'"),
        ("trainng.steps=3", "trainng", "'training'"),
        ("group_size=3", "group_size", "'training.group_size'"),
        ("algorithm.hacpo.alhpa=2", "algorithm.hacpo.alhpa", "'algorithm.hacpo.alpha'"),
        ("agents.1.modle=x", "agents.1.modle", "'agents.1.model'"),
        ("agents.0.model.hidden=3", "agents.0.model.hidden", "'agents.0.model.hidden_size'"),
        ("task.eval.sums.sise=3", "task.eval.sums.sise", "'task.eval.sums.size'"),
        ("sampling.top_q=0.9", "sampling.top_q", "temperature"),
        ("evaluation.top_kk=1", "evaluation.top_kk", "'evaluation.top_k'"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_right_one(plain_file, word, field, said):
    error = error_of(lambda: load_config(plain_file, [word]))
    assert error.field == field
    assert "unknown key" in error.remedy
    assert said in error.remedy


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("sampling.temperature=-1", "sampling.temperature", -1),
        ("sampling.temperature=0", "sampling.temperature", 0),
        ("sampling.temperature=.nan", "sampling.temperature", None),
        ("optimizer.learning_rate=.inf", "optimizer.learning_rate", float("inf")),
        ("evaluation.temperature=-0.5", "evaluation.temperature", -0.5),
        ("evaluation.top_p=0", "evaluation.top_p", 0),
        ("training.group_size=1", "training.group_size", 1),
        ("training.steps=0", "training.steps", 0),
        ("training.steps=many", "training.steps", "many"),
        ("training.mini_batch_prompts=3", "training.mini_batch_prompts", 3),
        ("sampling.max_rows=1", "sampling.max_rows", 1),
        ("agents.1.name=left", "agents.1.name", "left"),
        ("agents.0.name=../up", "agents.0.name", "../up"),
        ("agents.0.tokenizer=null", "agents.0.tokenizer", None),
        ("agents.0.model.num_kv_heads=3", "agents.0.model.num_kv_heads", 3),
        ("agents.0.model.head_dim=3", "agents.0.model.head_dim", 3),
        ("algorithm.name=dapo", "algorithm.name", "dapo"),
        ("evaluation.best_of=[2]", "evaluation.best_of", 2),
        ("evaluation.samples=4", "evaluation.samples", 4),
        ("agents=[]", "agents", []),
        ("task.eval={}", "task.eval", {}),
        ("seed=-1", "seed", -1),
    ],
)
def test_a_value_out_of_its_range_is_named(plain_file, word, field, value):
    error = error_of(lambda: load_config(plain_file, [word]))
    assert error.field == field
    if value is not None:
        assert error.value == value


def test_a_fault_of_the_inherited_optimizer_is_told_once(plain_file):
    error = error_of(lambda: load_config(plain_file, ["optimizer.beta1=1.5"]))
    assert str(error) == (
        "optimizer.beta1 = 1.5: must be a number from 0 to below 1; the default is 0.9"
    )


def test_several_faults_are_counted():
    error = error_of(lambda: parse_config(plain(seed=-1, run_dir="", nonsense=3)))
    assert error.field == "nonsense"
    assert error.remedy.endswith("(and 2 more)")


def test_truncated_sampling_is_refused_in_training(plain_file):
    """Sampler against trainer: top_p = 0.8 in training."""
    error = error_of(lambda: load_config(plain_file, ["sampling.top_p=0.8"]))
    assert (error.field, error.value) == ("sampling.top_p", 0.8)
    assert error.remedy.endswith("remove it; evaluation.top_p exists")


def test_sharing_needs_two_agents(plain_file):
    one = plain()
    one["agents"] = one["agents"][:1]
    error = error_of(lambda: parse_config(copy.deepcopy(one)))
    assert (error.field, error.value) == ("algorithm.name", "hacpo")
    assert parse_config(one | {"algorithm": {"name": "grpo"}}).algorithm.name == "grpo"


@pytest.mark.parametrize(
    "word",
    [
        "abc",
        "=3",
        "agents.9.name=x",
        "agents.-1.name=x",
        "agents[-1].name=x",
        "seed=[1",
        "seed=${nope}",
    ],
)
def test_a_word_that_cannot_be_applied_is_shown(plain_file, word):
    error = error_of(lambda: load_config(plain_file, [word]))
    assert word in str(error) or "nope" in str(error)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "3", "a: !!python/object:os.x {}", ""])
def test_a_file_that_is_no_config_is_named(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    error = error_of(lambda: load_config(path))
    assert error.field in ("--config", "run_dir")  # an empty mapping lacks its first section


def test_a_missing_file_is_named(tmp_path):
    error = error_of(lambda: load_config(tmp_path / "none.yaml"))
    assert (error.field, error.value) == ("--config", str(tmp_path / "none.yaml"))


def round_trip(data: dict[str, Any], path: Path):
    config = parse_config(copy.deepcopy(data))
    save_config(config, path)
    return config, load_config(path)


@settings(max_examples=60, deadline=None)
@given(
    system=st.text(),
    rate=st.floats(min_value=1e-30, max_value=1e30),
    name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z"),
    best=st.lists(st.integers(1, 8)),
)
def test_a_saved_config_is_read_back_equal(tmp_path_factory, system, rate, name, best):
    data = plain()
    data["task"]["system"] = system
    data["optimizer"]["learning_rate"] = rate
    data["agents"][0]["name"] = f"x{name}"
    data["evaluation"] = {"best_of": best, "samples": 8, "temperature": 0.3}
    saved, read = round_trip(data, tmp_path_factory.mktemp("config") / "config.yaml")
    assert read == saved
    assert (read.task.system, read.optimizer.learning_rate) == (system, rate)


@pytest.mark.parametrize(
    "text",
    ["${run_dir}", r"\${x}", r"\\${x} \ ", "$${", "1e-6", "null", "yes", "0x1F", "???", "\x1b"],
)
def test_text_that_looks_like_something_else_stays_text(tmp_path, text):
    data = plain()
    data["task"]["system"] = text
    saved, read = round_trip(data, tmp_path / "config.yaml")
    assert saved.task.system == read.task.system == text


def test_saving_resolves_inheritance_and_interpolation(plain_file, tmp_path):
    config = load_config(plain_file, ["agents.1.model=${agents.1.name}"])
    save_config(config, tmp_path / "config.yaml")
    text = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert text["agents"][1]["model"] == "right"
    assert text["optimizer"]["learning_rate"] == 0.25
    # Agents hold what differs alone, so that an override of the rest still reaches them.
    assert [agent.get("optimizer") for agent in text["agents"]] == [None, {"learning_rate": 0.5}]
    again = load_config(tmp_path / "config.yaml", ["optimizer.beta1=0.5", "algorithm.name=sgt"])
    assert [agent.optimizer.beta1 for agent in again.agents] == [0.5, 0.5]
    assert [agent.algorithm.name for agent in again.agents] == ["sgt", "sgt"]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("task.eval={}", "task.eval = {}: must not be empty"),
        ("agents=[]", "agents = []: must not be empty"),
        ("run_dir=''", "run_dir = '': must not be empty"),
        ("evaluation.best_of=2", "evaluation.best_of = 2: must be a list, such as [1, 2]"),
        (
            "agents=left",
            "agents = 'left': must be a list, such as [{name: ..., model: ...}]",
        ),
        (
            "agents.0=left",
            "agents.0 = 'left': must be a mapping, such as {name: ..., model: ...}",
        ),
        (
            "agents.0.lora=true",
            "agents.0.lora = true: must be null or a mapping, such as {rank: ...}",
        ),
        (
            "agents.0.model=null",
            "agents.0.model = null: must be text, or a mapping, such as {family: ..., "
            "hidden_size: ..., intermediate_size: ..., ...}",
        ),
        ("task.eval=3", "task.eval = 3: must be a mapping, such as {NAME: {kind: ...}}"),
        ("task.train=3", "task.train = 3: must be a mapping, such as {kind: ...}"),
        ("training.steps=many", "training.steps = 'many': must be a whole number, 1 or more"),
        ("training.steps=1.5", "training.steps = 1.5: must be a whole number, 1 or more"),
        ("training.steps=true", "training.steps = true: must be a whole number, 1 or more"),
        (
            "training.micro_batch_tokens=null",
            "training.micro_batch_tokens = null: must be a whole number, 1 or more; the default "
            "is 16384",
        ),
        (
            "evaluation.every=0",
            "evaluation.every = 0: must be null or a whole number, 1 or more",
        ),
        (
            "evaluation.top_p=2",
            "evaluation.top_p = 2: must be a number above 0 and at most 1; the default is 1.0",
        ),
        (
            "task.eval.sums.held_out_fraction=2",
            "task.eval.sums.held_out_fraction = 2: must be a number from 0.001 to 0.999; the "
            "default is 0.1",
        ),
        (
            "optimizer.beta2=x",
            "optimizer.beta2 = 'x': must be a number from 0 to below 1; the default is 0.999",
        ),
        ("agents.0.chat=perhaps", "agents.0.chat = 'perhaps': must be null or true or false"),
        (
            "tracking.tensorboard=perhaps",
            "tracking.tensorboard = 'perhaps': must be true or false; the default is false",
        ),
        ("task.template=3", "task.template = 3: must be text; the default is {prompt}"),
        (
            "sampling={}",
            "sampling.max_new_tokens: is required; write sampling.max_new_tokens=N, a whole "
            "number, 1 or more",
        ),
        (
            "task.train={kind: csv}",
            "task.train.kind = 'csv': must be one of arithmetic, reasoning_gym, jsonl, parquet, "
            "hub, preset",
        ),
        (
            "task.train={size: 3}",
            "task.train.kind: is required; it is one of arithmetic, reasoning_gym, jsonl, "
            "parquet, hub, preset",
        ),
        (
            "task.train={kind: arithmetic, size: 3, low: 7, high: 5}",
            "task.train.low = 7: is above high = 5; use 5 or less",
        ),
        (
            "task.train={kind: arithmetic, size: 3, operations: /}",
            "task.train.operations = '/': must be one or several of +, - and *, such as +-",
        ),
        ("task.train.path=x", "task.train.path = 'x': unknown key; it goes with another kind"),
        (
            "task.overlong=cut",
            "task.overlong = 'cut': must be 'error' or 'drop'; the default is error",
        ),
        (
            "agents.0.lora={targets: []}",
            "agents.0.lora.targets = []: must not be empty; the default is [q, k, v, o, gate, "
            "up, down]",
        ),
        (
            "evaluation.benchmarks={x: {samples: 1}}",
            "evaluation.benchmarks = 'x': is no benchmark; task.eval has sums",
        ),
        (
            "evaluation.best_of=[2]",
            "evaluation.best_of = 2: must be from 1 to evaluation.samples = 1; lower it, or set "
            "that to 2",
        ),
    ],
)
def test_values_of_a_wrong_kind_are_told_in_the_words_of_the_file(plain_file, word, line):
    assert str(error_of(lambda: load_config(plain_file, [word]))) == line
