"""The built-in configs: those of the papers hold the papers' settings."""

import json
import re

import pytest

from hacpo_jax.cli.configs import built_in_configs, find_config
from hacpo_jax.cli.help import help_text
from hacpo_jax.config import Config, Jsonl, load_config
from hacpo_jax.config.files import BUILT_IN
from hacpo_jax.errors import UserError
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.problems import load_examples
from hacpo_jax.tasks.prompts import render

NAMES = sorted(path.stem for path in BUILT_IN.glob("*.yaml"))

# arXiv 2603.02604: models, alpha, lower bound of a cross ratio, and its rise per update.
HACPO = {
    "hacpo_qwen3_4b_instruct_state": (
        ["Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Instruct-2507"],
        (3, 0.8, 0.01),
    ),
    "hacpo_qwen3_1.7b_4b_size": (
        ["Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-4B-Base"],
        (1, 0.8, 0.025),
    ),
    "hacpo_qwen3_4b_8b_size": (
        ["Qwen/Qwen3-4B-Base", "Qwen/Qwen3-8B-Base"],
        (3, 0.8, 0.025),
    ),
    "hacpo_llama3.2_1b_3b_size": (
        ["meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-3B-Instruct"],
        (1, 0.9, 0.01),
    ),
    "hacpo_qwen3_1.7b_llama3.2_1b_model": (
        ["Qwen/Qwen3-1.7B-Base", "meta-llama/Llama-3.2-1B-Instruct"],
        (1, 0.8, 0.025),
    ),
    "hacpo_qwen3_4b_llama3.2_3b_model": (
        ["Qwen/Qwen3-4B-Base", "meta-llama/Llama-3.2-3B-Instruct"],
        (1, 0.8, 0.025),
    ),
}
# arXiv 2605.07244: models, and the longest answer that fits their contexts.
MUTUAL = {
    "mutual_qwen2.5_math_1.5b_qwen3_1.7b": (
        ["Qwen/Qwen2.5-Math-1.5B", "Qwen/Qwen3-1.7B-Base"],
        (3072, 3072),
    ),
    "mutual_llama3.1_8b_mistral_7b": (
        ["meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3"],
        (4096, 8192),
    ),
    "mutual_qwen3_4b_phi4_mini": (
        ["Qwen/Qwen3-4B-Base", "microsoft/Phi-4-mini-instruct"],
        (4096, 8192),
    ),
}
PAPERS = [*HACPO, *MUTUAL, "math_gspo"]
# The same pairs on commonsense and science questions.
QA = {
    "mutual_qa_llama3.1_8b_mistral_7b": "mutual_llama3.1_8b_mistral_7b",
    "mutual_qa_qwen3_4b_phi4_mini": "mutual_qwen3_4b_phi4_mini",
}

# One row of every file as its publisher lays it out, and the problem and answer in it.
ROWS: dict[str, tuple[dict, str, str]] = {
    "train": (
        {"problem": "1+1?", "level": "Level 1", "type": "Algebra", "solution": r"So \boxed{2}."},
        "1+1?",
        "2",
    ),
    "math": (
        {
            "problem": "P",
            "level": "Level 1",
            "type": "T",
            "solution": r"\boxed{\frac{1}{2}}",
            "idx": 0,
        },
        "P",
        r"\frac{1}{2}",
    ),
    "math500": (
        {"problem": "P", "solution": r"\boxed{9}", "answer": "9", "subject": "S", "unique_id": "u"},
        "P",
        "9",
    ),
    "gsm8k": ({"question": "Q", "answer": "2 * 9 = <<2*9=18>>18\n#### 18"}, "Q", "18"),
    "aime25": ({"problem": "P", "answer": "70"}, "P", "70"),
    "amc23": ({"id": 0, "problem": "P", "answer": 27.0, "question": "P", "url": "u"}, "P", "27.0"),
    "minerva_math": (
        {"problem": "P", "solution": r"x=\boxed{1.6}", "type": "T", "idx": 0},
        "P",
        "1.6",
    ),
    "olympiadbench": (
        {"id": 1, "context": None, "question": "Q", "final_answer": ["$1$", "$2$"]},
        "Q",
        "$1$, $2$",
    ),
}
SIZES = {
    "train": 7500,
    "math": 5000,
    "math500": 500,
    "gsm8k": 1319,
    "aime25": 30,
    "amc23": 40,
    "minerva_math": 272,
    "olympiadbench": 675,
}


def load(name: str, *words: str) -> Config:
    return load_config(find_config(name), words)


