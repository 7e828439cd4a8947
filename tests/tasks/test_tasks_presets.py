"""Known benchmarks, from the files beside the checkout and from rows laid out like the hub's."""

import json
import typing

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from hacpo_jax.config import Preset
from hacpo_jax.config.task import BenchmarkName
from hacpo_jax.errors import UserError
from hacpo_jax.tasks import PRESETS, load_preset
from hacpo_jax.tasks.problems import load_examples

# One row of each as its publishers lay it out (texts of our own), the prompt and the answer.
LABELLED = {"text": ["iron", "wood", "air"], "label": ["A", "B", "C"]}
STEM = {
    "id": "x1",
    "question": {
        "stem": "What burns?",
        "choices": [
            {"label": label, "text": text}
            for label, text in zip("ABC", LABELLED["text"], strict=True)
        ],
    },
    "answerKey": "B",
}
LETTERED = "What burns?\nA. iron\nB. wood\nC. air"
MATH = {
    "problem": "1+1?",
    "level": "Level 1",
    "type": "Algebra",
    "solution": r"It is \boxed{2}.",
}
ROWS: list[tuple[str, dict, str, str]] = [
    ("math_train", MATH, "1+1?", "2"),
    ("math", MATH, "1+1?", "2"),
    (
        "math500",
        {"problem": "P", "solution": r"\boxed{9}", "answer": "9", "unique_id": "u.json"},
        "P",
        "9",
    ),
    ("gsm8k", {"question": "Q", "answer": "2*9=<<2*9=18>>18\n#### 1,018"}, "Q", "1,018"),
    ("aime24", {"id": 60, "problem": "P", "solution": "s", "answer": "204"}, "P", "204"),
    ("aime25", {"problem": "P", "answer": "70", "id": "0"}, "P", "70"),
    ("amc23", {"id": 0, "question": "Q", "answer": 27.0, "url": "u"}, "Q", "27.0"),
    ("minerva_math", {"problem": "P", "solution": r"x=\boxed{1.6}", "idx": 0}, "P", "1.6"),
    ("minerva_math", {"question": "P", "answer": "1.6"}, "P", "1.6"),
    (
        "olympiadbench",
        {"context": None, "question": "Q", "solution": ["s", "t"], "final_answer": ["$1$,$2$"]},
        "Q",
        "$1$,$2$",
    ),
    (
        "svamp",
        {"ID": "chal-1", "Body": "Two.", "Question": "How many?", "Answer": "2.0"},
        "Two. How many?",
        "2.0",
    ),
    (
        "arc_challenge",
        {"id": "x1", "question": "What burns?", "choices": LABELLED, "answerKey": "B"},
        LETTERED,
        "B",
    ),
    ("arc_easy", STEM, LETTERED, "B"),
    (
        "commonsense_qa",
        {
            "id": "x1",
            "question": "What burns?",
            "question_concept": "fire",
            "choices": LABELLED,
            "answerKey": "B",
        },
        LETTERED,
        "B",
    ),
    ("commonsense_qa", STEM, LETTERED, "B"),
    (
        "openbookqa",
        {"id": "x1", "question_stem": "What burns?", "choices": LABELLED, "answerKey": "B"},
        LETTERED,
        "B",
    ),
    ("openbookqa", STEM, LETTERED, "B"),
]
SCIQ = {
    "question": "What burns?",
    "distractor3": "iron",
    "distractor1": "air",
    "distractor2": "ice",
    "correct_answer": "wood",
    "support": "Wood burns.",
}


def test_the_names_are_those_of_the_config():
    assert set(typing.get_args(BenchmarkName)) == set(PRESETS)
    for name in PRESETS:
        assert f"`{name}`" in (Preset.__doc__ or "")
    assert {name for name, *_ in ROWS} | {"sciq"} == set(PRESETS)


@pytest.mark.parametrize(("name", "row", "prompt", "answer"), ROWS)
@pytest.mark.parametrize("form", ["jsonl", "parquet", "folder"])
def test_rows_as_published(tmp_path, form, name, row, prompt, answer):
    split = PRESETS[name].split
    path = tmp_path / f"{split}.{'jsonl' if form == 'jsonl' else 'parquet'}"
    if form == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    if form == "folder":
        path = tmp_path
    (example,) = load_preset(name, path=path).examples
    assert (example.prompt, example.answer) == (prompt, answer)


