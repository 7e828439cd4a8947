"""Gold answers in usual phrasings score 1 and perturbed ones 0, in every benchmark file.

A sample of the rows of large files, to keep this short; all of them are graded by
`python benchmarks/verify.py DATA --oracle`, where 99% or more of every file's rows are right in all
five gradings.
"""

import itertools

import pytest
from oracle import FILES, benchmark_examples, misses, perturbed, phrasings

from hacpo_jax.tasks import Example, make_verifier

# Every how many rows; all of those of the rest.
SAMPLED = {
    "math500": 4,
    "gsm8k": 2,
    "gsm8k train": 6,
    "minerva_math": 4,
    "olympiadbench": 8,
    "svamp": 2,
    "math": 12,
    "math_train": 18,
}
# Rows that math-verify misreads, of those graded here or by the benchmark.
EXCEPTIONS = {
    "minerva_math": {
        "test:133",  # an equation in derivatives of functions, which does not compare in time
        "test:262",  # \hbar ends its parse: 2 is left of the expression
    },
    "olympiadbench": {"test:123"},  # N = n: both sides are taken for one symbol
    "math": {"test:2855"},  # 1/2004!: numbers that small are all alike
    "math_train": {
        "train:2229",  # 0.56 = 56\\%: the left side counts
        "train:3123",  # tan θ = 2θ, which does not compare in time
        "train:6787",  # a matrix with \\phantom in it
        "train:7398",  # 1/2^98
    },
}
# Golds of our own in the forms that the files have, so that there is something without them.
GOLDS = [
    "27.0",
    "1,234",
    r"336^\circ",
    r"\$18.90",
    r"10,\!080",
    r"44\%",
    r"15\mbox{ cm}^2",
    r"5.4 \text{ cents}",
    r"\frac 59",
    r"1\frac{4}{5}",
    r"-\frac{\pi}{6}",
    r"3 \pm 2 \sqrt{2}",
    r"52_8",
    r"\text{east}",
    r"x \in [-2,7]",
    r"(-\infty, 2) \cup (3, \infty)",
    r"\begin{pmatrix} -2 \\ -14 \end{pmatrix}",
    "$2$,$-2$,$1$",
    "3, 5, 7",
    "4.5e33",
    "x^2+2x+1",
    "y = 2x + 3",
]


@pytest.fixture(scope="module")
def math():
    with make_verifier("math", workers=2, timeout=30.0) as verifier:
        yield verifier


def test_golds_in_every_form(math):
    examples = [Example(id=gold, prompt="p", answer=gold) for gold in GOLDS]
    assert misses(math, examples) == []


def test_what_is_graded():
    assert perturbed("27.0") == "37.0"
    assert perturbed(r"x_1 = \frac{9}{2}") == r"x_1 = \frac{7}{2}"
    assert perturbed(r"\text{east}") == "nothing of the kind"
    assert perturbed("$2n$") == "$3n$"
    assert perturbed(r"$\pi$") == r"$\pi + 77$"
    assert phrasings("$2n$")[1:3] == [
        "So $x = 5$, hence\n\n$$\\boxed{2n}$$",
        "First $12 + 7 = 19$.\nThe final answer is $2n$.",
    ]


@pytest.mark.parametrize("name", FILES)
def test_benchmark_files(math, shared_dir, name):
    """At most 1% of the rows of a file are misread, and those are known."""
    examples = [Example(id="own", prompt="p", answer="12")]
    if (shared_dir / "data" / FILES[name]).exists():
        every = benchmark_examples(shared_dir / "data", name)
        examples = list(itertools.islice(every, 0, None, SAMPLED.get(name, 1)))
    assert {miss.id for miss in misses(math, examples)} <= EXCEPTIONS.get(name, set())


def test_exceptions_are_few():
    rows = {"minerva_math": 272, "olympiadbench": 675, "math": 5000, "math_train": 7500}
    for name, ids in EXCEPTIONS.items():
        assert len(ids) <= 0.01 * rows[name]


@pytest.mark.parametrize("name", ["gsm8k", "svamp"])
def test_word_problems_by_the_verifier_of_gsm8k(shared_dir, name):
    examples = [Example(id="own", prompt="p", answer="1,012", solution="#### 1,012")]
    if (shared_dir / "data" / FILES[name]).exists():
        examples += benchmark_examples(shared_dir / "data", name)
    with make_verifier("gsm8k", workers=2) as gsm8k:
        assert misses(gsm8k, examples) == []
        solved = [(e.solution, e.answer) for e in examples]
        assert {verdict.reward for verdict in gsm8k.score(solved)} == {1.0}
