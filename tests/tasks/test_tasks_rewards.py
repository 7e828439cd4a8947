"""Verifiers that compare text, sums of verifiers, and what the config says of them."""

import textwrap

import pytest

from hacpo_jax.config import VerifierPart, load_config, parse_config, save_config
from hacpo_jax.config.task import VERIFIERS
from hacpo_jax.errors import UserError
from hacpo_jax.tasks import make_verifier
from hacpo_jax.tasks.auto_reward import auto_reward
from hacpo_jax.tasks.text_rewards import choice_reward, format_reward, gsm8k_reward
from hacpo_jax.tasks.verifiers import BUILT_IN


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("#### 18", "9 * 2 = <<9*2=18>>18\n#### 18", 1.0),
        ("so 18 eggs.\n#### 18", "18", 1.0),
        ("#### $1,234.00", "1234", 1.0),
        ("#### 18\nwhich is 3 more than 15", "18", 1.0),
        (r"\boxed{18}, not 19", "18", 1.0),
        (r"#### 19, I mean \boxed{18 eggs}", "18", 1.0),
        (r"\boxed{x} is 18", "18", 1.0),
        ("The answer is 18 (half of 36).", "18", 1.0),
        ("The answer is -$5", "-5", 1.0),
        ("She has 12, then 18 left", "18", 1.0),
        ("1{,}234", "1,234", 1.0),
        ("18.50", "18.5", 1.0),
        ("180", "18", 0.0),
        ("18, no, 19", "18", 0.0),
        ("-18", "18", 0.0),
        ("eighteen", "18", 0.0),
        ("#### ", "18", 0.0),
        ("", "18", 0.0),
    ],
)
def test_gsm8k(response, answer, reward):
    assert gsm8k_reward(response, answer) == reward


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{b}", "B"),
        (r"\boxed{B. wood}", "B"),
        (r"\boxed{A} or rather \boxed{\textbf{B}}", "B"),
        ("The answer is B.", "B"),
        ("The correct answer is (B) wood", "B"),
        ("**Answer:** B", "B"),
        ("Answer: option B", "B"),
        ("answer is: $B$", "B"),
        ("A is iron, which does not burn.\nB", "B"),
        ("Hm.\n(B) wood", "B"),
        ("Hm.\nB. wood", "B"),
        ("Iron (A) does not burn, so it must be (B), clearly", "B"),
        ("The answer is A. No: the answer is B.", "B"),
        (r"The answer is A, hence \boxed{B}", "B"),
        ("A fire needs wood", None),
        ("Bread burns", None),
        ("the answer is bread", None),
        (r"\boxed{bread}", None),
        (r"\boxed{}", None),
        ("", None),
    ],
)
def test_choice(response, letter):
    rewards = {gold: choice_reward(response, gold) for gold in "ABCDE"}
    assert rewards == {gold: float(gold == letter) for gold in "ABCDE"}


def test_choice_of_golds_with_markup_and_without_letters():
    assert choice_reward("The answer is C", r"\text{(C)}") == 1.0
    with pytest.raises(ValueError, match="must be a letter, not '12'"):
        choice_reward("C", "12")


TAGS = r"\A<think>.*</think>\s*<answer>[^<]+</answer>\s*\Z"


@pytest.mark.parametrize(
    ("response", "pattern", "reward"),
    [
        (r"so \boxed{2}", None, 1.0),
        (r"so \boxed{ }", None, 0.0),
        (r"so \boxed{2", None, 0.0),
        ("<think>a\nb</think>\n<answer>2</answer>", TAGS, 1.0),
        ("well <think>a</think><answer>2</answer>", TAGS, 0.0),
        ("<think>a</think><answer></answer>", TAGS, 0.0),
    ],
)
def test_format(response, pattern, reward):
    assert format_reward(response, "not looked at", pattern=pattern) == reward


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("The answer is B.", "B", 1.0),
        (r"\boxed{\frac{2}{4}}", r"\frac12", 1.0),
        (r"\boxed{12}", "13", 0.0),
        ("it is $x$", "x", 1.0),
    ],
)
def test_auto(response, answer, reward):
    assert auto_reward(response, answer) == reward


def test_the_names_are_those_of_the_config():
    assert set(VERIFIERS) == set(BUILT_IN)


SUM = [
    {"name": "math", "weight": 0.75},
    {"name": "format", "weight": 0.25, "pattern": "</think>"},
]


def test_weighted_sums():
    pairs = [
        (r"</think> \boxed{\frac12}", "0.5"),
        (r"\boxed{0.5}", "0.5"),
        (r"</think> \boxed{2}", "0.5"),
        ("2", "0.5"),
    ]
    for parts in (SUM, [VerifierPart.model_validate(part) for part in SUM]):
        with make_verifier(parts) as verifier:
            assert [verdict.reward for verdict in verifier.score(pairs)] == [1.0, 0.75, 0.25, 0.0]


