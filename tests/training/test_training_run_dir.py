"""A run's directory: whose it is, and what a kill leaves in it."""

import json

import pytest
from tiny_runs import tiny_config

from hacpo_jax.errors import UserError
from hacpo_jax.training.console import Console
from hacpo_jax.training.run_dir import RunDirectory, read_rows
from hacpo_jax.training.trainer import train


def taken(config) -> RunDirectory:
    directory = RunDirectory(config)
    directory.claim(config)
    return directory


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a run that is over for now; it has finished a step."""
    config = tiny_config(tmp_path / "run")
    directory = taken(config)
    directory.log_metrics([{"step": 1, "agent": "one"}])
    directory.close()
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 3}, "seed is 0 there and 3 here"),
        ({"optimizer": {"learning_rate": 0.5}}, r"agents\.0\.optimizer\.learning_rate is 0\.01"),
        ({"agents": ("one", "three", "two")}, r"agents\.1\..* is .* there"),
        ({"agents": ("one", "two")}, r"agents\.2\..* is .* there and null here"),
        ({"algorithm": {"name": "naive"}}, r"agents\.0\.algorithm\.name is hacpo there and naive"),
    ],
)
def test_a_directory_of_another_config_is_refused_by_the_key_that_differs(
    run_dir, changed, message
):
    with pytest.raises(UserError, match=f"belongs to another config: {message}"):
        RunDirectory(tiny_config(run_dir, **changed))


def test_checkpoint_habits_and_more_steps_are_no_other_run(run_dir):
    config = tiny_config(run_dir, checkpoint={"every": 3}, training={"steps": 50})
    RunDirectory(config).close()


def test_devices_may_be_arranged_otherwise(run_dir):
    """A checkpoint belongs to no mesh; what an agent inherits or says of its own may differ."""
    arranged = tiny_config(
        run_dir,
        mesh={"fsdp": 1, "tensor": 1, "offload": True},
        placement="partitioned",
        training={"remat": True},
    )
    RunDirectory(arranged).close()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_more_steps_are_another_run_where_a_schedule_depends_on_them(tmp_path, schedule):
    optimizer = {"learning_rate": 0.01, "schedule": schedule}
    directory = taken(tiny_config(tmp_path / "run", optimizer=optimizer))
    directory.log_metrics([{"step": 1, "agent": "one"}])
    directory.close()
    longer = tiny_config(tmp_path / "run", optimizer=optimizer, training={"steps": 50})
    with pytest.raises(UserError, match=r"training\.steps is 2 there and 50 here"):
        RunDirectory(longer)


def test_a_moved_run_is_the_same_run(run_dir, tmp_path):
    moved = run_dir.rename(tmp_path / "elsewhere")
    RunDirectory(tiny_config(moved)).close()


def test_what_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists and is no run"):
        RunDirectory(tiny_config(tmp_path))
    with pytest.raises(UserError, match="exists and is no run"):
        RunDirectory(tiny_config(tmp_path / "thesis.tex"))
    with pytest.raises(UserError, match="cannot be made"):
        RunDirectory(tiny_config(tmp_path / "thesis.tex" / "run"))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_one_run_at_a_time(run_dir):
    """Two processes in one directory."""
    first = RunDirectory(tiny_config(run_dir))
    with pytest.raises(UserError, match="another process is running there"):
        RunDirectory(tiny_config(run_dir))
    first.close()
    RunDirectory(tiny_config(run_dir)).close()


def test_a_failed_attempt_does_not_stand_in_the_way_of_the_mended_one(tmp_path):
    """Too few problems: found out before the directory is taken."""
    config = tiny_config(tmp_path / "run", training={"prompts_per_step": 14})
    with pytest.raises(UserError, match=r"training\.prompts_per_step = 14: there are only 12"):
        train(config, Console())
    assert list(tmp_path.iterdir()) == []
    # What a kill in the middle of taking it may leave.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml.part").write_text("run_di")
    taken(tiny_config(tmp_path / "run")).close()


def test_an_attempt_that_was_refused_takes_away_what_it_made_and_no_more(tmp_path):
    (tmp_path / "runs").mkdir()
    RunDirectory(tiny_config(tmp_path / "runs" / "a" / "b")).close()
    assert list((tmp_path / "runs").iterdir()) == []
    # A directory that was there stays.
    RunDirectory(tiny_config(tmp_path / "runs")).close()
    assert list((tmp_path / "runs").iterdir()) == []
    # And so does one in which somebody else has put something meanwhile.
    directory = RunDirectory(tiny_config(tmp_path / "runs" / "a" / "b"))
    (tmp_path / "runs" / "a" / "theirs").write_text("")
    directory.close()
    assert [path.name for path in (tmp_path / "runs" / "a").iterdir()] == ["theirs"]


def test_a_run_keeps_its_directory_when_it_ends_or_a_later_attempt_is_refused(run_dir):
    before = sorted(path.name for path in run_dir.iterdir())
    assert before == [".lock", "config.yaml", "metrics.jsonl"]
    with pytest.raises(UserError, match="belongs to another config"):
        RunDirectory(tiny_config(run_dir, seed=3))
    RunDirectory(tiny_config(run_dir)).close()
    assert sorted(path.name for path in run_dir.iterdir()) == before


def test_a_run_refused_at_its_first_grading_gives_its_directory_to_the_mended_one(tmp_path):
    """The start is a checkpoint by then, and grading comes before the first step."""
    alone = {"name": "gspo"}
    verifier = {"verifier": {"name": "operator:mul"}}
    broken = tiny_config(tmp_path / "run", agents=("one",), algorithm=alone, task=verifier)
    with pytest.raises(UserError, match=r"task\.verifier\.name = 'operator:mul': could grade none"):
        train(broken, Console(quiet=True))
    assert (tmp_path / "run" / "checkpoints" / "0").is_dir()
    mended = tiny_config(tmp_path / "run", agents=("two",), algorithm=alone)
    RunDirectory(mended).close()  # another mistake, say: what is there stays
    assert (tmp_path / "run" / "agents" / "one").is_dir()
    directory = taken(mended)
    assert "agents.0" in str(directory.replaces)
    directory.close()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "config.yaml"]
    (tmp_path / "run" / "agents" / "two").mkdir(parents=True)  # what comes next
    with pytest.raises(UserError, match=r"task\.verifier\.name"):  # the other way round
        train(broken, Console(quiet=True))
    assert [path.name for path in (tmp_path / "run" / "agents").iterdir()] == ["one"]


@pytest.mark.parametrize("sign", ["checkpoints/1", "rollouts/step_000001.jsonl", "notes.txt"])
def test_a_run_with_more_than_a_start_belongs_to_its_config(tmp_path, sign):
    config = tiny_config(tmp_path / "run")
    taken(config).close()
    (tmp_path / "run" / "agents").mkdir()
    (tmp_path / "run" / sign).mkdir(parents=True)
    with pytest.raises(UserError, match="belongs to another config: seed is 0 there and 3 here"):
        RunDirectory(tiny_config(tmp_path / "run", seed=3))


def test_a_config_alone_may_be_somebodys_work(tmp_path):
    taken(tiny_config(tmp_path / "run")).close()
    with pytest.raises(UserError, match="belongs to another config: seed is 0 there and 3 here"):
        RunDirectory(tiny_config(tmp_path / "run", seed=3))


def test_resuming_forgets_what_came_after_the_checkpoint(run_dir):
    """An evaluation belongs to the moment before the next step, so it is made again."""
    directory = RunDirectory(tiny_config(run_dir))
    directory.rewind(0)
    for step in (1, 2, 3):
        directory.log_metrics({"step": step, "agent": name, "x": 0.1} for name in ("one", "two"))
    for step in (0, 2):
        directory.log_evaluation([{"step": step, "agent": "one", "accuracy": 1 / 3}])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "agent": "one", "x')
    assert [row["step"] for row in directory.metrics()] == [1, 1, 2, 2, 3, 3]
    directory.rewind(2)
    assert [row["step"] for row in directory.metrics()] == [1, 1, 2, 2]
    assert directory.evaluations() == [{"step": 0, "agent": "one", "accuracy": 1 / 3}]
    directory.log_metrics([{"step": 3, "agent": "one", "x": 0.1}])
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 1, 2, 2, 3]
    directory.rewind(0)
    assert directory.metrics() == directory.evaluations() == []
    directory.close()


def test_rows_of_a_file_that_is_not_there(tmp_path):
    assert read_rows(tmp_path / "metrics.jsonl") == []


def test_seconds_are_those_of_the_last_row_whoever_wrote_it(tmp_path):
    directory = RunDirectory(tiny_config(tmp_path / "run"))
    assert directory.seconds() == 0.0
    directory.log_metrics([{"step": 1, "agent": "one"}])  # of a run that did not keep them
    assert directory.seconds() == 0.0
    for step, seconds in ((1, 4.5), (2, 8.25)):
        directory.log_metrics([{"step": step, "agent": "one", "time/run": seconds}])
    assert directory.seconds() == 8.25
    directory.close()
