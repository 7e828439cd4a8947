"""Agents that learn in different ways from the same answers."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from hacpo_jax.cli.configs import find_config
from hacpo_jax.config import Config, load_config, parse_config, save_config
from hacpo_jax.errors import UserError

RUN: dict[str, Any] = {
    "run_dir": "run",
    "task": {
        "train": {"kind": "arithmetic", "size": 16},
        "eval": {"sums": {"kind": "arithmetic", "split": "held_out", "size": 4}},
    },
    "agents": [{"name": "a", "model": "models/a"}, {"name": "b", "model": "models/b"}],
    "algorithm": {"kl_coef": 0.25, "hacpo": {"alpha": 3.0, "clip_low": 0.7}},
    "sampling": {"max_new_tokens": 4},
    "training": {"steps": 1, "prompts_per_step": 8, "group_size": 2, "mini_batch_prompts": 4},
}


def write(path, agents: int = 2):
    path.write_text(yaml.safe_dump(RUN | {"agents": RUN["agents"][:agents]}))
    return path


@pytest.fixture
def pair(tmp_path):
    """Loads the run of two agents with overrides."""
    path = write(tmp_path / "pair.yaml")
    return lambda *words: load_config(path, words)


@pytest.fixture
def alone(tmp_path):
    """The same with one agent."""
    path = write(tmp_path / "alone.yaml", agents=1)
    return lambda *words: load_config(path, words)


def refused(call, *words) -> UserError:
    with pytest.raises(UserError) as caught:
        call(*words)
    assert "\n" not in str(caught.value)
    return caught.value


def changed(config: Config, agent: int) -> dict[str, Any]:
    """Keys of an agent's algorithm that differ from the top-level one."""

    def differences(own: dict, shared: dict, prefix: str):
        for key, value in own.items():
            if isinstance(value, dict):
                yield from differences(value, shared[key], f"{prefix}{key}.")
            elif value != shared[key]:
                yield f"{prefix}{key}", value

    own = config.agents[agent].algorithm.model_dump()
    return dict(differences(own, config.algorithm.model_dump(), ""))


def test_agents_inherit_the_whole_algorithm(pair):
    config = pair()
    assert [agent.algorithm for agent in config.agents] == [config.algorithm] * 2
    assert config.algorithm.hacpo.alpha == 3.0


@pytest.mark.parametrize(
    ("word", "agent", "key", "value"),
    [
        ("agents.0.algorithm.name=sgt", 0, "name", "sgt"),
        ("agents.1.algorithm.hacpo.alpha=0", 1, "hacpo.alpha", 0.0),
        ("agents.1.algorithm.kl_coef=0", 1, "kl_coef", 0.0),
        ("agents.0.algorithm.rescue.coef=0.1", 0, "rescue.coef", 0.1),
        ("agents.0.algorithm.prp={denominator: thl_peer}", 0, "prp.denominator", "thl_peer"),
        ("agents.1.algorithm={grpo: {scale: none}}", 1, "grpo.scale", "none"),
    ],
)
def test_an_agent_changes_one_key_and_keeps_the_rest(pair, word, agent, key, value):
    config = pair(word)
    assert changed(config, agent) == {key: value}
    assert changed(config, 1 - agent) == {}
    assert config.algorithm == pair().algorithm


def test_a_top_level_override_reaches_what_an_agent_does_not_name(pair):
    words = ["agents.0.algorithm.hacpo.alpha=0", "algorithm.hacpo={alpha: 2.0, clip_low: 0.6}"]
    first, second = (agent.algorithm.hacpo for agent in pair(*words).agents)
    assert (first.alpha, first.clip_low) == (0.0, 0.6)
    assert (second.alpha, second.clip_low) == (2.0, 0.6)


def test_an_empty_section_of_an_agent_says_nothing(pair):
    config = pair("agents.0.algorithm=null", "agents.1.algorithm={}")
    assert [changed(config, 0), changed(config, 1)] == [{}, {}]


def test_parsing_leaves_its_input_alone():
    data = copy.deepcopy(RUN)
    data["agents"][0]["algorithm"] = {"hacpo": {"alpha": 1.0}}
    before = copy.deepcopy(data)
    parse_config(data)
    assert data == before


