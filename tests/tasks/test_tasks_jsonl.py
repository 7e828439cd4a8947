"""JSON Lines data sets."""

import json

import pytest

from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Example, load_jsonl


def write(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    )
    return path


def test_columns(tmp_path):
    path = write(
        tmp_path,
        {"q": "1+1?", "sol": "It is 2.", "a": "2", "name": "x"},
        {"q": "2+2?", "sol": "", "a": " 4 ", "name": 7},
    )
    loaded = load_jsonl(path, prompt="q", answer="a", solution="sol", id_column="name")
    assert loaded.bad_rows == ()
    assert loaded.examples == (
        Example("x", "1+1?", "2", "It is 2."),
        Example("7", "2+2?", "4", "4"),
    )


def test_default_ids_are_line_numbers(tmp_path):
    path = write(tmp_path, {"prompt": "a", "answer": "1"}, b"", {"prompt": "b", "answer": "2"})
    assert [e.id for e in load_jsonl(path).examples] == ["data:1", "data:3"]


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (b'"7"', "7"),
        (b"27.0", "27.0"),
        (b"-3", "-3"),
        (b"12345678901234567890123", "12345678901234567890123"),
        (b"1e400", "1e400"),
        (b'["$2$", "$3$"]', "$2$, $3$"),
        (b"[1, 2.5]", "1, 2.5"),
        (b'"\\u00e9\\ud83d\\ude00"', "é😀"),
    ],
)
def test_kinds_of_answers(tmp_path, written, answer):
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "p", "answer": ' + written + b"}\r")
    assert load_jsonl(path).examples[0].answer == answer


def test_paths_into_objects(tmp_path):
    path = write(tmp_path, {"prompt": "p", "reward": {"truth": "5"}, "a.b": "6"})
    assert load_jsonl(path, answer="reward.truth").examples[0].answer == "5"
    assert load_jsonl(path, answer="a.b").examples[0].answer == "6"


def test_several_prompt_columns(tmp_path):
    path = write(
        tmp_path,
        {"body": "Two apples.", "question": "How many?", "answer": "2"},
        {"body": None, "question": "And?", "answer": "3"},
    )
    examples = load_jsonl(path, prompt=("body", "question")).examples
    assert [e.prompt for e in examples] == ["Two apples. How many?", "And?"]


def test_answer_pattern_and_box(tmp_path):
    text = r"2 + 3 = \boxed{5}, so" + "\n#### 1,234 \n"
    path = write(tmp_path, {"prompt": "p", "answer": text})
    assert load_jsonl(path, answer_pattern="#### (.*)").examples[0].answer == "1,234"
    assert load_jsonl(path, answer_pattern=r"\d,\d+").examples[0].answer == "1,234"
    assert load_jsonl(path, boxed=True).examples[0].answer == "5"
    solved = load_jsonl(path, answer_pattern="#### (.*)", solution="answer").examples[0]
    assert solved.solution == text


