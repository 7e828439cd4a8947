"""Gold answers in usual phrasings, and wrong ones near them, for measuring verifiers.

Gold answers come from benchmark files; what is made of them here knows nothing of the verifiers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hacpo_jax.tasks import Example, Verifier, load_preset

# preset: file or folder below the data directory
FILES = {
    "math500": "math500",
    "gsm8k": "gsm8k",
    "gsm8k train": "gsm8k/train.jsonl",
    "aime24": "aime24",
    "aime25": "aime25",
    "amc23": "amc23",
    "minerva_math": "minerva_math",
    "olympiadbench": "olympiadbench",
    "svamp": "svamp",
    "math": "math",
    "math_train": "math",
}
_WORDS = re.compile(r"(?:\\text\{)?[A-Za-z ,.()'-]{3,}\}?")


@dataclass(frozen=True)
class Miss:
    """A verdict that is not as it should be.

    Args:
      id: of the problem.
      answer: the gold answer.
      response: what was graded.
      perturbed: whether it is a wrong answer.
      error: why there is no verdict, if so.
    """

    id: str
    answer: str
    response: str
    perturbed: bool
    error: str | None


def benchmark_examples(data: Path, name: str) -> tuple[Example, ...]:
    """All problems of one of `FILES`."""
    return load_preset(name.split()[0], path=data / FILES[name]).examples


def phrasings(gold: str) -> list[str]:
    """Responses that end in a right answer, as models write them."""
    has_dollars = "$" in gold.replace(r"\$", "")
    bare = re.sub(r"(?<!\\)\$", "", gold)
    return [
        rf"We compute step by step. Therefore, the final answer is \boxed{{{gold}}}.",
        f"So $x = 5$, hence\n\n$$\\boxed{{{bare}}}$$",
        f"First $12 + 7 = 19$.\nThe final answer is {gold if has_dollars else f'${gold}$'}.",
        f"Thus we get\nAnswer: {gold}",
    ]


def perturbed(gold: str) -> str:
    """An answer that is not equal: another digit, other words, or 77 more."""
    start = gold.rfind("=") + 1
    digit = re.search(r"\d", gold[start:])
    if digit is not None:
        at, found = start + digit.start(), int(digit.group())
        return gold[:at] + str(found + 1 if found < 9 else 7) + gold[at + 1 :]
    if _WORDS.fullmatch(gold):
        return "nothing of the kind"
    return re.sub(r"(\$?\.?)$", r" + 77\1", gold, count=1)


def misses(verifier: Verifier, examples: Sequence[Example]) -> list[Miss]:
    """Grades every phrasing of every gold answer, and its perturbation in the first of them."""
    cases = []
    for example in examples:
        cases += [(example, response, False) for response in phrasings(example.answer)]
        cases.append((example, phrasings(perturbed(example.answer))[0], True))
    verdicts = verifier.score([(response, example.answer) for example, response, _ in cases])
    return [
        Miss(example.id, example.answer, response, wrong, verdict.error)
        for (example, response, wrong), verdict in zip(cases, verdicts, strict=True)
        if not verdict.valid or verdict.reward != (0.0 if wrong else 1.0)
    ]