def test_different_algorithms_are_saved_and_read_back(pair, tmp_path):
    config = pair("agents.0.algorithm.name=prp", "agents.1.algorithm.hacpo.alpha=0")
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_faults_are_told_where_they_were_written(pair):
    error = refused(pair, "agents.1.algorithm.hacpo.alhpa=2")
    assert error.field == "agents.1.algorithm.hacpo.alhpa"
    assert "'agents.1.algorithm.hacpo.alpha'" in error.remedy
    assert refused(pair, "agents.1.algorithm.name=dapo").field == "agents.1.algorithm.name"
    error = refused(pair, "algorithm.hacpo.alpha=-1")
    assert (error.field, error.value) == ("algorithm.hacpo.alpha", -1)
    assert "more)" not in error.remedy  # inherited faults are not counted again


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("agents.0.algorithm.max_reward=2", "agents.0.algorithm.max_reward"),
        ("agents.1.algorithm.capability.window=3", "agents.1.algorithm.capability.window"),
        (
            "agents.1.algorithm.capability.warmup_steps=1",
            "agents.1.algorithm.capability.warmup_steps",
        ),
    ],
)
def test_what_agents_are_compared_by_is_one_for_all(pair, word, field):
    error = refused(pair, word)
    assert error.field == field
    assert "top-level" in error.remedy


def test_the_same_value_may_be_repeated_by_an_agent(pair):
    config = pair("algorithm.max_reward=2", "agents.0.algorithm.max_reward=2")
    assert config.agents[1].algorithm.max_reward == 2


@pytest.mark.parametrize("name", ["hacpo", "naive", "xgrpo", "prp", "sgt"])
def test_learning_from_peers_needs_peers(alone, pair, name):
    assert pair(f"algorithm.name={name}").agents[1].algorithm.name == name
    error = refused(alone, f"algorithm.name={name}")
    assert (error.field, error.value) == ("algorithm.name", name)
    error = refused(alone, "algorithm.name=gspo", f"agents.0.algorithm.name={name}")
    assert (error.field, error.value) == ("agents.0.algorithm.name", name)


@pytest.mark.parametrize("name", ["gspo", "grpo"])
def test_a_rescue_needs_peers(alone, pair, name):
    assert pair(f"algorithm.name={name}", "algorithm.rescue.coef=0.5").algorithm.rescue_coef == 0.5
    assert alone(f"algorithm.name={name}").algorithm.rescue_coef == 0
    error = refused(alone, f"algorithm.name={name}", "algorithm.rescue.coef=0.5")
    assert (error.field, error.value) == ("algorithm.rescue.coef", 0.5)
    words = [f"algorithm.name={name}", "agents.0.algorithm.rescue.coef=0.5"]
    assert refused(alone, *words).field == "agents.0.algorithm.rescue.coef"


def test_one_agent_may_leave_an_algorithm_that_needs_peers(alone):
    config = alone("agents.0.algorithm.name=gspo")
    assert (config.algorithm.name, config.agents[0].algorithm.name) == ("hacpo", "gspo")


def test_sgt_without_its_rescue_is_refused(pair, alone):
    for call in (pair, alone):
        error = refused(call, "algorithm.name=sgt", "algorithm.rescue.coef=0")
        assert (error.field, error.value) == ("algorithm.rescue.coef", 0)
    words = ["algorithm.rescue.coef=0", "agents.1.algorithm.name=sgt"]
    assert refused(pair, *words).field == "agents.1.algorithm.rescue.coef"


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [("sgt", None, 0.3), ("sgt", 0.1, 0.1), ("hacpo", None, 0), ("hacpo", 0.2, 0.2)],
)
def test_the_weight_of_the_rescue(pair, name, own, expected):
    words = [f"algorithm.name={name}"] + ([f"algorithm.rescue.coef={own}"] if own else [])
    assert pair(*words).algorithm.rescue_coef == expected


