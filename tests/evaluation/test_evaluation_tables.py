"""Tables of results, and the file of answers that a killed evaluation goes on from."""

import json
import math

import numpy as np
import pytest

from hacpo_jax.errors import UserError
from hacpo_jax.evaluation import (
    AnswerFile,
    Graded,
    Row,
    answer_rows,
    figures_rows,
    fingerprint,
    results_table,
)
from hacpo_jax.tasks import Example
from hacpo_jax.tasks.problems import Problems

PROBLEMS = Problems(
    examples=(Example("p0", "1?", "1"), Example("p1", "2?", "2")),
    texts=("Q: 1?", "Q: 2?"),
    tokens=(((1,), (2,)),),
    dropped=0,
)
GRADED = Graded(
    texts=[["1", "é\n"], ["</script>", "2"]],
    rewards=np.array([[1.0, 0.0], [0.0, 0.5]]),
    valid=np.array([[True, True], [False, True]]),
    lengths=np.array([[1, 2], [3, 4]]),
    stopped=np.array([[True, False], [True, True]]),
)


def scores(accuracy: float, error: float | None, **others) -> dict:
    return {
        "accuracy": accuracy,
        "accuracy/se": error,
        "samples": 2,
        "problems": 10,
        "response_length/mean": 3.25,
        "truncated": 0.5,
        "invalid": 1,
        **others,
    }


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def row(agent, algorithm, subject, math_score, aime=0.25) -> Row:
    best = {"best@30": aime, "best@30/se": 0.04}
    return Row(
        agent,
        algorithm,
        subject,
        {"MATH": scores(math_score, 0.03), "AIME": scores(0.1, 0.01, **best)},
        {"MATH": "accuracy", "AIME": "best@30"},
    )


def test_the_table_has_agents_and_algorithms_down_and_benchmarks_across():
    rows = [
        row("small", "gspo", "runs/a", 0.5),
        row("large", "gspo", "runs/a", 0.7),
        row("small", "hacpo", "runs/b", 0.6, aime=0.2),
    ]
    lines = results_table(rows).splitlines()
    assert cells(lines[0]) == ["agent", "algorithm", "MATH (avg@2)", "AIME (best@30)", "average"]
    error = 100 * math.sqrt(0.03**2 + 0.04**2) / 2
    assert cells(lines[2]) == ["small", "gspo", "50.0 ± 3.0", "**25.0** ± 4.0", "37.5 ± 2.5"]
    assert error == pytest.approx(2.5)
    assert cells(lines[3]) == ["small", "hacpo", "**60.0** ± 3.0", "20.0 ± 4.0", "**40.0** ± 2.5"]
    # The only row of its agent has nothing to be better than.
    assert cells(lines[4]) == ["large", "gspo", "70.0 ± 3.0", "25.0 ± 4.0", "47.5 ± 2.5"]
    assert lines[6] == "Every figure:"
    assert len({len(line) for line in lines[:5]}) == 1


def test_two_subjects_of_one_kind_are_told_apart_and_a_missing_benchmark_is_a_dash():
    one, other = row("small", "gspo", "a@0", 0.5), row("small", "gspo", "b", 0.5)
    other = Row("small", "gspo", "b", {"MATH": scores(0.5, None)}, {"MATH": "accuracy"})
    lines = results_table([one, other]).splitlines()
    assert cells(lines[0])[2] == "from"
    assert cells(lines[3]) == ["small", "gspo", "b", "**50.0**", "—", "—"]


def test_names_cannot_break_the_table():
    name = "a|b\nc"
    line = results_table([Row("x", "gspo", "s", {name: scores(1, 0)}, {name: "accuracy"})])
    assert line.splitlines()[0].count("\\|") == 1


def test_rows_of_what_is_written():
    figures = {
        "subject": "runs/a",
        "algorithms": {"x": None},
        "draws": {"MATH": {"headline": "accuracy"}},
        "agents": {"x": {"MATH": scores(1, 0)}},
    }
    (found,) = figures_rows(figures)
    assert (found.agent, found.algorithm) == ("x", "before training")


def fill(path, draws="d1"):
    with AnswerFile(path) as file:
        file.add(draws, "math", {"red": answer_rows(PROBLEMS, [0, 1], GRADED)})


def test_answers_come_back_as_they_were(tmp_path):
    fill(tmp_path / "new" / "answers.jsonl")
    lines = (tmp_path / "new" / "answers.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {
        "agent": "red",
        "benchmark": "math",
        "problem": "p0",
        "sample": 1,
        "prompt": "Q: 1?",
        "answer": "1",
        "response": "é\n",
        "reward": 0.0,
        "valid": True,
        "finish_reason": "length",
        "length": 2,
        "draws": "d1",
    }
    with AnswerFile(tmp_path / "new" / "answers.jsonl") as file:
        found = file.graded("d1", "red", "math", PROBLEMS, 2)
        assert found.texts == GRADED.texts
        for name in ("rewards", "valid", "lengths", "stopped"):
            np.testing.assert_array_equal(getattr(found, name), getattr(GRADED, name))
        assert file.has("d1", "red", "math", "p1", 2)
        for other in (("d2", "red", "math", "p1", 2), ("d1", "blue", "math", "p1", 2)):
            assert not file.has(*other)
        assert not file.has("d1", "red", "math", "p1", 3)


def test_a_kill_in_the_middle_of_a_line_costs_that_line(tmp_path):
    path = tmp_path / "answers.jsonl"
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with AnswerFile(path) as file:
        assert file.has("d1", "red", "math", "p0", 2)
        assert not file.has("d1", "red", "math", "p1", 2)
        file.add("d1", "math", {"red": answer_rows(PROBLEMS, [1], GRADED.take(1))})
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_answers_of_another_evaluation_stay(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"agent": "a row of an earlier version"}\n')
    fill(path, "d1")
    fill(path, "d2")
    with AnswerFile(path) as file:
        assert file.has("d1", "red", "math", "p0", 2)
        assert file.has("d2", "red", "math", "p0", 2)
    assert path.read_text().startswith('{"agent": "a row')


def test_what_is_no_file_of_answers_is_left_alone(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("dear diary\n")
    with pytest.raises(UserError, match="not JSON, at byte 0"):
        AnswerFile(path)
    assert path.read_text() == "dear diary\n"
    with pytest.raises(UserError, match="cannot be written"):
        AnswerFile(path / "below" / "a file")


def test_one_process_at_a_time(tmp_path):
    with (
        AnswerFile(tmp_path / "answers.jsonl"),
        pytest.raises(UserError, match="another evaluation is writing there"),
    ):
        AnswerFile(tmp_path / "answers.jsonl")


def test_a_fingerprint_changes_with_settings_and_problems_alone():
    same = fingerprint({"a": 1, "b": 2}, PROBLEMS)
    assert fingerprint({"b": 2, "a": 1}, PROBLEMS) == same
    assert fingerprint({"a": 1, "b": 3}, PROBLEMS) != same
    assert fingerprint({"a": 1, "b": 2}, PROBLEMS.first(1)) != same