@pytest.mark.parametrize(("name", "row", "prompt", "answer"), ROWS)
def test_the_hub_by_default(monkeypatch, name, row, prompt, answer):
    """What the library is asked for, with a hub that has one row in every subset."""
    asked = []

    def load_dataset(dataset, subset, *, split, revision):
        asked.append((dataset, subset, split, revision))
        return datasets.Dataset.from_list([row])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    preset = PRESETS[name]
    source = Preset.model_validate(
        {"kind": "preset", "name": name, "revision": "abc", "max_bad_fraction": 0.9}
    )
    examples = load_examples(source, "task.train")
    assert (examples[0].prompt, examples[0].answer) == (prompt, answer)
    subsets = preset.subsets or (None,)
    assert asked == [(preset.dataset, subset, preset.split, "abc") for subset in subsets]


def test_sciq_does_not_put_the_right_choice_first(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text((json.dumps(SCIQ) + "\n") * 60)
    examples = load_preset("sciq", path=path).examples
    for example in examples:
        assert f"\n{example.answer}. wood" in example.prompt
    assert {example.answer for example in examples} == set("ABCD")
    assert load_preset("sciq", path=path).examples == examples
    assert load_preset("sciq", path=path, shuffle_choices=5).examples != examples


def test_subsets_in_folders_as_the_hub_keeps_them(tmp_path):
    for subject in ("algebra", "geometry"):
        (tmp_path / subject).mkdir()
        for split in ("train", "test"):
            row = {"problem": f"{subject} {split}", "solution": r"\boxed{1}"}
            file = tmp_path / subject / f"{split}-00000-of-00001.parquet"
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    examples = load_preset("math", path=tmp_path).examples
    assert [example.prompt for example in examples] == ["algebra test", "geometry test"]
    assert examples[0].id == "algebra/test-00000-of-00001:1"
    trained = load_preset("math_train", path=tmp_path).examples
    assert [example.prompt for example in trained] == ["algebra train", "geometry train"]


def test_rows_of_something_else(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "p", "label": 1}\n')
    with pytest.raises(UserError, match="not laid out like minerva_math, which has problem, sol"):
        load_preset("minerva_math", path=path)
    with pytest.raises(UserError, match="name = 'gsm9k': must be one of math_train, math, "):
        load_preset("gsm9k", path=path)
    path.write_text("")
    with pytest.raises(UserError, match="it has no rows"):
        load_preset("gsm8k", path=path)


# preset, folder or file below data/, rows, rows without an answer, the first answer
FILES = [
    ("math_train", "math", 7500, 2, "0"),
    ("math", "math", 5000, 0, "2"),
    ("math500", "math500", 500, 0, r"\left( 3, \frac{\pi}{2} \right)"),
    ("gsm8k", "gsm8k", 1319, 0, "18"),
    ("gsm8k", "gsm8k/train.jsonl", 7473, 0, "72"),
    ("aime24", "aime24", 30, 0, "204"),
    ("aime25", "aime25", 30, 0, "70"),
    ("amc23", "amc23", 40, 0, "27.0"),
    ("minerva_math", "minerva_math", 272, 0, "1.6"),
    ("olympiadbench", "olympiadbench", 675, 0, "2"),
    ("svamp", "svamp", 1000, 0, "145.0"),
]


def test_all_benchmark_files_load(shared_dir, tmp_path):
    """Every file beside the checkout through its preset, and at least one like them."""
    (tmp_path / "test.jsonl").write_text(json.dumps(MATH) + "\n")
    cases = [("math", tmp_path, 1, 0, "2")]
    folder = shared_dir / "data"
    cases += [(name, folder / at, *rest) for name, at, *rest in FILES if (folder / at).exists()]
    for name, path, rows, bad, first in cases:
        loaded = load_preset(name, path=path)
        assert (len(loaded.examples), len(loaded.bad_rows)) == (rows - bad, bad), path
        assert loaded.examples[0].answer == first, path
        assert all("empty answer" in row.reason for row in loaded.bad_rows), path
    if folder.exists():
        covered = {folder / at.partition("/")[0] for _, at, *_ in FILES}
        assert {path for path in folder.iterdir() if path.is_dir()} <= covered