@pytest.mark.parametrize(
    ("names", "order", "sizes"),
    [
        # One agent's groups at a time: whatever divides the 8 of each.
        (["hacpo", "hacpo"], "own_first", [1, 2, 4, 8]),
        (["hacpo", "gspo", "sgt"], "own_first", [1, 2, 4, 8]),
        # Whole joint groups, as many groups as agents: A times a divisor of 8.
        (["hacpo", "hacpo"], "mixed", [2, 4, 8, 16]),
        (["prp", "naive", "hacpo"], "mixed", [3, 6, 12, 24]),
        # Both at once: nobody mixes where nothing is shared.
        (["hacpo", "gspo"], "mixed", [2, 4, 8]),
        (["sgt", "prp"], "mixed", [2, 4, 8]),
        (["grpo", "xgrpo"], "mixed", [1, 2, 4, 8]),
        (["hacpo", "gspo", "sgt"], "mixed", []),
    ],
)
def test_mini_batches_must_fit_every_agent(pair, names, order, sizes):
    agents = [
        {"name": f"n{i}", "model": "m", "algorithm": {"name": n}} for i, n in enumerate(names)
    ]
    words = [f"agents={agents}", f"algorithm.minibatch_order={order}"]
    accepted = []
    for size in range(1, 26):
        try:
            accepted.append(pair(*words, f"training.mini_batch_prompts={size}"))
        except UserError as error:
            assert (error.field, error.value) == ("training.mini_batch_prompts", size)
    assert [config.training.mini_batch_prompts for config in accepted] == sizes


@pytest.mark.parametrize(
    ("names", "order", "size", "says"),
    [
        (["hacpo", "grpo"], "own_first", 3, "= 8; use 1, 2, 4 or 8"),
        (["hacpo", "grpo"], "own_first", 9, "= 8; use 4 or 8"),
        (["hacpo", "hacpo"], "mixed", 3, "to each prompt; use 2, 4 or 8"),
        (["hacpo", "gspo", "sgt"], "mixed", 3, "to each prompt; make that a multiple of 3"),
    ],
)
def test_the_sizes_that_fit_are_named(pair, names, order, size, says):
    agents = [
        {"name": f"n{i}", "model": "m", "algorithm": {"name": n}} for i, n in enumerate(names)
    ]
    words = [f"agents={agents}", f"algorithm.minibatch_order={order}"]
    error = refused(pair, *words, f"training.mini_batch_prompts={size}")
    assert error.remedy.endswith(says)


def test_one_agent_may_mix_and_another_not(pair):
    """16 groups are one mini-batch of 8 joint groups, but two agents' worth for the other."""
    words = ["training.mini_batch_prompts=16", "agents.0.algorithm.minibatch_order=mixed"]
    assert refused(pair, *words).field == "training.mini_batch_prompts"
    words += ["agents.1.algorithm.minibatch_order=mixed"]
    assert pair(*words).training.mini_batch_prompts == 16


@pytest.mark.parametrize(
    ("word", "field", "says"),
    [
        ("agents.1.name=own", "agents.1.name", "own answers"),
        ("algorithm.rescue.coef=true", "algorithm.rescue.coef", "null or a number, 0 or more"),
        ("agents.0.lora={targets: [q, q]}", "agents.0.lora.targets", "twice"),
        ("agents.0.lora={targets: [qq]}", "agents.0.lora.targets.0", "'gate'"),
        ("agents.0.lora={targets: []}", "agents.0.lora.targets", "empty"),
        ("agents.0.lora={rank: 0}", "agents.0.lora.rank", "1"),
        ("agents.0.name=a/b", "agents.0.name", "letters, digits, dots"),
    ],
)
def test_what_a_new_user_got_wrong(pair, word, field, says):
    error = refused(pair, word)
    assert error.field == field and says in error.remedy


def test_a_rescue_without_peers_is_told_how_to_go_without():
    data = yaml.safe_load(Path(find_config("quickstart")).read_text())
    data["agents"] = data["agents"][:1]
    data["algorithm"] = {"name": "gspo", "rescue": {"coef": 0.3}}
    error = refused(parse_config, data)
    assert error.field == "algorithm.rescue.coef" and "set it to 0" in error.remedy