def test_a_part_that_fails_makes_the_answer_invalid():
    """Fault: a silent 0 in the place of what could not be graded."""
    with make_verifier([{"name": "format"}, {"name": "choice"}], workers=1) as verifier:
        failed, graded = verifier.score([(r"\boxed{A}", "12"), (r"\boxed{A}", "B")])
    assert not failed.valid and "must be a letter" in str(failed.error)
    assert (graded.reward, graded.valid) == (1.0, True)


def test_own_functions_with_options(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(
        textwrap.dedent("""
        def brief(response, answer, *, words=3):
            return float(len(response.split()) <= words)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with make_verifier([{"name": "own_rewards:brief", "words": 1}], workers=1) as verifier:
        assert [v.reward for v in verifier.score([("a", ""), ("a b", "")])] == [1.0, 0.0]
    with pytest.raises(UserError, match="unexpected keyword argument 'word'"):
        make_verifier([{"name": "own_rewards:brief", "word": 1}], workers=1)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], "an empty list"),
        ([{"name": "mathe"}], "verifier.0.name = 'mathe': did you mean 'math'?"),
        ([{"weight": 2.0}], "must be 'exact'"),
        ([{"name": "math", "weight": 0.0}], "verifier.0.weight = 0.0: of 'math': must be "),
        (
            [{"name": "math"}, {"name": "format", "pattern": "("}],
            "verifier.1.pattern = '(': not a regular expression",
        ),
        (
            [{"name": "exact"}, {"name": "format", "patern": "x"}],
            "verifier = 'exact + format': cannot be used by worker processes: format: TypeError: "
            "got an unexpected keyword argument 'patern'; its options: pattern",
        ),
        (
            [{"name": "exact", "pattern": "x"}],
            "verifier = 'exact': cannot be used by worker processes: TypeError: "
            "got an unexpected keyword argument 'pattern'; its options: none",
        ),
        ([{"name": "no_such_module:f"}], "install it, or start in its folder, or add that to PYTH"),
        ([{"name": "json:no_such_function"}], "name a function that the module has"),
        ([{"name": "json:decoder"}], "json:decoder is not callable; name a function"),
    ],
)
def test_bad_parts(parts, told):
    with pytest.raises(UserError) as caught:
        make_verifier(parts, workers=1)
    assert told in str(caught.value)


def config_with(verifier, max_reward=1.0):
    return {
        "run_dir": "runs/x",
        "task": {
            "train": {"kind": "arithmetic", "size": 8},
            "eval": {"x": {"kind": "arithmetic", "size": 8, "split": "held_out"}},
            "verifier": verifier,
        },
        "agents": [{"name": "a", "model": "somewhere"}],
        "algorithm": {"name": "gspo", "max_reward": max_reward},
        "sampling": {"max_new_tokens": 4},
        "training": {"steps": 1, "prompts_per_step": 4, "mini_batch_prompts": 4},
    }


def test_a_list_in_the_config(tmp_path):
    config = parse_config(config_with({"name": SUM}))
    parts = config.task.verifier.name
    assert isinstance(parts, list)
    assert [(part.name, part.weight, part.model_extra) for part in parts] == [
        ("math", 0.75, {}),
        ("format", 0.25, {"pattern": "</think>"}),
    ]
    assert config.task.verifier.label == "0.75 math + 0.25 format"
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config
    assert parse_config(config_with({"name": "math"})).task.verifier.label == "math"


@pytest.mark.parametrize(
    ("verifier", "max_reward", "told"),
    [
        ({"name": SUM}, 2.0, "algorithm.max_reward = 2.0: the weights .* add up to 1; set it"),
        (
            {"name": [{"name": "math"}, {"name": "format", "weight": 0.1}]},
            1.0,
            "algorithm.max_reward = 1.0: the weights .* add up to 1.1",
        ),
        ({"name": []}, 1.0, r"task\.verifier\.name = \[\]: must not be empty"),
        ({"name": ["math"]}, 1.0, r"task\.verifier\.name\.0 = 'math': must be a mapping"),
        ({"name": [{"name": "maths"}]}, 1.0, "task.verifier.name.0.name = 'maths': must be exact"),
        (
            {"name": [{"name": "math", "weight": -1}]},
            1.0,
            r"name\.0\.weight = -1: must be a number above 0",
        ),
    ],
)
def test_what_the_config_refuses(verifier, max_reward, told):
    with pytest.raises(UserError, match=told):
        parse_config(config_with(verifier, max_reward))


def test_the_largest_reward_of_own_functions_is_not_known_beforehand():
    parse_config(config_with({"name": [{"name": "mine.mod:f", "weight": 3}]}, 7.0))
