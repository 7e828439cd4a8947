"""Parquet, the hub's library, filters, templates, choices and order."""

import decimal
import json
import sys
from fractions import Fraction

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from hacpo_jax.config import Hub, Parquet
from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Condition, load_hub, load_jsonl, load_parquet
from hacpo_jax.tasks.problems import load_examples

ROWS = [
    {"q": "one", "a": 27.0, "level": 1, "meta": {"kind": "sum", "ok": True}},
    {"q": "two", "a": 0.1, "level": 3, "meta": {"kind": "product", "ok": False}},
    {"q": "three", "a": -4.0, "level": 5, "meta": {"kind": "sum of sums", "ok": True}},
    {"q": "four", "a": 1e22, "level": None, "meta": {"kind": None, "ok": None}},
]


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(params=["jsonl", "parquet", "hub"])
def load(request, tmp_path):
    """One table in every form that can be read."""
    if request.param == "jsonl":
        path = write_jsonl(tmp_path / "t.jsonl", ROWS)
        return lambda **layout: load_jsonl(path, prompt="q", answer="a", **layout)
    path = write_parquet(tmp_path / "hub" / "train.parquet", ROWS)
    if request.param == "parquet":
        return lambda **layout: load_parquet(path, prompt="q", answer="a", **layout)
    folder = str(path.parent)
    return lambda **layout: load_hub(folder, split="train", prompt="q", answer="a", **layout)


def prompts(loaded):
    return [example.prompt for example in loaded.examples]


def test_every_form_gives_the_same_examples(load):
    loaded = load()
    assert prompts(loaded) == ["one", "two", "three", "four"]
    answers = [example.answer for example in loaded.examples]
    assert answers[:3] == ["27.0", "0.1", "-4.0"]
    assert Fraction(answers[3]) == 10**22
    assert [example.id.rpartition(":")[2] for example in loaded.examples] == ["1", "2", "3", "4"]
    assert (loaded.rows, loaded.bad_rows) == (4, ())


@pytest.mark.parametrize(
    ("conditions", "taken"),
    [
        ([Condition("q", equals="two")], ["two"]),
        ([Condition("level", equals=3)], ["two"]),
        ([Condition("level", equals="3")], ["two"]),
        ([Condition("level", equals=3.0)], ["two"]),
        ([Condition("a", equals=27)], ["one"]),
        ([Condition("level", one_of=[1, 5])], ["one", "three"]),
        ([Condition("level", at_least=3)], ["two", "three"]),
        ([Condition("level", at_least=1, at_most=3)], ["one", "two"]),
        ([Condition("a", at_most=0)], ["three"]),
        ([Condition("meta.kind", matches="^sum")], ["one", "three"]),
        ([Condition("meta.kind", matches="^sum$")], ["one"]),
        ([Condition("meta.kind", matches="sum", negate=True)], ["two", "four"]),
        ([Condition("meta.ok", equals=True)], ["one", "three"]),
        ([Condition("meta.ok", equals="false")], ["two"]),
        ([Condition("q", at_least=0, negate=True)], ["one", "two", "three", "four"]),
        ([Condition("meta.kind", matches="sum"), Condition("level", at_least=2)], ["three"]),
    ],
)
def test_filters(load, conditions, taken):
    assert prompts(load(filter=conditions)) == taken


def test_a_filter_decides_before_a_row_is_held_against_the_limit(tmp_path):
    rows = [{"prompt": "p", "answer": "1", "use": "yes"}, {"answer": None, "use": "no"}]
    loaded = load_jsonl(
        write_jsonl(tmp_path / "t.jsonl", rows), filter=[Condition("use", equals="yes")]
    )
    assert (len(loaded.examples), loaded.rows, loaded.bad_rows) == (1, 1, ())


def test_filters_that_leave_nothing_or_name_no_column(load):
    with pytest.raises(UserError, match="the filter leaves none of 4 rows"):
        load(filter=[Condition("q", equals="five")])
    with pytest.raises(
        UserError, match=r"4 of 4 rows are bad .*filter: no column 'grade' .*; mend "
    ):
        load(filter=[Condition("grade", equals="five")])
    with pytest.raises(UserError, match="needs equals, one_of, matches"):
        Condition("q")
    with pytest.raises(UserError, match=r"filter = '\(': not a regular expression"):
        Condition("q", matches="(")


def test_filters_are_never_code(load, tmp_path):
    """Fault: a filter that is evaluated."""
    evil = f"__import__('pathlib').Path({str(tmp_path / 'made')!r}).touch()"
    with pytest.raises(UserError, match="leaves none"):
        load(filter=[Condition("q", equals=evil)])
    assert not (tmp_path / "made").exists()