def sources(config: Config) -> dict[str, Jsonl]:
    found = {"train": config.task.train, **config.task.eval}
    return {name: source for name, source in found.items() if isinstance(source, Jsonl)}


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_found_by_name_and_valid(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # a folder of that name is no config
    for spelling in (name, f"{name}.yaml", f"configs/{name}.yaml"):
        assert find_config(spelling) == BUILT_IN / f"{name}.yaml"
    assert load(name).run_dir == f"runs/{name}"


def test_every_pair_of_the_papers_is_there_and_nothing_unknown():
    assert set(NAMES) == {*PAPERS, *QA, "quickstart", "smollm2_state"}


@pytest.mark.parametrize("name", QA)
def test_questions_take_the_pairs_and_batches_of_mathematics(name):
    config, mathematics = load(name), load(QA[name])
    assert config.agents == mathematics.agents
    assert config.algorithm == mathematics.algorithm
    assert config.optimizer == mathematics.optimizer
    assert config.training.steps == 9741 // config.training.prompts_per_step
    # Questions are fewer, and their answers shorter, of which more are learned from at a time.
    changed = ("steps", "micro_batch_tokens")
    theirs = {name: getattr(mathematics.training, name) for name in changed}
    assert config.training.model_copy(update=theirs) == mathematics.training
    benchmarks = {"commonsense_qa", "openbookqa", "arc_easy", "arc_challenge", "sciq"}
    assert set(config.task.eval) == benchmarks
    assert config.task.verifier.name == "choice"


@pytest.mark.parametrize(
    "name", ["configs/no/quickstart", "quickstart.yml", "quickstart.", ".", ""]
)
def test_other_spellings_are_no_config(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="built-in configs are quickstart, smollm2_state"):
        find_config(name)


def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        find_config("hacpo_qwen3_1.7b_4b")
    assert "did you mean 'hacpo_qwen3_1.7b_4b_size'?" in str(caught.value)
    assert [name for name in NAMES if name not in str(caught.value)] == []


def test_help_lists_every_config_with_a_sentence():
    listed = help_text("train").partition("built-in configs:\n")[2].splitlines()
    assert {line.split()[0]: " ".join(line.split()[1:]) for line in listed} == built_in_configs()
    assert set(built_in_configs()) == set(NAMES)
    assert all(re.fullmatch(r"[A-Z].{20,}\.", what) for what in built_in_configs().values())


@pytest.mark.parametrize("name", PAPERS)
def test_what_all_presets_share(name):
    config = load(name)
    training, algorithm, optimizer = config.training, config.algorithm, config.optimizer
    assert training.steps == 7500 // 128 == 58
    assert (training.prompts_per_step, training.mini_batch_prompts) == (128, 64)
    assert (training.group_size, training.prompt_rounds) == (8, 1)
    assert (algorithm.kl_coef, algorithm.entropy_coef) == (1e-3, 0)
    assert (algorithm.capability.window, algorithm.capability.warmup_steps) == (5, 0)
    assert (optimizer.learning_rate, optimizer.max_grad_norm) == (1e-6, 1.0)
    assert (optimizer.schedule, optimizer.warmup_updates) == ("constant", 0)
    assert (config.sampling.temperature, config.task.max_prompt_tokens) == (1.0, 1024)
    assert (config.task.overlong, config.task.verifier.name) == ("drop", "math")
    evaluation = config.evaluation
    assert (evaluation.samples, evaluation.temperature, evaluation.best_of) == (1, 0.0, ())
    for agent in config.agents:
        assert agent.algorithm == algorithm
        assert agent.optimizer == optimizer
        assert (agent.warm_start, agent.chat, agent.tokenizer) == (None, None, None)


@pytest.mark.parametrize("name", HACPO)
def test_hacpo_pairs_have_the_settings_of_the_paper(name):
    models, (alpha, clip_low, clip_step) = HACPO[name]
    config = load(name)
    assert [agent.model for agent in config.agents] == models
    assert config.algorithm.name == "hacpo"
    assert config.algorithm.hacpo.model_dump() == {
        "alpha": alpha,
        "clip_low": clip_low,
        "clip_step": clip_step,
        "clip_cross": True,
        "eps_low": 3e-4,
        "eps_high": 4e-4,
        "cross_baseline": "learner",
        "capability_baseline": True,
        "discrepancy": True,
        "reduction": "sources",
    }
    assert config.algorithm.minibatch_order == "own_first"
    assert config.algorithm.eos_in_ratio is True
    assert config.algorithm.rescue_coef == 0
    assert (config.sampling.max_new_tokens, config.evaluation.max_new_tokens) == (4096, 8192)


@pytest.mark.parametrize("name", MUTUAL)
def test_mutual_rl_pools_transfer_successes(name):
    models, lengths = MUTUAL[name]
    config = load(name)
    assert [agent.model for agent in config.agents] == models
    assert (config.algorithm.name, config.algorithm.rescue_coef) == ("sgt", 0.3)
    assert config.algorithm.rescue.pick == "random"
    grpo = config.algorithm.grpo
    assert (grpo.eps_low, grpo.eps_high, grpo.scale) == (0.2, 0.28, "std")
    assert (config.sampling.max_new_tokens, config.evaluation.max_new_tokens) == lengths


@pytest.mark.parametrize("name", MUTUAL)
@pytest.mark.parametrize("regime", ["xgrpo", "prp", "grpo"])
def test_other_regimes_take_one_override(name, regime):
    for agent in load(name, f"algorithm.name={regime}").agents:
        assert (agent.algorithm.name, agent.algorithm.rescue_coef) == (regime, 0)


def test_the_baseline_is_one_model_with_gspo():
    config = load("math_gspo")
    assert [agent.model for agent in config.agents] == ["Qwen/Qwen3-1.7B-Base"]
    assert config.algorithm.name == "gspo"
    gspo = config.algorithm.gspo
    assert (gspo.eps_low, gspo.eps_high, gspo.scale) == (3e-4, 4e-4, "std")


@pytest.mark.parametrize("name", ["math_gspo", *HACPO])
def test_gspo_times_two_has_twice_the_answers_and_updates(name):
    doubled = "algorithm.name=gspo training.group_size=16 training.mini_batch_prompts=32"
    once, twice = load(name, "algorithm.name=gspo"), load(name, *doubled.split())
    assert {agent.algorithm.name for agent in twice.agents} == {"gspo"}
    assert twice.training.group_size == 2 * once.training.group_size
    assert twice.training.prompts_per_step // twice.training.mini_batch_prompts == 4
    assert once.training.prompts_per_step // once.training.mini_batch_prompts == 2


@pytest.mark.parametrize("name", HACPO)
@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("capability_baseline=false", "capability_baseline", False),
        ("discrepancy=false", "discrepancy", False),
        ("alpha=0", "alpha", 0.0),
        ("clip_cross=false", "clip_cross", False),
        ("clip_step=0", "clip_step", 0.0),
    ],
)
def test_each_mechanism_is_switched_off_alone(name, word, key, value):
    expected = load(name).model_dump()
    assert expected["algorithm"]["hacpo"][key] != value
    for holder in (expected, *expected["agents"]):
        holder["algorithm"]["hacpo"][key] = value
    assert load(name, f"algorithm.hacpo.{word}").model_dump() == expected


