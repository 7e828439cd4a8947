"""Showing a run in TensorBoard and in Weights & Biases, besides the console and the directory."""

import hashlib
import math
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hacpo_jax.config import Config, Wandb
from hacpo_jax.errors import UserError

_INSTALL = "is not installed; install it with: pip install 'hacpo-jax[track]'"


class Tracker(Protocol):
    """Takes what a run writes, as it is written."""

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of `metrics.jsonl`, of one step."""
        ...

    def evaluation(
        self, rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
    ) -> None:
        """Rows of `evaluations.jsonl` and of `answers.jsonl`, of one step."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


def open_trackers(config: Config, directory: Path, step: int) -> list[Tracker]:
    """The trackers that the config asks for; a run that goes on appends to what they have.

    Args:
      config: the run.
      directory: where it writes.
      step: steps done; what a tracker has of later ones will come again.

    Raises:
      UserError: a library is missing, or a tracker cannot be reached.
    """
    found: list[Tracker] = []
    if config.tracking.tensorboard:
        names = [agent.name for agent in config.agents]
        found.append(TensorBoard(directory / "tensorboard", names, step))
    if config.tracking.wandb is not None:
        found.append(WeightsAndBiases(config, config.tracking.wandb, directory))
    return found


def check_trackers(config: Config) -> None:
    """Whether the libraries are there that the config asks for; cheap, so that it can come first.

    Raises:
      UserError: one is not.
    """
    if config.tracking.tensorboard:
        try:
            import tensorboard.summary.writer.event_file_writer  # noqa: F401
        except ImportError:
            raise UserError("tracking.tensorboard", True, f"tensorboard {_INSTALL}") from None
    if config.tracking.wandb is not None:
        try:
            import wandb  # noqa: F401
        except ImportError:
            project = config.tracking.wandb.project
            raise UserError("tracking.wandb.project", project, f"wandb {_INSTALL}") from None


class TensorBoard:
    """Event files, one folder per agent, so that agents are curves of one chart.

    TensorBoard's own writer, without TensorFlow.

    Args:
      directory: where the folders are.
      agents: names.
      step: steps done. Events of later steps, which a killed run has left, are taken back.
    """

    def __init__(self, directory: Path, agents: Sequence[str], step: int):
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writers = {agent: EventFileWriter(str(directory / agent)) for agent in agents}
        self._proto: Any = event_pb2  # made by protoc, not typed
        for agent in agents:
            start = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._add(agent, step + 1, session_log=start)

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            for name, value in _numbers(row):
                self._scalar(row, name, value)

    def evaluation(
        self, rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
    ) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        for row in rows:
            for name, value in _numbers(row):
                self._scalar(row, f"evaluation/{row['benchmark']}/{name}", value)
        for row in answers:
            name = f"answers/{row['benchmark']}/{row['problem']}"
            text = _markdown(row)
            self._add(row["agent"], row["step"], summary=text_pb(name, text))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _scalar(self, row: Mapping[str, Any], name: str, value: float) -> None:
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        self._add(row["agent"], row["step"], summary=scalar_pb(name, value))

    def _add(self, agent: str, step: int, **content: Any) -> None:
        event = self._proto.Event(wall_time=time.time(), step=step, **content)
        self._writers[agent].add_event(event)
        self._writers[agent].flush()


class WeightsAndBiases:
    """One W&B run, whose id is kept in the run directory: a run that goes on is the same run.

    Args:
      config: the run.
      settings: which project, and whether to send anything.
      directory: where the run writes; offline runs are kept there for `wandb sync`.

    Raises:
      UserError: W&B cannot be reached or does not let the run in.
    """

    def __init__(self, config: Config, settings: Wandb, directory: Path):
        import wandb

        self._wandb: Any = wandb  # not all of it is typed
        try:
            self._run = self._wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=settings.name or directory.resolve().name,
                id=_run_id(directory),
                resume="allow",
                mode=settings.mode,
                dir=str(directory),
                config=config.model_dump(mode="json"),
                settings=self._wandb.Settings(silent=True, console="off", save_code=False),
            )
        except wandb.Error as error:
            remedy = f"cannot start: {error}; wandb login, or tracking.wandb.mode=offline"
            raise UserError("tracking.wandb.project", settings.project, remedy) from None

    def metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._log(rows, {f"{row['agent']}/{n}": v for row in rows for n, v in _numbers(row)})

    def evaluation(
        self, rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
    ) -> None:
        found: dict[str, Any] = {
            f"{row['agent']}/evaluation/{row['benchmark']}/{name}": value
            for row in rows
            for name, value in _numbers(row)
        }
        if answers:
            columns = ["agent", "benchmark", "problem", "prompt", "answer", "response", "reward"]
            data = [[row[name] for name in columns] for row in answers]
            found["answers"] = self._wandb.Table(columns=columns, data=data)
        self._log(rows, found)

    def close(self) -> None:
        self._run.finish()

    def _log(self, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> None:
        # Steps that W&B has already, and a killed run does again, are left out by W&B.
        if rows:
            self._run.log(dict(found), step=int(rows[0]["step"]))


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The finite numbers of a row, but its step."""
    for name, value in row.items():
        if name != "step" and isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def _markdown(row: Mapping[str, Any]) -> str:
    """An answer as TensorBoard shows text: in blocks in which nothing is markup."""
    parts = [
        ("Prompt", row["prompt"]),
        ("Right answer", row["answer"]),
        (f"Answer, reward {row['reward']:g}", row["response"]),
    ]
    return "\n\n".join(f"{name}\n\n{textwrap.indent(text, '    ', bool)}" for name, text in parts)


def _run_id(directory: Path) -> str:
    """A name that no other run has, noted down in the directory when it is first asked for."""
    note = directory / "wandb_id.txt"
    if not note.is_file():
        place = f"{directory.resolve()} {time.time_ns()}"
        note.write_text(hashlib.sha256(place.encode()).hexdigest()[:16] + "\n")
    return note.read_text().strip()
