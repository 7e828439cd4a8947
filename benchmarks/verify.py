"""Speed and strength of the verifiers: python benchmarks/verify.py DATA [--workers 2] [--oracle].

DATA holds the benchmark files, as in `oracle.FILES`. Prints a table with a row for each verifier:
answers graded in a second; in a second of processor time of the workers, their start aside, which
other load does not change; workers replaced; and the seconds that each known bomb took. Ordinary
answers are the published solutions, half of them to another problem. With --oracle every gold
answer of every file is graded in four phrasings, and a wrong one near it.
"""

import argparse
import itertools
import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oracle import FILES, benchmark_examples, misses

from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Example, gym_examples, make_verifier

Pair = tuple[str, str]
BOMBS = {
    "tower": r"\boxed{9^{9^{9^{9}}}}",
    "factorial": r"\boxed{(10^{10})!}",
    "brackets": r"\boxed{" + "(" * 60 + "3" + ")" * 60 + "}",
    "polynomial": r"\boxed{" + "+".join(f"{i}x^{{{i}}}" for i in range(400)) + "}",
}
_ANSWERS = 4000
_FIRST = 200
_SHOWN_MISSES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--oracle", action="store_true")
    arguments = parser.parse_args()
    if arguments.oracle:
        oracle(arguments)
        return
    try:
        found = workloads(arguments.data)
    except UserError as error:
        parser.error(str(error))
    print("| verifier | answers/s | per CPU second | restarts, bombs | seconds of each bomb |")
    print("|---|---|---|---|---|")
    for label, name, pairs in found:
        print(row(label, name, pairs, arguments), flush=True)


def workloads(data: Path) -> list[tuple[str, str | list[dict[str, Any]], list[Pair]]]:
    words, maths = benchmark_examples(data, "gsm8k"), benchmark_examples(data, "math")
    sums = gym_examples("chain_sum", split="train", size=500)
    letters = [(f"Some text.\nThe answer is ({a}).", b) for a, b in itertools.product("ABCD", "AC")]
    choices = [(f"{i}: {text}", gold) for i in range(_ANSWERS // 8) for text, gold in letters]
    both = [{"name": "math", "weight": 0.9}, {"name": "format", "weight": 0.1}]
    return [
        ("exact", "exact", solutions(words)),
        ("last_number", "last_number", solutions(words)),
        ("gsm8k", "gsm8k", solutions(words)),
        ("choice", "choice", choices),
        ("format", "format", solutions(maths)),
        ("math (GSM8K)", "math", solutions(words)),
        ("math (MATH)", "math", solutions(maths)),
        ("auto (MATH)", "auto", solutions(maths)),
        ("0.9 math + 0.1 format (MATH)", both, solutions(maths)),
        ("reasoning_gym (chain_sum)", "reasoning_gym", solutions(sums)),
    ]


def solutions(examples: Sequence[Example]) -> list[Pair]:
    """The solutions to problems with their gold answers, and with those of others."""
    order = random.Random(0)
    pairs = {(example.solution, example.answer) for example in examples[: _ANSWERS // 2]}
    pairs |= {(example.solution, order.choice(examples).answer) for example in examples}
    return order.sample(sorted(pairs), min(_ANSWERS, len(pairs)))


def row(
    label: str, name: str | list[dict[str, Any]], pairs: list[Pair], arguments: argparse.Namespace
) -> str:
    *_, start = graded(name, pairs[:_FIRST], arguments)
    speed, ordinary, cpu = graded(name, pairs, arguments)
    # Below that, the start of the workers varies by as much.
    per_cpu = f"{(len(pairs) - _FIRST) / (cpu - start):,.0f}" if cpu - start > 0.5 else "many"
    # Bombs are held against a number where the answer is one, or nothing would parse them.
    right = pairs[0] if label.startswith(("choice", "reasoning_gym")) else (r"\boxed{3}", "3")
    with make_verifier(name, workers=1, timeout=arguments.timeout) as verifier:
        verifier.score([right])
        seconds = {}
        for bomb, text in BOMBS.items():
            started = time.perf_counter()
            verifier.score([(text, right[1]), right])
            seconds[bomb] = time.perf_counter() - started
        bombs = verifier.restarts
    told = ", ".join(f"{bomb} {value:.1f}" for bomb, value in seconds.items())
    return f"| {label} | {speed:,.0f} | {per_cpu} | {ordinary}, {bombs} | {told} |"


def graded(name: Any, pairs: list[Pair], arguments: argparse.Namespace) -> tuple[float, int, float]:
    """Answers a second, workers replaced, and processor time of all workers from start to end."""
    before = children_seconds()
    with make_verifier(name, workers=arguments.workers, timeout=arguments.timeout) as verifier:
        verifier.score(pairs[:_FIRST])  # all workers are up, and their grammars loaded
        started = time.perf_counter()
        verifier.score(pairs[_FIRST:])
        speed = (len(pairs) - _FIRST) / (time.perf_counter() - started)
        restarts = verifier.restarts
    return speed, restarts, children_seconds() - before


def children_seconds() -> float:
    """Processor time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def oracle(arguments: argparse.Namespace) -> None:
    """All rows of all files; prints the share that is right, and what is not."""
    for name in FILES:
        examples = benchmark_examples(arguments.data, name)
        with make_verifier("math", workers=arguments.workers, timeout=arguments.timeout) as math:
            found = misses(math, examples)
        rows = len({miss.id for miss in found})
        wrong = sum(miss.perturbed for miss in found)
        share = 100 * (1 - rows / len(examples))
        counts = f"{len(found) - wrong} phrasings and {wrong} perturbations missed"
        print(f"{name}: {len(examples)} rows, {share:.2f}% right in all; {counts}", flush=True)
        for miss in found[:_SHOWN_MISSES]:
            kind, end = "wrong" if miss.perturbed else "right", miss.response[-70:]
            print(f"    {kind} {miss.id} {miss.answer!r}: {end!r} {miss.error or ''}")


if __name__ == "__main__":
    main()
