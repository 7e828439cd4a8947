"""Generated arithmetic: right answers, disjoint splits, no repeats."""

import itertools
import os
import re
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_jax.errors import UserError
from hacpo_jax.tasks import arithmetic_examples


def all_of(split, **settings):
    """Every problem of a split: the error for an impossible size tells how many there are."""
    with pytest.raises(UserError) as caught:
        arithmetic_examples(split=split, size=10**6, **settings)
    size = int(re.search(r"only (\d+) distinct", str(caught.value))[1])
    return arithmetic_examples(split=split, size=size, **settings)


def test_prompts_and_answers_by_hand():
    examples = {
        e.id: e
        for split in ("train", "held_out")
        for e in all_of(split, operands=(0, 12), operations="+-*")
    }
    assert len(examples) == 3 * 13 * 13
    for problem, answer in {"12+7": "19", "3-11": "-8", "12*12": "144", "0+0": "0"}.items():
        assert examples[problem].prompt == f"{problem}="
        assert examples[problem].answer == examples[problem].solution == answer


def test_template_of_the_prompt():
    (example,) = arithmetic_examples(
        split="train",
        size=1,
        operands=(4, 4),
        template="{a} {op} {b} = {a}?",
        held_out_fraction=0.001,
    )
    assert (example.prompt, example.answer) == ("4 + 4 = 4?", "8")


def test_the_two_splits_are_all_problems():
    train = [e.id for e in all_of("train", operands=(5, 14), operations="-+", seed=3)]
    held_out = [e.id for e in all_of("held_out", operands=(5, 14), operations="-+", seed=8)]
    every = {f"{a}{op}{b}" for a, op, b in itertools.product(range(5, 15), "+-", range(5, 15))}
    assert len(train) + len(held_out) == len(every)
    assert set(train) | set(held_out) == every


def test_commuted_problems_share_a_side():
    train = {e.id for e in all_of("train", operands=(0, 30), operations="+*")}
    held_out = [e.id for e in all_of("held_out", operands=(0, 30), operations="+*")]
    commuted = {re.sub(r"(\d+)([+*])(\d+)", r"\3\2\1", problem) for problem in held_out}
    assert commuted == set(held_out)
    assert not commuted & train


@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(0, 50),
    span=st.integers(9, 10**8),
    operations=st.sampled_from(["+", "-", "*", "+-", "*-+"]),
    seeds=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 5)),
    fraction=st.sampled_from([0.2, 0.5]),
)
def test_splits_never_meet(low, span, operations, seeds, sizes, fraction):
    common = {
        "operands": (low, low + span),
        "operations": operations,
        "held_out_fraction": fraction,
    }
    try:
        train = arithmetic_examples(split="train", size=sizes[0], seed=seeds[0], **common)
        held_out = arithmetic_examples(split="held_out", size=sizes[1], seed=seeds[1], **common)
    except UserError as error:
        assert span < 20, error
        return
    names = [e.id for e in train] + [e.id for e in held_out]
    assert len(train) == sizes[0] and len(held_out) == sizes[1]
    assert len(set(names)) == len(names)
    for example in (*train, *held_out):
        a, op, b = re.fullmatch(r"(\d+)([-+*])(\d+)=", example.prompt).groups()
        assert low <= int(a) <= low + span and low <= int(b) <= low + span and op in operations
        a, b = Fraction(a), Fraction(b)
        assert int(example.answer) == {"+": a + b, "-": a - b, "*": a * b}[op]


def test_held_out_share():
    held_out = all_of("held_out", operands=(0, 99), operations="-", held_out_fraction=0.2)
    # 10,000 independent draws: five standard deviations are 0.02.
    assert abs(len(held_out) / 10_000 - 0.2) < 0.02


def test_same_problems_in_another_process():
    arguments = "split='held_out', size=20, operands=(0, 99), seed=5"
    code = f"from hacpo_jax.tasks import *; print([e.id for e in arithmetic_examples({arguments})])"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    here = arithmetic_examples(split="held_out", size=20, operands=(0, 99), seed=5)
    assert shown.strip() == str([e.id for e in here])


def test_seeds_give_other_problems():
    first, second = (
        arithmetic_examples(split="train", size=30, operands=(0, 999), seed=seed) for seed in (0, 1)
    )
    assert {e.id for e in first} != {e.id for e in second}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"split": "test"}, "split"),
        ({"size": 0}, "size"),
        ({"size": 101}, "size"),
        ({"operands": (5, 4)}, "operands"),
        ({"operands": (-1, 4)}, "operands"),
        ({"operands": (0, 10**9 + 1)}, "operands"),
        ({"operations": "/"}, "operations"),
        ({"operations": ""}, "operations"),
        ({"operations": "++"}, "operations"),
        ({"held_out_fraction": 0.0}, "held_out_fraction"),
        ({"held_out_fraction": 1.0}, "held_out_fraction"),
        ({"template": "{a}+{b}"}, "template"),
    ],
)
def test_bad_arguments(changed, field):
    with pytest.raises(UserError) as caught:
        arithmetic_examples(**{"split": "train", "size": 1, "operands": (0, 9), **changed})
    assert caught.value.field == field
