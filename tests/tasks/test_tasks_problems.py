"""A run's problems: encoded for every agent, filtered aloud, shuffled by the seed alone."""

import json
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.agents import byte_tokenizer, character_tokenizer
from hacpo_jax.config import Arithmetic, Jsonl, Task
from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Example
from hacpo_jax.tasks.problems import encode_problems, load_examples, step_indices

EXAMPLES = [Example(id=str(i), prompt="é" * n, answer="a") for i, n in enumerate((2, 5, 3, 1))]
TASK = Task.model_validate(
    {
        "train": {"kind": "arithmetic", "size": 1},
        "eval": {"x": {"kind": "arithmetic", "size": 1}},
        "template": "<{prompt}>",
    }
)
BYTES, CHARACTERS = byte_tokenizer(), character_tokenizer(["é<>"])


def agent(name, tokenizer, positions=100) -> Any:
    model = types.SimpleNamespace(max_position_embeddings=positions)
    return types.SimpleNamespace(name=name, tokenizer=tokenizer, model=model)


def encoded(*agents, max_new_tokens=10, **task):
    task = TASK.model_copy(update=task)
    return encode_problems(
        EXAMPLES,
        agents,
        task,
        max_new_tokens=max_new_tokens,
        answers="sampling.max_new_tokens",
        field="task.train",
    )


def test_every_agent_gets_the_same_problems_in_its_own_tokens():
    problems = encoded(agent("b", BYTES), agent("c", CHARACTERS), agent("d", BYTES))
    assert problems.texts == tuple(f"<{e.prompt}>" for e in EXAMPLES)
    assert [len(row) for row in problems.tokens[0]] == [6, 12, 8, 4]
    assert [len(row) for row in problems.tokens[1]] == [4, 7, 5, 3]
    assert problems.tokens[2] == problems.tokens[0]
    for tokenizer, rows in ((BYTES, problems.tokens[0]), (CHARACTERS, problems.tokens[1])):
        assert tuple(tokenizer.decode(row) for row in rows) == problems.texts
    assert problems.dropped == 0
    assert problems.prompts(1, np.array([2, 0])) == [problems.tokens[1][2], problems.tokens[1][0]]


def test_the_first_problems_alone():
    problems = encoded(agent("b", BYTES), agent("c", CHARACTERS)).first(2)
    assert len(problems) == len(problems.texts) == 2
    assert [len(rows) for rows in problems.tokens] == [2, 2]
    assert problems.examples == tuple(EXAMPLES[:2])


def test_a_too_long_prompt_is_an_error_that_counts_and_names():
    """A prompt of 558 tokens, limit 512: never cut in silence."""
    with pytest.raises(
        UserError,
        match=r"agent b\) = 12: 2 of 4 prompts exceed task.max_prompt_tokens = 7; raise it or set",
    ):
        encoded(agent("c", CHARACTERS), agent("b", BYTES), max_prompt_tokens=7)


def test_or_it_is_left_out_for_every_agent_and_counted():
    problems = encoded(
        agent("c", CHARACTERS), agent("b", BYTES), max_prompt_tokens=7, overlong="drop"
    )
    assert [example.id for example in problems.examples] == ["0", "3"]
    assert [len(row) for row in problems.tokens[0]] == [4, 3]
    assert [len(row) for row in problems.tokens[1]] == [6, 4]
    assert problems.texts == ("<éé>", "<é>")
    assert problems.dropped == 2


def test_the_limit_leaves_room_for_the_answer():
    """Prompts of 6, 12, 8 and 4 bytes and 10 of the answer: 22 positions hold all."""
    encoded(agent("b", BYTES, positions=22))
    with pytest.raises(UserError) as caught:
        encoded(agent("b", BYTES, positions=21))
    assert str(caught.value) == (
        "sampling.max_new_tokens = 10: leaves prompts of agent b 11 of its 21 positions, and they "
        "take up to 12; use 9 or less, or set task.overlong=drop to leave them out"
    )
    with pytest.raises(UserError, match=r"max_new_tokens = 10: leaves no .* b; use less than 10"):
        encoded(agent("b", BYTES, positions=10))


def test_the_key_named_is_the_one_that_sets_the_length():
    for positions in (20, 10):
        agents = [agent("b", BYTES, positions=positions)]
        with pytest.raises(UserError, match=r"^evaluation\.max_new_tokens = 10: l"):
            encode_problems(
                EXAMPLES,
                agents,
                TASK,
                max_new_tokens=10,
                answers="evaluation.max_new_tokens",
                field="task.eval.x",
            )


