"""Prompt templates and boxed answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Example, last_boxed, render


def example(prompt):
    return Example(id="1", prompt=prompt, answer="a")


def test_solution_is_the_answer_by_default():
    assert example("p").solution == "a"
    assert Example(id="1", prompt="p", answer="a", solution="s").solution == "s"


@pytest.mark.parametrize(
    ("template", "prompt", "text"),
    [
        ("{prompt}", "1+1=", "1+1="),
        ("Q: {prompt}\nA:", "1+1", "Q: 1+1\nA:"),
        ("{prompt} {prompt}", "x", "x x"),
        (r"{prompt} Put it in \boxed{}.", r"\frac{1}{2}", r"\frac{1}{2} Put it in \boxed{}."),
        ("{prompt}", "{0} {x!r:>{prompt}} {prompt} %s", "{0} {x!r:>{prompt}} {prompt} %s"),
    ],
)
def test_render(template, prompt, text):
    assert render(template, example(prompt)) == text


@given(st.text())
def test_any_problem_text_comes_through(prompt):
    assert render("<{prompt}>", example(prompt)) == f"<{prompt}>"


@pytest.mark.parametrize("template", ["", "no place", "{ prompt }", "{question}"])
def test_template_without_a_place(template):
    with pytest.raises(UserError, match=r"must contain \{prompt\}"):
        render(template, example("p"))


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so \boxed{7}.", "7"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{x = \boxed{3} y}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ a \right.}", r"\left\{ a \right."),
        (r"\boxed{a \\{b}}", r"a \\{b}"),
        (r"\boxed {5}", "5"),
        (r"so $\boxed 2$.", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{3} and then \boxed{4", "3"),
        (r"} \boxed{8} {", "8"),
        (r"\boxed{3", None),
        (r"\boxed", None),
        ("no box {3}", None),
        ("", None),
    ],
)
def test_last_boxed(text, boxed):
    assert last_boxed(text) == boxed


@given(st.text(alphabet="ab{}\\ \n"), st.text(alphabet="xy+ "))
def test_last_box_wins_after_any_text(before, content):
    # A backslash before the box would make its own backslash a line break of TeX.
    assert last_boxed(f"{before} \\boxed{{{content}}}") == content


def test_a_million_boxes_that_never_close():
    assert last_boxed(r"\boxed{" * 150_000) is None
