"""Verifiers that users name: `exact` and `math`."""

import time

import pytest

from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Counts, Verdict, Verifier, load_jsonl, make_verifier

RIGHT, WRONG = Verdict(1.0, valid=True), Verdict(0.0, valid=True)


@pytest.fixture(scope="module")
def math():
    with make_verifier("math", workers=2, timeout=4.0) as verifier:
        yield verifier


def test_exact():
    with make_verifier("exact") as verifier:
        pairs = [(" 19\n", "19"), ("19.", "19"), ("", "19"), ("a b", "a  b"), ("\x00\ud800", "1")]
        assert verifier.score(pairs) == [RIGHT, WRONG, WRONG, WRONG, WRONG]
        assert verifier.score([]) == []
        assert verifier.counts == Counts(answers=5)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": "maths"}, "verifier"),
        ({"name": ""}, "verifier"),
        ({"name": "json:"}, "verifier"),
        ({"name": "json:loads()"}, "verifier"),
        ({"workers": 0}, "workers"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
    ],
)
def test_bad_arguments(changed, field):
    with pytest.raises(UserError) as caught:
        make_verifier(**{"name": "exact", **changed})
    assert caught.value.field == field


RIGHT_ANSWERS = [
    ("27.0", "27"),
    ("27.0", r"so it is $\boxed{27}$."),
    (r"336^\circ", r"\boxed{336}"),
    ("1,234", "The answer is 1234."),
    ("1234", r"\boxed{1,234}"),
    ("18", "She makes $18 per day."),
    (r"\$18", r"\boxed{18}"),
    ("-2", "-2"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"$\boxed{\dfrac12}$"),
    (r"\boxed{\frac{1}{2}}", r"\boxed{3/6}"),
    ("10\\%", "10%"),
    (r"575\text{ students}", r"\boxed{575}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi/2)}"),
    ("$2$, $3$", r"\boxed{3, 2}"),
    ("$2$, $3$", r"\boxed{2} and \boxed{3}"),
    ("3", r"\boxed{1}, wait, no: \boxed{6/2}"),
    ("3", r"\boxed{3}, or is it \boxed{4"),
    (r"\text{east}", "So the answer is East."),
    ("east", r"\boxed{\text{east}}"),
    (r"\text{(B)}", r"\boxed{B}"),
    (r"\text{B, E}", r"\boxed{E,B}"),
    ("3", "word " * 200_000 + r"it is 3."),
]
WRONG_ANSWERS = [
    ("27.0", "28"),
    ("3", ""),
    ("3", "3 or 4"),
    ("2", r"\boxed{2} and \boxed{3}"),
    ("3", "I have 3, no: 4"),
    (r"\frac{1}{2}", r"\boxed{2}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("3", r"\boxed{\frac{1}{0}}"),
    ("3", r"\boxed{\infty}"),
    ("east", r"\boxed{seat}"),
    (r"\text{even}", r"\boxed{\text{odd}}"),
    ("3", "\x00"),
    ("3", "\ud800"),
    ("3", "\\boxed{\ud800\x00}"),
    ("3", r"\boxed{" * 100_000),
    ("3", "1 " * 500_000),
]


def test_math_answers(math):
    for verdict, cases in ((RIGHT, RIGHT_ANSWERS), (WRONG, WRONG_ANSWERS)):
        verdicts = math.score([(response, gold) for gold, response in cases])
        for case, given in zip(cases, verdicts, strict=True):
            assert given == verdict, [text[:80] for text in case]


def test_real_answers_equal_themselves(math, shared_dir):
    """Golds in the forms of the benchmarks, from the files where they are there."""
    golds = {"336^\\circ", "27.0", "1,234", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "[0,\\infty)"}
    path = shared_dir / "data" / "math500" / "test.jsonl"
    if path.exists():
        golds |= {e.answer for e in load_jsonl(path, prompt="problem").examples[:100]}
    verdicts = math.score([(rf"Thus $x = \boxed{{{gold}}}$.", gold) for gold in golds])
    assert verdicts == [RIGHT] * len(golds)


BOMBS = [
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{(10^{10})!}",
    r"\boxed{" + "(" * 60 + "3" + ")" * 60 + "}",
    r"\boxed{" + "+".join(f"{i}x^{{{i}}}" for i in range(400)) + "}",
]


def test_bombs_harm_nobody(math):
    """Fault: an answer whose parsing never ends stalls the grading, or zeroes the other answers."""
    before, restarts = math.counts, math.restarts
    pairs = [pair for bomb in BOMBS for pair in ((bomb, "3"), (r"\boxed{3}", "3"), ("4", "3"))]
    started = time.monotonic()
    verdicts = math.score(pairs)
    # Two workers, four bombs of at most 4 s each, and the start of a new worker after each.
    assert time.monotonic() - started < 25
    for i in range(len(BOMBS)):
        bomb, right, wrong = verdicts[3 * i : 3 * i + 3]
        assert right == RIGHT and wrong == WRONG
        # It may be found wrong in time; if it is not, that is told and is no 0.
        assert bomb == WRONG or (not bomb.valid and bomb.timed_out and bomb.error)
    timeouts = sum(not verdict.valid for verdict in verdicts)
    assert timeouts >= 1
    assert math.restarts - restarts <= len(BOMBS)  # one each at most
    assert math.counts == Counts(before.answers + 12, before.timeouts + timeouts, before.errors)


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("3 + 9 is 12.", "12", 1.0),
        ("There are 3 + 9", "12", 0.0),  # repeats the question
        ("1,234.50 in all", "1234.5", 1.0),
        ("x = -3", "-3", 1.0),
        ("5 - 3", "3", 1.0),  # a minus between numbers is no sign
        ("7-4", "4", 1.0),
        ("-0", "0", 1.0),
        ("007", "7", 1.0),
        ("none", "5", 0.0),
        ("", "5", 0.0),
        ("\uff11\uff12", "12", 0.0),  # full-width digits
    ],
)
def test_last_number_compares_the_last_numbers(response, answer, reward):
    with make_verifier("last_number") as verifier:
        (verdict,) = verifier.score([(response, answer)])
    assert (verdict.reward, verdict.valid) == (reward, True)


class Refusing:
    """A grader that gives each response as the reason why it cannot be graded."""

    restarts = 0

    def schedule(self, pairs):
        return lambda: [Verdict(0.0, valid=False, error=response) for response, _ in pairs]

    def close(self):
        pass


def test_each_source_has_its_own_first_error():
    with Verifier(Refusing()) as verifier:
        gradings = [
            verifier.submit([(f"{name} {i}", "1") for i in range(3)], source=name)
            for name in ("late", "early")
        ]
        assert verifier.first_error is None and verifier.first_error_of("early") is None
        for grading in reversed(gradings):
            grading.result()
        assert verifier.first_error == verifier.first_error_of("early") == "early 0"
        assert verifier.first_error_of("late") == "late 0"
        assert verifier.first_error_of("nobody") is None
