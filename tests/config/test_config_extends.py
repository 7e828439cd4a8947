"""`extends: FILE` in a config's YAML."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_jax.config import load_config, save_config
from hacpo_jax.config.files import merged
from hacpo_jax.errors import UserError

BASE = """
run_dir: runs/base
seed: 3
task:
  train: {kind: jsonl, path: data/train.jsonl, answer: solution}
  eval:
    first: &source {kind: jsonl, path: "data/${seed}.jsonl"}
    second: {<<: *source, limit: 5}
agents:
  - {name: a, model: models/a}
  - {name: b, model: "${agents.0.model}-b"}
algorithm:
  hacpo: {alpha: 2.0, clip_low: 0.7}
sampling: {max_new_tokens: 8}
training: {steps: 2, prompts_per_step: 4, mini_batch_prompts: 4}
evaluation: {samples: 4, temperature: 1.0, best_of: [1, 2]}
"""


@pytest.fixture
def write(tmp_path):
    def writer(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    writer("base.yaml", BASE)
    return writer


def error_of(call) -> UserError:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


def test_mappings_are_merged_key_by_key(write):
    path = write(
        "own.yaml",
        "extends: base.yaml\nseed: 4\nalgorithm: {kl_coef: 0.5, hacpo: {alpha: 1.0}}\n"
        "task: {eval: {third: {kind: jsonl, path: third.jsonl}}}\n",
    )
    config = load_config(path)
    assert (config.run_dir, config.seed) == ("runs/base", 4)
    hacpo = config.algorithm.hacpo
    assert (config.algorithm.kl_coef, hacpo.alpha, hacpo.clip_low) == (0.5, 1.0, 0.7)
    assert list(config.task.eval) == ["first", "second", "third"]
    assert config.task.train == load_config(path.parent / "base.yaml").task.train


def test_lists_are_replaced(write):
    path = write(
        "own.yaml",
        "extends: base.yaml\nevaluation: {best_of: [4]}\nalgorithm: {name: gspo}\n"
        "agents: [{name: c, model: models/c}]\n",
    )
    config = load_config(path)
    assert config.evaluation.best_of == (4,)
    assert [(agent.name, agent.model) for agent in config.agents] == [("c", "models/c")]


def test_null_takes_a_value_away(write):
    path = write("own.yaml", "extends: base.yaml\ntask: {eval: {second: {limit: null}}}\n")
    assert load_config(path).task.eval["second"] == load_config(path).task.eval["first"]


def test_several_levels_each_relative_to_its_own_file(write):
    write("up/middle.yaml", "extends: ../base.yaml\nseed: 5\nsampling: {max_new_tokens: 9}\n")
    path = write("up/down/own.yaml", "extends: ../middle.yaml\nseed: 6\n")
    config = load_config(path)
    assert (config.seed, config.sampling.max_new_tokens, config.training.steps) == (6, 9, 2)


def test_an_absolute_path_and_one_through_a_linked_folder(write, tmp_path):
    write("far/own.yaml", f"extends: {tmp_path / 'base.yaml'}\nseed: 7\n")
    assert load_config(tmp_path / "far" / "own.yaml").seed == 7
    write("real/near.yaml", "extends: other.yaml\nseed: 8\n")
    write("real/other.yaml", BASE)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert load_config(tmp_path / "link" / "near.yaml").seed == 8


def test_it_is_found_from_any_working_folder(write, tmp_path, monkeypatch):
    write("sub/own.yaml", "extends: ../base.yaml\n")
    monkeypatch.chdir(tmp_path / "sub")
    assert load_config("own.yaml").seed == 3
    monkeypatch.chdir("/")
    assert load_config(os.path.relpath(tmp_path / "sub" / "own.yaml")).seed == 3


def test_interpolations_of_the_base_mean_the_merged_keys(write):
    path = write("own.yaml", "extends: base.yaml\nseed: 9\n")
    assert load_config(path).task.eval["first"].path == "data/9.jsonl"
    config = load_config(path, ["seed=10", "agents.0.model=elsewhere"])
    assert config.task.eval["second"].path == "data/10.jsonl"
    assert [agent.model for agent in config.agents] == ["elsewhere", "elsewhere-b"]


def test_an_interpolation_replaces_a_section_and_is_replaced(write):
    write("middle.yaml", "extends: base.yaml\ntask: {eval: {second: '${task.eval.first}'}}\n")
    benchmarks = load_config(write("own.yaml", "extends: middle.yaml\n")).task.eval
    assert benchmarks["second"] == benchmarks["first"]
    own = "extends: middle.yaml\ntask: {eval: {second: {kind: jsonl, path: x}}}\n"
    path = write("own.yaml", own)
    assert load_config(path).task.eval["second"].path == "x"


def test_text_that_only_looks_like_an_interpolation_survives(write):
    write("middle.yaml", "extends: base.yaml\ntask: {system: 'costs \\${x}'}\n")
    assert load_config(write("own.yaml", "extends: middle.yaml\n")).task.system == "costs ${x}"


def test_overrides_come_last(write):
    path = write("own.yaml", "extends: base.yaml\nalgorithm: {hacpo: {alpha: 1.0}}\n")
    config = load_config(path, ["algorithm.hacpo.alpha=0", "algorithm.hacpo.clip_low=0.5"])
    assert (config.algorithm.hacpo.alpha, config.algorithm.hacpo.clip_low) == (0.0, 0.5)


def test_the_resolved_config_extends_nothing(write, tmp_path):
    config = load_config(write("own.yaml", "extends: base.yaml\nseed: 11\n"))
    resolved = tmp_path / "run" / "config.yaml"
    resolved.parent.mkdir()
    save_config(config, resolved)
    assert "extends" not in yaml.safe_load(resolved.read_text())
    assert load_config(resolved) == config


@pytest.mark.parametrize("base", ["none.yaml", "none/own.yaml", "."])
def test_a_base_that_cannot_be_read_is_told_with_the_file_that_names_it(write, base):
    path = write("own.yaml", f"extends: {base}\n")
    error = error_of(lambda: load_config(path))
    assert (error.field, error.value) == ("extends", base)
    assert str(path) in error.remedy and "cannot be read" in error.remedy


@pytest.mark.parametrize(("text", "said"), [("a: [1", "YAML"), ("- 1\n", "mapping")])
def test_a_base_that_is_no_config_is_told(write, text, said):
    write("bad.yaml", text)
    write("middle.yaml", "extends: bad.yaml\n")
    error = error_of(lambda: load_config(write("own.yaml", "extends: middle.yaml\n")))
    assert (error.field, error.value) == ("extends", "bad.yaml")
    assert "middle.yaml" in error.remedy and said in error.remedy


def test_a_circle_is_told_with_its_files(write):
    write("a.yaml", "extends: sub/b.yaml\n")
    write("sub/b.yaml", "extends: c.yaml\n")
    write("sub/c.yaml", "extends: ../a.yaml\n")
    error = error_of(lambda: load_config(write("own.yaml", "extends: a.yaml\n")))
    assert (error.field, error.value) == ("extends", "../a.yaml")
    assert "own.yaml -> a.yaml -> b.yaml -> c.yaml -> a.yaml" in error.remedy


def test_a_file_that_extends_itself_is_a_circle(write):
    error = error_of(lambda: load_config(write("own.yaml", "extends: ./own.yaml\n")))
    assert (error.field, error.value) == ("extends", "./own.yaml")


def test_the_same_base_may_be_reached_by_two_runs(write):
    seeds = [load_config(write(f"{i}.yaml", f"extends: base.yaml\nseed: {i}\n")).seed for i in "12"]
    assert seeds == [1, 2]


@pytest.mark.parametrize("value", ["[a.yaml, b.yaml]", "{file: a.yaml}", "null", "3", "''"])
def test_it_names_exactly_one_file(write, value):
    error = error_of(lambda: load_config(write("own.yaml", f"extends: {value}\n")))
    assert error.field == "extends" and "one YAML file" in error.remedy


def test_it_stands_at_the_top_of_a_file_only(write):
    path = write("own.yaml", "extends: base.yaml\ntask: {extends: base.yaml}\n")
    assert error_of(lambda: load_config(path)).field == "task.extends"
    error = error_of(lambda: load_config(path.parent / "base.yaml", ["extends=own.yaml"]))
    assert (error.field, error.value) == ("override", "extends=own.yaml")


def test_a_misspelt_one_is_told(write):
    error = error_of(lambda: load_config(write("own.yaml", BASE + "extend: base.yaml\n")))
    assert (error.field, "'extends'" in error.remedy) == ("extend", True)


def flat(tree, prefix=()) -> dict:
    """Leaves by path; an empty mapping is a leaf."""
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    return {k: v for key, sub in tree.items() for k, v in flat(sub, (*prefix, key)).items()}


trees = st.recursive(
    st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.sampled_from("abc"), trees, min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(mappings, mappings)
def test_merging_keeps_what_is_named_and_takes_the_rest(shared, own):
    """A leaf of the base stays unless the other tree has a leaf at, above or below its place."""
    above, below = flat(own), flat(shared)

    def touches(path, other):
        short = min(len(path), len(other))
        return path[:short] == other[:short]

    kept = {k: v for k, v in below.items() if not any(touches(k, path) for path in above)}
    assert flat(merged(shared, own)) == kept | above


def test_a_built_in_config_is_extended_by_its_name(write):
    path = write("mine.yaml", "extends: quickstart\nseed: 11\n")
    config = load_config(path)
    assert config.seed == 11
    assert [agent.name for agent in config.agents] == ["llama-bpe", "qwen3-characters"]
    nearer = write("quickstart", BASE)  # a file of that name comes first
    assert nearer.exists() and load_config(path).run_dir == "runs/base"
