r"""Known benchmarks: where they are on the hub, and how their rows are laid out there and in files.

The hub ids and layouts are those of July 2025; a file may have any of a benchmark's layouts.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.hub import hub_rows
from hacpo_jax.tasks.layout import Columns, Layout
from hacpo_jax.tasks.rows import Row, file_rows
from hacpo_jax.tasks.tables import LoadedExamples, examples_of

_FIRST_ROWS = 50
_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


@dataclass(frozen=True)
class Preset:
    """A benchmark.

    Args:
      dataset: its hub id.
      split: which split is meant by its name.
      layouts: those in which it is published; the first that fits the rows counts.
      subsets: its configurations on the hub, all of which are read.
    """

    dataset: str
    split: str
    layouts: tuple[Layout, ...]
    subsets: tuple[str, ...] = ()


_MATH: Layout = {"prompt": "problem", "answer": "solution", "solution": "solution", "boxed": True}
_AIME: Layout = {"prompt": "problem", "answer": "answer"}
_LABELLED: Layout = {"prompt": "question", "choices": "choices", "answer": "answerKey"}
# As published by the Allen Institute and the makers of CommonsenseQA, before the hub.
_STEM: Layout = {
    "prompt": "question.stem",
    "choices": "question.choices",
    "answer": "answerKey",
    "id_column": "id",
}
_MATH_TEST = Preset("EleutherAI/hendrycks_math", "test", (_MATH,), _MATH_SUBJECTS)
_ARC = Preset(
    "allenai/ai2_arc", "test", ({**_LABELLED, "id_column": "id"}, _STEM), ("ARC-Challenge",)
)

PRESETS: dict[str, Preset] = {
    "math_train": replace(_MATH_TEST, split="train"),
    "math": _MATH_TEST,
    "math500": Preset(
        "HuggingFaceH4/MATH-500",
        "test",
        (
            {
                "prompt": "problem",
                "answer": "answer",
                "solution": "solution",
                "id_column": "unique_id",
            },
        ),
    ),
    "gsm8k": Preset(
        "openai/gsm8k",
        "test",
        (
            {
                "prompt": "question",
                "answer": "answer",
                "solution": "answer",
                "answer_pattern": r"#### (.*)",
            },
        ),
        ("main",),
    ),
    "aime24": Preset(
        "HuggingFaceH4/aime_2024", "train", ({**_AIME, "solution": "solution"}, _AIME)
    ),
    "aime25": Preset("math-ai/aime25", "test", (_AIME,)),
    "amc23": Preset("math-ai/amc23", "test", ({"prompt": "question", "answer": "answer"},)),
    "minerva_math": Preset(
        "math-ai/minervamath", "test", (_MATH, {"prompt": "question", "answer": "answer"})
    ),
    "olympiadbench": Preset(
        "Hothan/OlympiadBench",
        "train",
        (
            {
                "prompt": ("context", "question"),
                "answer": "final_answer",
                "solution": "solution.0",
            },
        ),
        ("OE_TO_maths_en_COMP",),
    ),
    "svamp": Preset(
        "ChilleD/SVAMP",
        "test",
        ({"prompt": ("Body", "Question"), "answer": "Answer", "id_column": "ID"},),
    ),
    "arc_challenge": _ARC,
    "arc_easy": replace(_ARC, subsets=("ARC-Easy",)),
    # The answers of its test split are not public.
    "commonsense_qa": Preset(
        "tau/commonsense_qa", "validation", ({**_LABELLED, "id_column": "id"}, _STEM)
    ),
    "openbookqa": Preset(
        "allenai/openbookqa",
        "test",
        ({**_LABELLED, "prompt": "question_stem", "id_column": "id"}, _STEM),
        ("main",),
    ),
    "sciq": Preset(
        "allenai/sciq",
        "test",
        (
            {
                "prompt": "question",
                "choices": ("correct_answer", "distractor1", "distractor2", "distractor3"),
                "answer": "correct_answer",
                "choice_answer": "text",
                # The right one would come first.
                "shuffle_choices": 0,
            },
        ),
    ),
}


def load_preset(
    name: str,
    *,
    path: str | Path | None = None,
    split: str | None = None,
    revision: str | None = None,
    **layout: Unpack[Layout],
) -> LoadedExamples:
    """Reads a known benchmark.

    Args:
      name: one of `PRESETS`.
      path: a JSON Lines or Parquet file, or a folder of them, in a layout of the benchmark's makers
        or of the hub; the hub by default, which needs the extra `data`.
      split: another split than the one that the name means.
      revision: of the hub.
      **layout: what differs from the preset; see `Layout`.

    Raises:
      UserError: no such benchmark, or as `load_jsonl` and `load_hub`.
    """
    if name not in PRESETS:
        raise UserError("name", name, f"must be one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if path is None:
        field, value = "dataset", preset.dataset
        rows = hub_rows(value, split or preset.split, preset.subsets or None, revision)
    else:
        field, value = "path", str(path)
        rows = _local_rows(Path(path), split, preset)
    first, rows = _peek(rows)
    fitting = _fitting(preset.layouts, first)
    if fitting is None:
        wanted = " or ".join(_described(known) for known in preset.layouts)
        there = next((", ".join(r.columns) for r in first if isinstance(r.columns, dict)), "none")
        remedy = f"is not laid out like {name}, which has {wanted}; it has the columns {there}"
        raise UserError(field, value, remedy)
    return examples_of(rows, {**fitting, **layout}, field=field, value=value)


def _local_rows(path: Path, split: str | None, preset: Preset) -> Iterable[Row]:
    if split is None and path.is_dir() and not _has_split(path, preset):
        # Files of benchmarks that have one split are often called `test`, whatever the hub's is.
        split = "test"
    return file_rows(path, split or preset.split, preset.subsets)


def _has_split(path: Path, preset: Preset) -> bool:
    return any(path.rglob(f"{preset.split}[.-]*")) or any(path.rglob(f"{preset.split}/*"))


def _peek(rows: Iterable[Row]) -> tuple[Sequence[Row], Iterable[Row]]:
    rows = iter(rows)
    first = list(itertools.islice(rows, _FIRST_ROWS))
    return first, itertools.chain(first, rows)


def _fitting(layouts: Sequence[Layout], rows: Sequence[Row]) -> Layout | None:
    """The first layout that fits a row; of no rows at all, the first, so that those are told."""
    readable = [row for row in rows if isinstance(row.columns, dict)]
    for layout in layouts:
        if not readable or any(Columns.of(layout).fit(row) for row in readable):
            return layout
    return None


def _described(layout: Layout) -> str:
    columns = Columns.of(layout)
    return ", ".join(dict.fromkeys((*columns.prompt, *columns.choices, columns.answer)))