def test_no_prompt_left_or_an_empty_one():
    with pytest.raises(UserError, match=r"b\) = 12: 4 of 4 .* task\.max_prompt_tokens = 2; raise"):
        encoded(agent("b", BYTES), max_prompt_tokens=2, overlong="drop")
    with pytest.raises(UserError, match=r"b 3 of its 13 positions.* up to 12; use 1 or less$"):
        encoded(agent("b", BYTES, positions=13), overlong="drop")
    with pytest.raises(UserError, match=r"b 1 of its 11 positions.* up to 12; shorten prompts$"):
        encoded(agent("b", BYTES, positions=11), overlong="drop")
    empty = TASK.model_copy(update={"template": "{prompt}"})
    silent = [Example(id="0", prompt="", answer="a")]
    with pytest.raises(UserError, match="= 0: 1 of 1 prompts are empty; put text"):
        encode_problems(
            silent,
            [agent("b", BYTES)],
            empty,
            max_new_tokens=1,
            answers="sampling.max_new_tokens",
            field="task.train",
        )


def test_arithmetic_from_a_section():
    source = Arithmetic(
        kind="arithmetic", size=5, low=3, high=7, operations="*", template="{a} {op} {b}: "
    )
    for example in load_examples(source, "task.train"):
        a, op, b = example.prompt.removesuffix(": ").split(" ")
        assert op == "*"
        assert 3 <= int(a) <= 7 >= int(b) >= 3
        assert example.answer == str(int(a) * int(b))
    with pytest.raises(UserError, match=r"task\.eval\.x\.size = 5: the held_out split has only"):
        load_examples(source.model_copy(update={"split": "held_out", "high": 4}), "task.eval.x")


def test_jsonl_from_a_section(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"q": f"q{i}", "meta": {"a": f"#### {i}"}, "s": f"so {i}"} for i in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Jsonl(
        kind="jsonl",
        path=str(path),
        prompt="q",
        answer="meta.a",
        solution="s",
        answer_pattern="#### (.*)",
        limit=3,
    )
    examples = load_examples(source, "task.train")
    assert [(e.prompt, e.answer, e.solution) for e in examples] == [
        (f"q{i}", str(i), f"so {i}") for i in range(3)
    ]
    with pytest.raises(UserError, match=r"task\.train\.path = .*: cannot be read"):
        load_examples(source.model_copy(update={"path": str(tmp_path / "no")}), "task.train")


def test_rows_that_are_left_out_are_reported(tmp_path, caplog):
    path = tmp_path / "data.jsonl"
    path.write_text('{"problem": "p", "answer": "1"}\n' * 2 + '{"problem": "p"}\n')
    source = Jsonl(kind="jsonl", path=str(path), max_bad_fraction=0.5)
    assert len(load_examples(source, "task.eval.x")) == 2
    (record,) = caplog.records
    assert "task.eval.x: 1 of 3 rows left out (line 3: " in record.getMessage()


@given(
    seed=st.integers(0, 2**31 - 1),
    num_problems=st.integers(1, 40),
    count=st.integers(1, 40),
    steps=st.integers(1, 8),
)
def test_no_pass_over_the_data_takes_a_problem_twice(seed, num_problems, count, steps):
    count = min(count, num_problems)
    drawn = np.concatenate([step_indices(seed, num_problems, count, s) for s in range(steps)])
    assert len(drawn) == steps * count
    whole = num_problems // count * count  # a step never spans two passes
    for start in range(0, len(drawn), whole):
        one_pass = drawn[start : start + whole].tolist()
        assert len(set(one_pass)) == len(one_pass)
        assert set(one_pass) <= set(range(num_problems))


def test_order_depends_on_seed_and_pass_alone():
    """The next draw after resuming equals the uninterrupted run's."""
    first = step_indices(0, 50, 50, 0)
    np.testing.assert_array_equal(first, step_indices(0, 50, 50, 0))
    np.testing.assert_array_equal(step_indices(0, 50, 5, 3), first[15:20])
    assert not np.array_equal(first, step_indices(1, 50, 50, 0))
    assert not np.array_equal(first, step_indices(0, 50, 50, 1))