@pytest.mark.parametrize("name", PAPERS)
def test_one_evaluation_has_best_of_thirty_and_greedy_averages(name):
    """The paper's table 1: best@30 on AIME 2025, avg@1 on the rest."""
    config = load(name)
    for benchmark in config.task.eval:
        draws = config.draws(benchmark)
        if benchmark == "aime25":
            assert (draws.samples, draws.best_of, draws.headline) == (30, (30,), "best@30")
            assert draws.temperature > 0
        else:
            assert (draws.samples, draws.temperature) == (1, 0.0)
            assert draws.headline == "accuracy"
        assert draws.max_new_tokens == config.evaluation.max_new_tokens


@pytest.mark.parametrize("name", PAPERS)
def test_the_seven_benchmarks_of_the_paper_are_read_as_published(name, tmp_path):
    found = sources(load(name))
    assert set(found) == set(ROWS)
    for key, (row, prompt, answer) in ROWS.items():
        file = tmp_path / f"{key}.jsonl"
        file.write_text(json.dumps(row) + "\n")
        (example,) = load_examples(found[key].model_copy(update={"path": str(file)}), key)
        assert (example.prompt, example.answer) == (prompt, answer)


@pytest.mark.parametrize("name", PAPERS)
def test_prompts_ask_for_a_box(name):
    asked = render(load(name).task.template, Example(id="x", prompt="What is 1+1?", answer="2"))
    assert asked.startswith("What is 1+1?\n")
    assert asked.endswith(r"\boxed{}.")


@pytest.mark.parametrize("name", PAPERS)
def test_thinking_is_switched_off_for_the_one_agent_that_has_the_switch(name):
    options = {agent.model: agent.chat_options for agent in load(name).agents}
    switched = {"Qwen/Qwen3-4B": {"enable_thinking": False}}
    if name != "hacpo_qwen3_4b_instruct_state":
        switched = {}
    assert {model: chosen for model, chosen in options.items() if chosen} == switched


def test_the_real_files_are_read_whole(shared_dir, tmp_path):
    """All rows but at most 0.1% become examples; without the files, rows laid out like them."""
    for key, source in sources(load("math_gspo")).items():
        size, file = SIZES[key], shared_dir / source.path
        if not file.is_file():
            file = tmp_path / f"{key}.jsonl"
            file.write_text((json.dumps(ROWS[key][0]) + "\n") * size)
        examples = load_examples(source.model_copy(update={"path": str(file)}), key)
        assert size * 0.999 <= len(examples) <= size
        if key == "train":
            assert len(examples) >= 58 * 128
