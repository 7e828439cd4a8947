"""What agents are trained and evaluated on: problems, prompts and verifiable rewards."""

from hacpo_jax.tasks.arithmetic import arithmetic_examples
from hacpo_jax.tasks.boxed import last_boxed
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.jsonl import BadRow, JsonlExamples, load_jsonl
from hacpo_jax.tasks.pool import Verdict
from hacpo_jax.tasks.prompts import check_template, render
from hacpo_jax.tasks.verifiers import Counts, Grading, Verifier, make_verifier

__all__ = [
    "BadRow",
    "Counts",
    "Example",
    "Grading",
    "JsonlExamples",
    "Verdict",
    "Verifier",
    "arithmetic_examples",
    "check_template",
    "last_boxed",
    "load_jsonl",
    "make_verifier",
    "render",
]