def test_seeded_order_and_limit(load):
    first = prompts(load(shuffle_seed=4))
    assert sorted(first) == ["four", "one", "three", "two"]
    assert prompts(load(shuffle_seed=4)) == first
    assert {tuple(prompts(load(shuffle_seed=seed))) for seed in range(8)} > {tuple(first)}
    assert prompts(load(shuffle_seed=4, limit=2)) == first[:2]
    assert prompts(load(limit=2)) == ["one", "two"]
    with pytest.raises(UserError, match="limit = 0"):
        load(limit=0)


def test_templates(load):
    assert prompts(load(template="Q: {prompt} \\boxed{}", limit=1)) == ["Q: one \\boxed{}"]
    with pytest.raises(UserError, match=r"template = 'Q:': must contain one of \{prompt\}, \{q\}"):
        load(template="Q:")


def test_columns_in_a_template_are_put_in_once(tmp_path):
    path = write_jsonl(tmp_path / "t.jsonl", [{"c": "{q} is it", "q": "why {c}?", "answer": "1"}])
    (example,) = load_jsonl(path, prompt=["c", "q"], template="[{c}] {q} ({x})").examples
    assert example.prompt == "[{q} is it] why {c}? ({x})"


CHOICES = [
    # ARC, CommonsenseQA and OpenBookQA on the hub
    ({"choices": {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "answer": "C"}, {}, "C"),
    ({"choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answer": "2"}, {}, "B"),
    # as their makers publish them
    (
        {
            "choices": [
                {"label": "A", "text": "x"},
                {"label": "B", "text": "y"},
                {"label": "C", "text": "z"},
            ],
            "answer": "A",
        },
        {},
        "A",
    ),
    ({"choices": ["x", "y", "z"], "answer": "B"}, {}, "B"),
    ({"choices": ["x", "y", "z"], "answer": 2}, {"choice_answer": "index"}, "C"),
    ({"choices": ["x", "y", "z"], "answer": "y"}, {"choice_answer": "text"}, "B"),
]


@pytest.mark.parametrize(("row", "layout", "letter"), CHOICES)
def test_layouts_of_multiple_choice(tmp_path, row, layout, letter):
    path = write_jsonl(tmp_path / "t.jsonl", [{"prompt": "Which?", **row}])
    (example,) = load_jsonl(path, choices="choices", **layout).examples
    assert example.prompt == "Which?\nA. x\nB. y\nC. z"
    assert example.answer == letter


def test_shuffled_choices_keep_the_right_one(tmp_path):
    """Fault: SciQ's columns put the right choice first, so that A is always right."""
    rows = [
        {"id": str(i), "prompt": "?", "right": f"r{i}", "w1": "a", "w2": "b", "w3": "c"}
        for i in range(40)
    ]
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    layout = {
        "answer": "right",
        "choices": ["right", "w1", "w2", "w3"],
        "choice_answer": "text",
        "id_column": "id",
    }
    loaded = load_jsonl(path, shuffle_choices=3, **layout).examples
    for row, example in zip(rows, loaded, strict=True):
        assert f"\n{example.answer}. {row['right']}" in example.prompt
        assert sorted(line[3:] for line in example.prompt.split("\n")[1:]) == sorted(
            ["a", "b", "c", row["right"]]
        )
    letters = [example.answer for example in loaded]
    assert set(letters) == set("ABCD")  # four of 40 draws: missing one has a chance of 4e-5
    assert load_jsonl(path, shuffle_choices=3, **layout).examples == loaded
    # The order belongs to the row, not to its place in the file.
    write_jsonl(path, rows[::-1])
    assert set(load_jsonl(path, shuffle_choices=3, **layout).examples) == set(loaded)
    assert {e.answer for e in load_jsonl(path, **layout).examples} == {"A"}


@pytest.mark.parametrize(
    ("choices", "answer", "reason"),
    [
        (["x"], "A", "1 choices; there must be 2 to 26"),
        ([str(i) for i in range(27)], "A", "27 choices"),
        (["x", "y"], "C", "the answer 'C' is not the label of one choice: A, B"),
        ({"text": ["x", "y"], "label": ["A", "A"]}, "A", "one label each, all different"),
        ({"text": ["x", "y"], "label": ["A"]}, "A", "one label each"),
        ("xy", "A", "must be a list of texts"),
        ([1, None], "A", "must be a list of texts"),
    ],
)
def test_bad_choices(tmp_path, choices, answer, reason):
    good = {"prompt": "p", "choices": ["x", "y"], "answer": "A"}
    path = write_jsonl(tmp_path / "t.jsonl", [good, {**good, "choices": choices, "answer": answer}])
    loaded = load_jsonl(path, choices="choices", max_bad_fraction=0.5)
    assert [row.line for row in loaded.bad_rows] == [2]
    assert reason in loaded.bad_rows[0].reason


def test_kinds_of_parquet_values(tmp_path):
    rows = [
        {"prompt": "p1", "answer": decimal.Decimal("1.50")},
        {"prompt": "p2", "answer": None},
    ]
    loaded = load_parquet(write_parquet(tmp_path / "t.parquet", rows), max_bad_fraction=0.5)
    assert [example.answer for example in loaded.examples] == ["1.50"]
    assert [(row.line, row.reason) for row in loaded.bad_rows] == [
        (2, "'answer' must be text, a number or a list of these")
    ]
    lists = write_parquet(tmp_path / "l.parquet", [{"prompt": "p", "answer": [1.0, float("nan")]}])
    with pytest.raises(UserError, match="1 of 1 rows are bad"):
        load_parquet(lists)


def test_files_of_a_split(tmp_path):
    for name, number in (("train-00000-of-00002", 1), ("train-00001-of-00002", 2), ("test", 3)):
        row = {"prompt": f"p{number}", "answer": str(number)}
        write_parquet(tmp_path / "data" / f"{name}.parquet", [row, {"prompt": None}])
    loaded = load_parquet(tmp_path / "data", split="train", max_bad_fraction=0.5)
    assert [example.answer for example in loaded.examples] == ["1", "2"]
    assert loaded.examples[1].id == "train-00001-of-00002:1"
    assert str(loaded.bad_rows[1]).startswith("train-00001-of-00002.parquet line 2: ")
    # The folder above holds them in data/, as repositories of the hub do.
    assert len(load_parquet(tmp_path, split="train", max_bad_fraction=0.5).examples) == 2
    with pytest.raises(UserError, match=r"split 'dev'; such files in it: data/test\.parquet, "):
        load_parquet(tmp_path, split="dev")


def test_files_that_are_not_parquet(tmp_path):
    broken = tmp_path / "t.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        load_parquet(broken)
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        load_parquet(tmp_path / "missing.parquet")
    with pytest.raises(UserError, match=r"name ends in \.parquet"):
        load_parquet(write_jsonl(tmp_path / "t.jsonl", ROWS))


@pytest.mark.parametrize("in_splits", [False, True])
def test_data_sets_saved_to_disk(tmp_path, in_splits):
    table = datasets.Dataset.from_list([{"prompt": "p", "answer": 7}])
    saved = datasets.DatasetDict({"dev": table}) if in_splits else table
    saved.save_to_disk(str(tmp_path / "saved"))
    assert load_hub(str(tmp_path / "saved"), split="dev").examples[0].answer == "7"


def test_subsets_one_after_another(tmp_path):
    for name in ("algebra", "geometry"):
        write_parquet(tmp_path / name / "test.parquet", [{"prompt": name, "answer": "1"}])
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: algebra\n  data_files: algebra/*\n"
        "- config_name: geometry\n  data_files: geometry/*\n---\n"
    )
    loaded = load_hub(str(tmp_path), split="train", subset=["algebra", "geometry"])
    assert [e.prompt for e in loaded.examples] == ["algebra", "geometry"]
    assert len({e.id for e in loaded.examples}) == 2


def test_the_hub_out_of_reach_is_told_with_the_way_out():
    """HF_HUB_OFFLINE is set for all tests: the library itself refuses the network."""
    with pytest.raises(UserError) as caught:
        load_hub("nobody/no_such_dataset", split="train")
    told = str(caught.value)
    assert told.startswith("dataset = 'nobody/no_such_dataset': split 'train' cannot be loaded (")
    assert "jsonl or parquet with path: FILE" in told and "\n" not in told


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), ValueError("Unknown split"), OSError()]
)
def test_whatever_the_library_raises_is_one_error(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(UserError, match=f"cannot be loaded .{type(error).__name__}.*local path"):
        load_hub("a/b", split="train", subset="main")


def test_missing_libraries_name_the_extra(monkeypatch, tmp_path):
    path = write_parquet(tmp_path / "t.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs pyarrow .*pip install 'hacpo-jax\[data\]'"):
        load_parquet(path)
    with pytest.raises(UserError, match=r"needs datasets .*pip install 'hacpo-jax\[data\]'"):
        load_hub("a/b", split="train")


def test_sections_of_the_config(tmp_path):
    path = write_parquet(tmp_path / "hub" / "train.parquet", ROWS)
    columns: dict = {
        "prompt": "q",
        "answer": "a",
        "filter": [{"column": "level", "one_of": [1, 5]}],
        "shuffle_seed": 1,
        "template": "{prompt}!",
    }
    parquet = Parquet.model_validate({"kind": "parquet", "path": str(path), **columns})
    hub = Hub.model_validate({"kind": "hub", "dataset": str(path.parent), **columns})
    for source in (parquet, hub):
        assert {e.prompt for e in load_examples(source, "task.train")} == {"one!", "three!"}
    bad = parquet.model_copy(update={"path": str(tmp_path / "no.parquet")})
    with pytest.raises(UserError, match=r"task\.eval\.x\.path = .*cannot be read"):
        load_examples(bad, "task.eval.x")
