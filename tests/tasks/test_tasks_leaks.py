"""Training problems that are measured on, too: told, with how many and of which benchmark."""

import json

import pytest

from hacpo_jax.config import Arithmetic, Preset
from hacpo_jax.tasks import Example
from hacpo_jax.tasks.leaks import warn_of_leaks
from hacpo_jax.tasks.problems import load_examples

SUMS = Arithmetic(kind="arithmetic", size=1)


def problems(*texts: str) -> tuple[Example, ...]:
    return tuple(Example(id=str(i), prompt=text, answer="1") for i, text in enumerate(texts))


@pytest.fixture
def gsm8k(tmp_path):
    """A folder with both splits of the benchmark, of two problems each."""
    for split in ("train", "test"):
        rows = [{"question": f"{split} {i}?", "answer": f"#### {i}"} for i in range(2)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def told(caplog, train: Preset, measured: Preset) -> list[str]:
    examples = [load_examples(source, "task") for source in (train, measured)]
    caplog.clear()
    warn_of_leaks(train, examples[0], {"gsm8k": examples[1]})
    return [record.getMessage() for record in caplog.records]


def test_other_problems_are_no_news(caplog):
    warn_of_leaks(SUMS, problems("1+1=", "2+2="), {"held": problems("1+2="), "more": ()})
    assert caplog.records == []


def test_shared_problems_are_counted_by_benchmark(caplog):
    """Line ends and double spaces do not make another problem."""
    measured = {
        "a": problems("1 + 1?", "2 + 2?", "3 + 3?"),
        "b": problems("5?"),
        "c": problems("4"),
    }
    warn_of_leaks(SUMS, problems("2 +  2?\n", "1 + 1?", "4"), measured)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("task.eval.a shares 2 of its 3 problems with task.train")
    assert second.startswith("task.eval.c shares 1 of its 1 problems with task.train")


def test_a_preset_to_learn_from_is_the_split_that_models_are_measured_on(caplog, gsm8k):
    whole = Preset(kind="preset", name="gsm8k", path=str(gsm8k))
    split, shared = told(caplog, whole, whole)
    assert "task.train: the preset gsm8k" in split and "'test'" in split
    assert "task.train.split=train" in split
    assert "task.eval.gsm8k shares 2 of its 2 problems" in shared


@pytest.mark.parametrize("change", [{"split": "train"}, {"path": "train.jsonl"}])
def test_the_training_split_and_a_file_are_what_they_say(caplog, gsm8k, change):
    whole = Preset(kind="preset", name="gsm8k", path=str(gsm8k))
    if "path" in change:
        change = {"path": str(gsm8k / change["path"])}
    assert told(caplog, whole.model_copy(update=change), whole) == []
