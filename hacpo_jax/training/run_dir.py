"""A run's directory: config, metrics, evaluations, samples, summary."""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from hacpo_jax.config import Config, load_config, save_config
from hacpo_jax.errors import UserError
from hacpo_jax.exchange import Rollout, write_jsonl
from hacpo_jax.parallel.hosts import ALONE, Hosts

_CONFIG, _LOCK = "config.yaml", ".lock"
_PART = ".part"  # of a file that is being written
_AGENTS_MESH = re.compile(r"agents\.\d+\.mesh\.")
_BEFORE_STEPS = {
    *("agents", "checkpoints", "tensorboard", "wandb", "wandb_id.txt"),
    *("metrics.jsonl", "diagnostics.jsonl", "evaluations.jsonl", "answers.jsonl"),
}
"""What a run that has finished no step may have written, beside its config."""


class RunDirectory:
    """Where one run writes; one run at a time.

    Of the processes of a run the first has the directory: it writes everything but the records
    that others have.

    The directory belongs to the run only after `claim`: a config that turns out to be wrong leaves
    nothing behind.

    Attributes:
      replaces: how the config that is there differs, where it is another one that has finished no
        step: its attempt is put away by `claim`. None in all other cases.

    Args:
      config: the run. If the directory already has one, it must be the same, unless that finished
        no step, as when its first grading was refused.
      hosts: the processes of the run.

    Raises:
      UserError: the directory belongs to another config, holds something else, or is in use.
    """

    def __init__(self, config: Config, hosts: Hosts = ALONE):
        self.path, self._hosts = Path(config.run_dir), hosts
        self._lock, self._made = None, []
        self.replaces: str | None = None
        if hosts.is_first:
            self._take(config)

    def _take(self, config: Config) -> None:
        """Check what is there, make the directory and lock it."""
        # What `close` takes away again, innermost first, unless the directory was claimed.
        self._made = [p for p in (self.path / _LOCK, self.path, *self.path.parents) if _is_new(p)]
        existing = self._saved_config()
        if existing is not None:
            self.replaces = _difference(existing, config)
            if self.replaces is not None and not _finished_nothing(self.path):
                remedy = "choose another run_dir or use the same values"
                remedy = f"belongs to another config: {self.replaces}; {remedy}"
                raise UserError("run_dir", str(self.path), remedy)
        elif self.path.exists() and not _is_free(self.path):
            raise UserError("run_dir", str(self.path), "exists and is no run; choose another")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = f"cannot be made ({error.strerror})"
            raise UserError("run_dir", str(self.path), remedy) from None
        self._lock = _lock(self.path)

    def claim(self, config: Config) -> None:
        """Write the resolved config, in the place of an attempt that finished no step."""
        if not self._hosts.is_first:
            return
        if self.replaces is not None:
            for name in _BEFORE_STEPS:
                path = self.path / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        part = self.path / (_CONFIG + _PART)
        save_config(config, part)
        part.replace(self.path / _CONFIG)
        self._made = []

    def _saved_config(self) -> Config | None:
        path = self.path / _CONFIG
        return load_config(path) if path.exists() else None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def rewind(self, step: int) -> None:
        """Forget what was written after `step` steps were done: it will be written again."""
        if not self._hosts.is_first:
            return
        for name in ("metrics.jsonl", "diagnostics.jsonl"):
            _keep_lines(self.path / name, lambda row: row["step"] <= step)
        for name in ("evaluations.jsonl", "answers.jsonl"):
            _keep_lines(self.path / name, lambda row: row["step"] < step)

    def log_metrics(self, rows: Iterable[dict[str, Any]]) -> None:
        self._append("metrics.jsonl", rows)

    def log_diagnostics(self, rows: Iterable[dict[str, Any]]) -> None:
        self._append("diagnostics.jsonl", rows)

    def log_evaluation(self, rows: Iterable[dict[str, Any]]) -> None:
        self._append("evaluations.jsonl", rows)

    def log_answers(self, rows: Iterable[dict[str, Any]]) -> None:
        self._append("answers.jsonl", rows)

    def metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.path / "metrics.jsonl")

    def seconds(self) -> float:
        """What the run has taken up to its last row of metrics, that of a killed process too."""
        return max((row.get("time/run", 0.0) for row in self.metrics()), default=0.0)

    def evaluations(self) -> list[dict[str, Any]]:
        return read_rows(self.path / "evaluations.jsonl")

    def write_rollouts(self, step: int, records: list[Rollout]) -> None:
        """All records of a step that this process has, one JSON object a line."""
        index, count = self._hosts.index, self._hosts.count
        part = "" if count == 1 else f".{index + 1}of{count}"
        write_jsonl(self.path / "rollouts" / f"step_{step:06d}{part}.jsonl", records)

    def write_summary(self, summary: dict[str, Any]) -> None:
        if self._hosts.is_first:
            replace_text(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def close(self) -> None:
        """Let another process have the directory."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # somebody else has put something there
            for path in self._made:
                path.rmdir() if path.is_dir() else path.unlink()
        self._lock.close()

    def _append(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        if self._hosts.is_first:
            _append(self.path / name, rows)


def saved_config(run_dir: Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a run, which may be going on.

    Args:
      run_dir: its directory.
      overrides: `key=value` words.

    Raises:
      UserError: the directory is not that of a run, or an override is wrong.
    """
    path = run_dir / _CONFIG
    if not path.is_file():
        raise UserError("run directory", str(run_dir), f"holds no {_CONFIG}, so it is no run")
    return load_config(path, overrides)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file; a last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def replace_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old or the new one, never a part."""
    part = path.with_name(path.name + _PART)
    part.write_text(text)
    part.replace(path)


def _append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    if lines:
        with path.open("a") as file:
            file.writelines(lines)


def _keep_lines(path: Path, wanted) -> None:
    if path.exists():
        rows = [row for row in read_rows(path) if wanted(row)]
        replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _is_free(path: Path) -> bool:
    """Whether a new run may start there: nothing but what an attempt may have left behind."""
    return path.is_dir() and {entry.name for entry in path.iterdir()} <= {_LOCK, _CONFIG + _PART}


def _finished_nothing(path: Path) -> bool:
    """Whether the run there has no step to lose: no row of metrics, no checkpoint but the start,
    and nothing that is written after a step. A config alone may have been written by hand."""
    names = {entry.name for entry in path.iterdir()}
    steps = [p.name for p in (path / "checkpoints").glob("*") if p.name.isdecimal()]
    return (
        "agents" in names
        and names <= {_LOCK, _CONFIG, _CONFIG + _PART, *_BEFORE_STEPS}
        and set(steps) <= {"0"}
        and not read_rows(path / "metrics.jsonl")
    )


def _is_new(path: Path) -> bool:
    return not os.path.lexists(path)


def _lock(path: Path):
    file = (path / _LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink == 0:
            raise OSError("a process that gave up has just removed it")
    except OSError:
        file.close()
        remedy = "another process is running there; wait for it or choose another"
        raise UserError("run_dir", str(path), remedy) from None
    return file


def _difference(there: Config, here: Config) -> str | None:
    """How the first key differs that makes another run, or None. Folder, checkpoint habits,
    trackers and the devices' arrangement may differ, and the number of steps too if no schedule
    depends on it."""
    free = {"run_dir", "checkpoint", "tracking", "mesh", "placement"}
    free |= {"training.remat", "training.attention"}
    if all(agent.optimizer.schedule == "constant" for agent in here.agents):
        free.add("training.steps")
    old, new = _flat(there.model_dump(mode="json")), _flat(here.model_dump(mode="json"))
    for key in sorted(old.keys() | new.keys()):
        if key in free or key.split(".")[0] in free or _AGENTS_MESH.match(key):
            continue
        if old.get(key) != new.get(key):
            return f"{key} is {_yaml(old.get(key))} there and {_yaml(new.get(key))} here"
    return None


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings and lists."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, item in items for k, v in _flat(item, f"{prefix}.{key}").items()}
    return {prefix.lstrip("."): value}


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
