"""`generate` with several agents, checkpoints and models, and with prompts from a file."""

import json
from pathlib import Path

import pytest

from hacpo_jax.cli.subjects import Subject, parse_subject
from hacpo_jax.launch import main


@pytest.mark.parametrize(
    ("word", "subject"),
    [
        ("runs/a", Subject(Path("runs/a"))),
        ("runs/a:left", Subject(Path("runs/a"), "left")),
        ("runs/a@20", Subject(Path("runs/a"), None, 20)),
        ("runs/a:left@20", Subject(Path("runs/a"), "left", 20)),
        ("C:/runs/a:q-1.7b@0", Subject(Path("C:/runs/a"), "q-1.7b", 0)),
        ("me@home/run", Subject(Path("me@home/run"))),
    ],
)
def test_what_a_subject_means(word, subject):
    assert parse_subject(word) == subject


def test_a_directory_is_taken_at_its_word(tmp_path):
    strange = tmp_path / "a:left@20"
    strange.mkdir()
    assert parse_subject(str(strange)) == Subject(strange)


@pytest.fixture(scope="module")
def model(tiny_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    assert main(["export", str(tiny_run), f"out={out}", "agent=left"]) == 0
    return out / "left"


def answers(capsys, *words: str) -> list[str]:
    """What one source alone answers: the lines between those about them."""
    capsys.readouterr()
    assert main(["generate", *words]) == 0
    parts = capsys.readouterr().out.split("--- ")[1:]
    return [part.split("\n", 1)[1].strip() for part in parts]


def test_sources_stand_side_by_side_and_answer_as_they_do_alone(tiny_run, model, capsys):
    prompts = ["prompt=3?", "prompt=6?"]
    draw = ["max_new_tokens=3"]
    alone = [
        answers(capsys, *source, *prompts, *draw)
        for source in (
            [f"run={tiny_run}", "agent=middle", "step=1"],
            [f"run={tiny_run}", "agent=left"],
            [f"model={model}"],
        )
    ]
    words = [f"of={tiny_run}:middle@1", f"of={tiny_run}:left", f"model={model}"]
    assert main(["generate", *words, *prompts, *draw]) == 0
    out = capsys.readouterr().out
    assert "prompt 1 of 2: 3?" in out and "prompt 2 of 2: 6?" in out
    assert out.count("finish reason") == 6
    for p in range(2):
        table = out.split("prompt ")[1 + p]
        # Narrow answers of three tokens stand in one line each.
        body = [line for line in table.splitlines() if line.startswith("│")]
        shown = [cell.strip() for cell in body[0].strip("│").split("│")]
        assert shown == [found[p].strip() for found in alone]
    assert "\x1b" not in out


def test_a_run_without_an_agent_is_all_of_them_and_many_stand_below_each_other(tiny_run, capsys):
    words = [f"of={tiny_run}@0", f"of={tiny_run}", "prompt=3?", "max_new_tokens=2"]
    assert main(["generate", *words]) == 0
    out = capsys.readouterr().out
    for name in ("left", "middle", "right"):
        assert f"--- {tiny_run}:{name}@0: answer 1 of 1: " in out
        assert f"--- {tiny_run}:{name}: answer 1 of 1: " in out


def test_prompts_of_a_file_follow_those_of_the_command_line(tiny_run, tmp_path, capsys):
    plain, rows = tmp_path / "plain.txt", tmp_path / "rows.jsonl"
    plain.write_text("1?\n\n2? \n")
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("1?", "2? ")))
    one = [f"run={tiny_run}", "agent=left", "max_new_tokens=2"]
    expected = answers(capsys, *one, "prompt=5?", "prompt=1?", "prompt=2? ")
    assert len(expected) == 3
    for path in (plain, rows):
        assert answers(capsys, *one, "prompt=5?", f"prompts={path}") == expected


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"problem": "y"}\n', "line 2 must be an object"),
        ("a.jsonl", "plain\n", "line 1 must be an object"),
        ("a.txt", "\n \n", "holds no prompt"),
    ],
)
def test_files_without_prompts(refused, tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    assert said in refused("generate", "model=x", f"prompts={tmp_path / name}")


def test_sources_are_looked_up_before_any_answers(tiny_run, refused, monkeypatch):
    from hacpo_jax.cli import generate

    monkeypatch.setattr(generate, "_answer_all", None)
    assert "agent = 'center'" in refused(
        "generate", f"of={tiny_run}:left", f"of={tiny_run}:center", "prompt=x"
    )
    assert "step = 7" in refused("generate", f"of={tiny_run}:left@7", "prompt=x")


def test_answers_as_long_as_all_positions_are_refused_by_their_own_name(tiny_run, refused):
    words = (f"of={tiny_run}:left", "prompt=x", "max_new_tokens=32")
    assert "max_new_tokens = 32: leaves no room for a prompt in the 32 positions of left; " in (
        refused("generate", *words)
    )
