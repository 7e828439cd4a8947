"""Tasks of reasoning-gym, with the library itself."""

import json
import re

import pytest
import reasoning_gym

from hacpo_jax.config import ReasoningGym, parse_config
from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Verdict, gym_examples, make_verifier
from hacpo_jax.tasks.problems import load_examples

RIGHT, WRONG = Verdict(1.0, valid=True), Verdict(0.0, valid=True)


@pytest.fixture(scope="module")
def verifier():
    with make_verifier("reasoning_gym", workers=2, timeout=30.0) as verifier:
        yield verifier


def test_chain_sums_add_up(verifier):
    options = {"min_terms": 2, "max_terms": 3, "max_digits": 2}
    examples = gym_examples("chain_sum", split="train", size=30, seed=5, options=options)
    assert len({example.prompt for example in examples}) == len(examples) == 30
    pairs = []
    for example in examples:
        sum_ = re.search(r"problem: ([-+ \d]+) =", example.prompt)
        assert sum_ is not None
        terms = re.findall(r"[-+]?\d+", sum_[1].replace(" ", ""))
        assert 2 <= len(terms) <= 3
        value = sum(map(int, terms))
        assert example.solution == str(value)
        pairs += [
            (f"It is \\boxed{{{value}}}.", example.answer),
            (f"Hm <answer> {value}\n</answer> yes", example.answer),
            (f" {value}\n", example.answer),
            (f"\\boxed{{{value + 1}}}", example.answer),
        ]
    assert verifier.score(pairs) == [RIGHT, RIGHT, RIGHT, WRONG] * 30


def test_partial_credit_is_none(verifier):
    """Fault: the library gives a wrong answer that contains the right one two thirds."""
    (example,) = gym_examples("chain_sum", split="train", size=1)
    text = f"{example.solution} or so"
    task = json.loads(example.answer)
    tasks = reasoning_gym.create_dataset("chain_sum", seed=0, size=task["size"])
    assert 0 < tasks.score_answer(text, tasks[task["index"]]) < 1
    assert verifier.score([(text, example.answer)]) == [WRONG]


def test_scorers_that_raise_are_wrong_answers(verifier):
    (example,) = gym_examples("prime_factorization", split="train", size=1)
    pairs = [("no idea", example.answer), (example.solution, example.answer)]
    assert verifier.score(pairs) == [WRONG, RIGHT]


@pytest.mark.parametrize("name", ["ransom_note", "isomorphic_strings", "acre", "word_ladder"])
def test_problems_are_the_same_in_every_process(verifier, name):
    """Fault: problems made from the order of a set, or from the size of the data set."""
    examples = gym_examples(name, split="held_out", size=4, held_out_fraction=0.5)
    assert examples == gym_examples(name, split="held_out", size=4, held_out_fraction=0.5)
    pairs = [(example.solution, example.answer) for example in examples]
    assert verifier.score(pairs) == [RIGHT] * 4


def test_model_text_that_a_scorer_evaluates_harms_nobody():
    """Some scorers parse with SymPy, which evaluates: only workers do, within the wall clock."""
    (example,) = gym_examples("countdown", split="train", size=1)
    bomb = "\\boxed{9**9**9**9}"
    with make_verifier("reasoning_gym", workers=1, timeout=3.0) as own:
        verdicts = own.score([(bomb, example.answer), (example.solution, example.answer)])
    assert verdicts[0] == WRONG or not verdicts[0].valid
    assert verdicts[1] == RIGHT


def test_splits_never_meet():
    common = {"size": 60, "options": {"max_terms": 2, "max_digits": 1, "min_digits": 1}}
    common["held_out_fraction"] = 0.5
    train = gym_examples("chain_sum", split="train", seed=1, **common)
    held_out = gym_examples("chain_sum", split="held_out", seed=2, **common)
    assert not {e.prompt for e in train} & {e.prompt for e in held_out}


