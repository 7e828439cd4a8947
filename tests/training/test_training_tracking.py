"""TensorBoard and Weights & Biases: what is sent, on resume too, read back from their files."""

import builtins
import json
import struct
import time
from collections.abc import Iterator

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tiny_runs import tiny_config
from wandb.proto import wandb_internal_pb2

from hacpo_jax.errors import UserError
from hacpo_jax.training import trainer
from hacpo_jax.training.console import Console
from hacpo_jax.training.run_dir import read_rows
from hacpo_jax.training.tracking import TensorBoard, WeightsAndBiases, open_trackers
from hacpo_jax.training.trainer import train

ANSWER = {
    "step": 2,
    "agent": "red",
    "benchmark": "sums",
    "problem": "p0",
    "prompt": "1+1=",
    "answer": "2",
    "response": "# not a heading\n<b>2</b>",
    "reward": 1.0,
}


def metrics(step: int, agent: str, reward: float | None) -> dict:
    return {"step": step, "agent": agent, "reward/mean": reward, "kl": None, "loss": float("nan")}


def read(path) -> EventAccumulator:
    events = EventAccumulator(str(path), tensor_size_guidance={"scalars": 0, "text": 0})
    events.Reload()
    return events


def scalars(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors(tag)]


def test_tensorboard_has_a_folder_for_each_agent(tmp_path):
    board = TensorBoard(tmp_path, ["red", "blue"], 0)
    for step in (1, 2):
        board.metrics([metrics(step, "red", 0.25 * step), metrics(step, "blue", None)])
    accuracy = {"step": 2, "agent": "red", "benchmark": "sums", "accuracy": 0.5, "problems": 4}
    board.evaluation([accuracy], [ANSWER])
    board.close()
    red, blue = read(tmp_path / "red"), read(tmp_path / "blue")
    # What is null or no number is no point.
    assert set(red.Tags()["tensors"]) == {
        "reward/mean",
        "evaluation/sums/accuracy",
        "evaluation/sums/problems",
        "answers/sums/p0",
    }
    assert blue.Tags()["tensors"] == []
    assert scalars(red, "reward/mean") == [(1, 0.25), (2, 0.5)]
    assert scalars(red, "evaluation/sums/accuracy") == [(2, 0.5)]
    (shown,) = red.Tensors("answers/sums/p0")
    text = shown.tensor_proto.string_val[0].decode()
    # Indented lines are blocks of code in Markdown, in which nothing is markup.
    assert "\n    # not a heading\n    <b>2</b>" in text


def test_steps_that_a_killed_run_does_again_are_there_once(tmp_path):
    board = TensorBoard(tmp_path, ["red"], 0)
    for step in (1, 2, 3):
        board.metrics([metrics(step, "red", 0.1)])
    board.close()
    board = TensorBoard(tmp_path, ["red"], 1)  # the last checkpoint was that of step 1
    for step in (2, 3, 4):
        board.metrics([metrics(step, "red", 0.5)])
    board.close()
    found = dict(scalars(read(tmp_path / "red"), "reward/mean"))
    assert found == pytest.approx({1: 0.1, 2: 0.5, 3: 0.5, 4: 0.5})
    assert len(scalars(read(tmp_path / "red"), "reward/mean")) == 4


def records(path) -> Iterator[bytes]:
    """Records of a W&B file: LevelDB's log format (32 KiB blocks) after 7 bytes of its own."""
    data, place, parts = path.read_bytes(), 7, []
    while place + 7 <= len(data):
        left = 2**15 - place % 2**15
        if left < 7:  # the rest of a block holds no header
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def stored(folder) -> list[dict]:
    """Rows of history in an offline W&B run."""
    (path,) = folder.glob("*.wandb")
    rows = []
    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return rows


def test_wandb_offline_is_one_run_over_two_processes(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings = {"wandb": {"project": "p", "name": "first", "mode": "offline"}}
    config = tiny_config(tmp_path, agents=("one", "two"), tracking=settings)
    assert config.tracking.wandb is not None
    for step in (1, 2):
        time.sleep(1.1)  # W&B names a folder by the second; another process would begin later
        run = WeightsAndBiases(config, config.tracking.wandb, tmp_path)
        run.metrics([metrics(step, "one", 0.5), metrics(step, "two", None)])
        run.evaluation([{"step": step, "agent": "one", "benchmark": "b", "accuracy": 0.25}], [])
        run.close()
    name = (tmp_path / "wandb_id.txt").read_text().strip()
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert all(folder.name.endswith(name) for folder in folders)
    rows = [row for folder in folders for row in stored(folder)]
    assert [row["_step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["one/reward/mean"] == 0.5
        assert row["one/evaluation/b/accuracy"] == 0.25
        assert "two/reward/mean" not in row


@pytest.mark.parametrize(
    ("library", "tracking", "field"),
    [
        ("tensorboard", {"tensorboard": True}, "tracking.tensorboard"),
        ("wandb", {"wandb": {"project": "p"}}, "tracking.wandb.project"),
    ],
)
def test_a_missing_library_is_told_before_anything_else(
    tmp_path, monkeypatch, library, tracking, field
):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == library:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    def expensive(*_, **__):
        raise AssertionError("the run was prepared")

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(trainer, "prepare", expensive)
    with pytest.raises(UserError, match=r"pip install 'hacpo-jax\[track\]'") as caught:
        train(tiny_config(tmp_path / "run", tracking=tracking), Console())
    assert caught.value.field == field
    assert not (tmp_path / "run").exists()


def test_wandb_that_lets_nobody_in_is_one_error(tmp_path, monkeypatch):
    import wandb

    def refuse(**_):
        raise wandb.Error("no such entity")

    monkeypatch.setattr(wandb, "init", refuse)
    config = tiny_config(tmp_path, tracking={"wandb": {"project": "p"}})
    with pytest.raises(UserError, match=r"no such entity.*mode=offline"):
        open_trackers(config, tmp_path, 0)


def test_a_run_writes_to_its_tracker_and_keeps_sample_answers(tmp_path, compile_quickly):
    config = tiny_config(
        tmp_path / "run",
        agents=("one", "three"),
        tracking={"tensorboard": True},
        evaluation={"log_answers": 2, "samples": 2, "temperature": 1.0},
    )
    train(config, Console())
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    events = read(tmp_path / "run" / "tensorboard" / "three")
    for key in ("reward/mean", "ratio/one", "samples/one"):
        expected = {row["step"]: row[key] for row in rows if row["agent"] == "three"}
        assert dict(scalars(events, key)) == pytest.approx(expected)
    assert [row["samples/one"] for row in rows if row["agent"] == "three"] == [6, 6]
    answers = read_rows(tmp_path / "run" / "answers.jsonl")
    assert [(row["step"], row["agent"]) for row in answers] == [
        (step, agent) for step in (0, 2) for agent in ("one", "three") for _ in range(2)
    ]
    assert {row["sample"] for row in answers} == {0}
    assert all(f"answers/held/{row['problem']}" in events.Tags()["tensors"] for row in answers)
