"""What the benchmark of compiling refuses."""

import subprocess

import compiling
import pytest


def said(capsys, monkeypatch, word: str) -> str:
    monkeypatch.setattr("sys.argv", ["compiling.py", word])
    with pytest.raises(SystemExit) as ended:
        compiling.main()
    out, err = capsys.readouterr()
    assert out == ""  # no heading of a table that does not come
    return err if ended.value.code == 2 else str(ended.value.code)


def test_a_bad_setting_is_refused_before_any_run(capsys, monkeypatch):
    monkeypatch.setattr(compiling, "run_once", None)
    assert "training.steps = 0: must be a whole number" in said(
        capsys, monkeypatch, "training.steps=0"
    )


def test_what_only_a_run_finds_is_passed_on_alone(capsys, monkeypatch):
    told = "a warning\nerror: sampling.max_new_tokens = 61: leaves no room\n"
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 2, "", told)
    )
    wanted = "error: sampling.max_new_tokens = 61: leaves no room"
    assert said(capsys, monkeypatch, "sampling.max_new_tokens=61") == wanted
