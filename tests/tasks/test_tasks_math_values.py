"""What is told of answers without SymPy, against SymPy and Python's own arithmetic."""

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from hacpo_jax.tasks.math_text import plain_form, plain_number
from hacpo_jax.tasks.math_values import surely_differ, value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3", 3),
        ("-2+3*4", 10),
        ("2-3-4", -5),
        (r"\frac{1}{2}", 0.5),
        (r"\frac12", None),  # read by `plain_form` first: 12 is one number here
        (r"2\sqrt{13}", 2 * math.sqrt(13)),
        (r"\frac{3\sqrt{3}}{4}", 0.75 * math.sqrt(3)),
        (r"\sqrt[3]{8}", 2),
        (r"2^{10}", 1024),
        (r"2^5\cdot3", 96),
        (r"2^10", None),
        (r"(1+2)^2/3", 3),
        (r"-3^2", -9),
        (r"18+2\pi", 18 + 2 * math.pi),
        (r"6\frac{1}{5}", None),  # a mixed number or a product
        (r"\sqrt{-1}", None),
        ("(-8)^{0.5}", None),
        ("1/0", None),
        ("9^{9^{9^{9}}}", None),
        ("9^{65}", None),
        ("2x", None),
        ("(1", None),
        ("1)", None),
        ("", None),
        ("(" * 60 + "3" + ")" * 60, 3),
    ],
)
def test_values(text, wanted):
    found = value(text)
    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert found == pytest.approx(wanted, rel=1e-12)


@st.composite
def expressions(draw, depth=3):
    """LaTeX and the same for SymPy."""
    kind = draw(st.sampled_from(["number", "pi", "+", "-", "*", "frac", "sqrt", "^"]))
    if depth == 0 or kind in ("number", "pi"):
        number = draw(st.integers(1, 99))
        return (r"\pi", "pi") if kind == "pi" else (str(number), str(number))
    one, two = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    return {
        "+": (f"{one[0]}+{two[0]}", f"({one[1]}+{two[1]})"),
        "-": (f"{one[0]}-({two[0]})", f"({one[1]}-({two[1]}))"),
        "*": (rf"({one[0]})\cdot({two[0]})", f"({one[1]})*({two[1]})"),
        "frac": (rf"\frac{{{one[0]}}}{{{two[0]}}}", f"({one[1]})/({two[1]})"),
        "sqrt": (rf"\sqrt{{{one[0]}}}", f"sqrt({one[1]})"),
        "^": (f"({one[0]})^{{2}}", f"({one[1]})**2"),
    }[kind]


@given(expressions())
def test_values_are_those_of_sympy(pair):
    wanted = sympy.sympify(pair[1]).evalf()
    found = value(pair[0])
    if found is None:  # a root of a negative number, or a division by 0
        assert not wanted.is_real or not wanted.is_finite
    else:
        assert found == pytest.approx(float(wanted), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("3", "4"),
        ("3", r"2\sqrt{2}"),
        (r"\sqrt{x}", "1076"),
        ("14", "[-3,2]"),
        (r"\frac{1}{2}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("2x+1", "2y+1"),
        (r"25\pi", r"\frac{128}{75}"),
    ],
)
def test_answers_that_differ(one, two):
    assert surely_differ(one, two) and surely_differ(two, one)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("2", r"\sqrt{4}"),
        ("0.333", r"\frac{1}{3}"),
        ("5", "5m"),
        ("5", r"5\text{ m}"),
        ("5", "x=5"),
        ("5", r"x \in \{5\}"),
        (r"50\%", "0.5"),
        (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
        ("(0,1)", "0<x<1"),
        ("2x+2", "2(x+1)"),
        ("-1", "i^2"),
        ("16", "121_3"),
        ("3!", "6"),
        ("1,234", "1234"),
        (r"6\frac15", "6.2"),
        (r"\text{three}", "3"),
    ],
)
def test_answers_that_may_be_equal(one, two):
    assert not surely_differ(one, two) and not surely_differ(two, one)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"10,\!080", "10080"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        (r"\$32,\!348", "32348"),
        ("1{,}234", "1234"),
        ("3, 5, 7", "3,5,7"),
        ("3 5", "3 5"),
        (r"336^\circ", "336"),
        (r"90^{\circ}", "90"),
        (r"15\mbox{ cm}^2", "15"),
        (r"5.4 \text{ cents}", "5.4"),
        ("12 students", "12"),
        ("12 cm", "12"),
        ("2abc", "2abc"),
        ("6m", "6m"),
        (r"9\text{ a.m.}", r"9\text{a.m.}"),
        (r"19 \text{ and } 43", r"19\text{and}43"),
        (r"\dfrac59", r"\frac{5}{9}"),
        (r"\frac\pi 2", r"\frac{\pi}{2}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        ("$2$,$-2$", "2,-2"),
        ("27.0.", "27.0"),
    ],
)
def test_plain_forms(text, plain):
    assert plain_form(text) == plain


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("27.0", (27, False)),
        ("-1,234", (-1234, True)),
        (r"4.5 \times 10^{3}", (4500, False)),
        ("4.5e3", (4500, False)),
        (r"-\frac{6}{4}", (-1.5, True)),
        ("-3./2", None),
        ("1e999999", None),
        ("1/0", None),
        ("x", None),
    ],
)
def test_plain_numbers(text, found):
    number = plain_number(text)
    assert (None if number is None else (number.value, number.exact)) == found