BAD = [
    (b"{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
    (b"{\xe9", "not UTF-8 (0xe9 at byte 2): save the file as UTF-8"),
    (b'{"prompt": "p", "answer": NaN}', "not JSON: NaN"),
    (b"[" * 100_000, "not JSON"),
    (b"[1]", "not a JSON object but a list"),
    (b'{"prompt": "p"}', "no column 'answer' (columns: prompt)"),
    (b'{"prompt": " ", "answer": "1"}', "empty prompt in 'prompt'"),
    (b'{"prompt": "p", "answer": "\\n"}', "empty answer in 'answer'"),
    (b'{"prompt": "p", "answer": []}', "empty answer in 'answer'"),
    (b'{"prompt": "p", "answer": null}', "'answer' must be text, a number or a list of these"),
    (b'{"prompt": "p", "answer": true}', "'answer' must be text, a number or a list of these"),
    (b'{"prompt": "p", "answer": [{}]}', "'answer' must be text, a number or a list of these"),
    (b'{"prompt": "\\ud800", "answer": "1"}', "'prompt' is not valid Unicode"),
]


def test_bad_rows_are_listed_and_the_rest_loads(tmp_path):
    good = [{"prompt": f"p{i}", "answer": str(i)} for i in range(4)]
    path = write(tmp_path, *good, *(line for line, _ in BAD))
    loaded = load_jsonl(path, max_bad_fraction=0.9)
    assert [e.answer for e in loaded.examples] == ["0", "1", "2", "3"]
    assert [row.line for row in loaded.bad_rows] == list(range(5, 5 + len(BAD)))
    for row, (_, reason) in zip(loaded.bad_rows, BAD, strict=True):
        assert row.reason.startswith(reason)


def test_rows_without_the_pattern_or_the_box(tmp_path):
    path = write(
        tmp_path, {"prompt": "p", "answer": r"#### \boxed{1}"}, {"prompt": "p", "answer": "2"}
    )
    for how in ({"answer_pattern": "#### (.*)"}, {"boxed": True}):
        loaded = load_jsonl(path, max_bad_fraction=0.5, **how)
        assert [row.line for row in loaded.bad_rows] == [2]
        assert "no " in loaded.bad_rows[0].reason


def test_repeated_ids_are_bad(tmp_path):
    path = write(tmp_path, *({"prompt": p, "answer": "1", "id": "same"} for p in "ab"))
    loaded = load_jsonl(path, id_column="id", max_bad_fraction=0.5)
    assert [e.prompt for e in loaded.examples] == ["a"]
    assert loaded.bad_rows[0].line == 2 and "'same'" in loaded.bad_rows[0].reason


def test_the_largest_share_of_bad_rows(tmp_path):
    rows = [{"prompt": f"p{i}", "answer": "1"} for i in range(99)]
    assert len(load_jsonl(write(tmp_path, *rows, b"oops")).bad_rows) == 1  # 1 of 100
    with pytest.raises(UserError, match=r"2 of 100 rows are bad \(line 99: .*; line 100: "):
        load_jsonl(write(tmp_path, *rows[:98], b"oops", b"oops"))


def test_wrong_column_names_tell_the_right_ones(tmp_path):
    path = write(tmp_path, {"question": "p", "answer": "1"})
    with pytest.raises(UserError, match=r"no column 'prompt' \(columns: question, answer\)"):
        load_jsonl(path)


@pytest.mark.parametrize("lines", [[], [b"", b"  ", b""], [b"oops"]])
def test_empty_dataset(tmp_path, lines):
    with pytest.raises(UserError, match="an empty dataset"):
        load_jsonl(write(tmp_path, *lines), max_bad_fraction=1.0)


def test_what_to_do_about_an_empty_file_or_one_that_is_not_utf_8(tmp_path):
    with pytest.raises(UserError, match=r"it has no rows; name a file that has, or write it again"):
        load_jsonl(write(tmp_path))
    text = '{"prompt": "é", "answer": "1"}'
    with pytest.raises(UserError, match=r"line 1: not UTF-8 .*save the file as UTF-8"):
        load_jsonl(write(tmp_path, text.encode("latin-1")))
    with pytest.raises(UserError, match=r"path = .* is UTF-16; save it as UTF-8"):
        load_jsonl(write(tmp_path, text.encode("utf-16")))


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(UserError, match="cannot be read") as caught:
            load_jsonl(path)
        assert caught.value.value == str(path)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"answer_pattern": "("}, "answer_pattern"),
        ({"answer_pattern": "x", "boxed": True}, "answer_pattern"),
        ({"max_bad_fraction": 1.5}, "max_bad_fraction"),
    ],
)
def test_bad_arguments(tmp_path, arguments, field):
    with pytest.raises(UserError) as caught:
        load_jsonl(write(tmp_path, {"prompt": "p", "answer": "1"}), **arguments)
    assert caught.value.field == field


# file: (arguments, rows, rows with an empty answer, first answer, golds with a comma or None)
GSM8K = {"prompt": "question", "answer_pattern": "#### (.*)", "solution": "answer"}
MATH = {"prompt": "problem", "answer": "solution", "boxed": True}
BENCHMARKS = {
    "aime24/test": ({"prompt": "problem", "id_column": "id"}, 30, 0, "204", 0),
    "aime25/test": ({"prompt": "problem"}, 30, 0, "70", 0),
    "amc23/test": ({"prompt": "question", "id_column": "id"}, 40, 0, "27.0", 0),
    "gsm8k/test": (GSM8K, 1319, 0, "18", 14),
    "gsm8k/train": (GSM8K, 7473, 0, "72", None),
    "math/test": (MATH, 5000, 0, "2", None),
    "math/train": (MATH, 7500, 2, "0", None),
    "math500/test": (
        {"prompt": "problem", "id_column": "unique_id"},
        500,
        0,
        r"\left( 3, \frac{\pi}{2} \right)",
        None,
    ),
    "minerva_math/test": (MATH, 272, 0, "1.6", None),
    "olympiadbench/test": (
        {"prompt": ("context", "question"), "answer": "final_answer", "solution": "solution"},
        675,
        0,
        "2",
        None,
    ),
    "svamp/test": (
        {"prompt": ("Body", "Question"), "answer": "Answer", "id_column": "ID"},
        1000,
        0,
        "145.0",
        0,
    ),
}


def test_benchmark_files(tmp_path, shared_dir):
    """Loads every benchmark file there is, and at least the one written here."""
    text = "4 * 300 = 1200\n#### 1,200"
    cases = [(write(tmp_path, {"question": "q", "answer": text}), GSM8K, 1, 0, "1,200", 1)]
    for name, case in BENCHMARKS.items():
        path = shared_dir / "data" / f"{name}.jsonl"
        if path.exists():
            cases.append((path, *case))
    for path, arguments, rows, empty, first, commas in cases:
        loaded = load_jsonl(path, **arguments)
        assert len(loaded.examples) == rows - empty, path
        assert all("empty answer" in row.reason for row in loaded.bad_rows), path
        assert loaded.examples[0].answer == first, path
        if commas is not None:
            assert sum("," in e.answer for e in loaded.examples) == commas, path