def test_more_problems_than_there_are():
    with pytest.raises(UserError, match=r"size = 300: \d+ draws gave only \d+ distinct problems"):
        gym_examples("coin_flip", split="held_out", size=300, held_out_fraction=0.02)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"name": "chainsum"}, "name = 'chainsum': no task of reasoning-gym; did you mean chain_s"),
        ({"options": {"terms": 2}}, "options = 'terms': chain_sum has no such option; known are "),
        ({"options": {"min_terms": -1}}, "chain_sum refuses them: min_terms must be positive"),
        ({"size": 0}, "size = 0"),
        ({"held_out_fraction": 0.0}, "held_out_fraction = 0.0"),
    ],
)
def test_bad_arguments(arguments, told):
    with pytest.raises(UserError) as caught:
        gym_examples(**{"name": "chain_sum", "split": "train", "size": 1, **arguments})
    assert told in str(caught.value)


def test_without_the_library(tmp_path, monkeypatch):
    (tmp_path / "reasoning_gym.py").write_text("raise ImportError('gone')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        UserError, match=r"reasoning_gym \(gone\); pip install 'hacpo-jax\[tasks\]'"
    ):
        gym_examples("chain_sum", split="train", size=1)
    with pytest.raises(UserError, match="cannot be used by worker processes: ImportError: gone"):
        make_verifier("reasoning_gym", workers=1)


def test_another_gold_or_another_release_is_no_silent_zero(verifier):
    (example,) = gym_examples("chain_sum", split="train", size=1)
    other = json.dumps({**json.loads(example.answer), "digest": "00"})
    plain, changed = verifier.score([("3", "3"), ("3", other)])
    assert not plain.valid and "use another verifier" in str(plain.error)
    assert not changed.valid and "another problem of the same number" in str(changed.error)


def test_auto_knows_its_problems():
    (example,) = gym_examples("chain_sum", split="train", size=1)
    with make_verifier("auto", workers=1) as verifier:
        pairs = [(example.solution, example.answer), (r"\boxed{1/2}", "0.5"), ("(B)", "B")]
        assert verifier.score(pairs) == [RIGHT] * 3


def test_a_section_of_the_config():
    source = ReasoningGym(kind="reasoning_gym", name="chain_sum", size=2, options={"max_terms": 2})
    assert load_examples(source, "task.train") == gym_examples(
        "chain_sum", split="train", size=2, options={"max_terms": 2}
    )
    with pytest.raises(UserError, match=r"task\.train\.name = 'nope'"):
        load_examples(source.model_copy(update={"name": "nope"}), "task.train")


SIDES = {"kind": "reasoning_gym", "name": "chain_sum", "size": 8}
OTHER = {"kind": "preset", "name": "gsm8k"}


@pytest.mark.parametrize(
    ("train", "held_out", "verifier", "told"),
    [
        (
            SIDES,
            {**SIDES, "split": "held_out", "held_out_fraction": 0.2},
            "reasoning_gym",
            r"task\.eval\.x\.held_out_fraction = 0\.2: must equal",
        ),
        (SIDES, SIDES, "math", "task.verifier.name = 'math': cannot check the reasoning-gym"),
        (OTHER, SIDES, "exact", "cannot check the reasoning-gym problems of x; use reasoning_gym"),
        (SIDES, OTHER, "reasoning_gym", "cannot check the problems of x, .* use auto"),
        (SIDES, OTHER, "auto", None),
    ],
)
def test_what_a_run_refuses(train, held_out, verifier, told):
    data = {
        "run_dir": "runs/x",
        "task": {"train": train, "eval": {"x": held_out}, "verifier": {"name": verifier}},
        "agents": [{"name": "a", "model": "somewhere"}],
        "algorithm": {"name": "gspo"},
        "sampling": {"max_new_tokens": 4},
        "training": {"steps": 1, "prompts_per_step": 4, "mini_batch_prompts": 4},
    }
    if told is None:
        parse_config(data)
        return
    with pytest.raises(UserError, match=told):
        parse_config(data)
