"""Time to carry a peer's trace over to a learner's tokens: python benchmarks/alignment.py.

Real tokenizers by --source DIR --learner DIR; without them a BPE and a byte tokenizer made here.
`align` is `align_log_probs` alone, `transfer` is `transfer_trace` whole, encoding included; both
are medians, and `x 256` is the cost per token beside that of the shortest response.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.exchange import Trace, align_log_probs, token_spans, transfer_trace

PROSE = (
    "Let $n$ be the number of red balls, so that $n + 3n = 48$ and $n = 12$. The probability of "
    "drawing two of them is $\\frac{12}{48} \\cdot \\frac{11}{47} = \\frac{11}{188}$, which is a "
    "little less than one in seventeen. We check the second case: if the first ball is blue, then "
    "36 remain, and\n\\[ \\frac{36}{48} \\cdot \\frac{35}{47} = \\frac{105}{188}. \\]\n"
    "Therefore the answer is $\\boxed{\\frac{11}{188}}$.\n\n"
)
TEXTS = {
    "maths prose": PROSE,
    "one run of spaces": " ",
    "CJK without spaces": "证明存在无穷多个素数",
}
SIZES = (256, 1024, 4096, 16384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", metavar="DIR", help="tokenizer of the peer")
    parser.add_argument("--learner", metavar="DIR", help="tokenizer of the learner")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    source = (
        Tokenizer.load(arguments.source) if arguments.source else train_bpe([PROSE], vocab_size=400)
    )
    learner = Tokenizer.load(arguments.learner) if arguments.learner else byte_tokenizer()

    columns = ["text", "tokens", "learner's", "bytes"]
    for step in ("align", "transfer"):
        columns += [f"{step}, ms", "µs per token", "x 256"]
    table = Table()
    for column in columns:
        table.add_column(column, justify="left" if column == "text" else "right")
    for name, unit in TEXTS.items():
        shortest: list[float] = []
        for size in SIZES:
            counts, seconds = measure(source, learner, unit, size, arguments.repetitions)
            per_token = [1e6 * s / counts[0] for s in seconds]
            shortest = shortest or per_token
            times = zip(seconds, per_token, shortest, strict=True)
            cells = [(f"{1e3 * s:.2f}", f"{p:.2f}", f"{p / q:.2f}") for s, p, q in times]
            table.add_row(name, *map(str, counts), *cells[0], *cells[1])
    Console(width=140).print(table)


def measure(
    source: Tokenizer, learner: Tokenizer, unit: str, size: int, repetitions: int
) -> tuple[list[int], list[float]]:
    """Tokens on either side and bytes; seconds to align and to transfer."""
    # No tokenizer makes more than a handful of tokens of a character, and few make less than one
    # of four; a run of spaces stays at `size` characters, however few tokens that makes.
    length = size if unit == " " else 6 * size
    ids = source.encode_texts([(unit * (length // len(unit) + 1))[:length]])[0][:size]
    trace = make_trace(source, ids)
    learner_ids, spans = learner.encode_with_spans(trace.response)
    numbers = [len(ids), len(learner_ids), len(trace.response.encode())]
    body = (trace.response, trace.spans, trace.log_probs, spans)
    return numbers, [
        median_seconds(lambda: align_log_probs(*body), repetitions),
        median_seconds(lambda: transfer_trace(trace, source, learner), repetitions),
    ]


def make_trace(source: Tokenizer, ids: list[int]) -> Trace:
    return Trace(
        step=0,
        prompt_id="0",
        source="peer",
        index=0,
        reward=1.0,
        valid=True,
        response=source.decode(ids),
        success=True,
        finish_reason="length",
        tokens=tuple(ids),
        prompt="",
        behavior_mean_log_prob=-1.0,
        behavior_mean_log_prob_without_eos=-1.0,
        group_advantage=0.0,
        log_probs=tuple(-0.1 - i % 7 for i in range(len(ids))),
        spans=tuple(token_spans(source, ids, ended=False)),
    )


def median_seconds(call: Callable[[], object], repetitions: int) -> float:
    call()
    found = []
    for _ in range(repetitions):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


if __name__ == "__main__":
    main()
