"""What agents are trained and evaluated on: problems, prompts and verifiable rewards."""

from hacpo_jax.tasks.arithmetic import arithmetic_examples
from hacpo_jax.tasks.boxed import last_boxed
from hacpo_jax.tasks.conditions import Condition
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.gym import gym_examples
from hacpo_jax.tasks.layout import Layout
from hacpo_jax.tasks.pool import Verdict
from hacpo_jax.tasks.presets import PRESETS, load_preset
from hacpo_jax.tasks.prompts import check_template, render
from hacpo_jax.tasks.tables import BadRow, LoadedExamples, load_hub, load_jsonl, load_parquet
from hacpo_jax.tasks.verifiers import Counts, Grading, Verifier, make_verifier

__all__ = [
    "PRESETS",
    "BadRow",
    "Condition",
    "Counts",
    "Example",
    "Grading",
    "Layout",
    "LoadedExamples",
    "Verdict",
    "Verifier",
    "arithmetic_examples",
    "check_template",
    "gym_examples",
    "last_boxed",
    "load_hub",
    "load_jsonl",
    "load_parquet",
    "load_preset",
    "make_verifier",
    "render",
]
