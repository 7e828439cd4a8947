"""SEE, the shared experience exchange: typed records that agents publish and learners collect."""

import dataclasses
import json
import math
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from hacpo_jax.errors import UserError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scalar:
    """What a verifier said about one response; enough for pooled statistics (XGRPO).

    Attributes:
      step: training step that drew the response.
      prompt_id: which prompt it answers.
      source: name of the agent that drew it.
      index: which of the G responses of that agent to that prompt.
      reward: its reward.
      valid: False if the verifier failed or the response has no token.
    """

    step: int
    prompt_id: str
    source: str
    index: int
    reward: float
    valid: bool

    def __post_init__(self) -> None:
        # Rewards and log-probs arrive as numpy scalars and arrays: a record holds plain values.
        for name, convert in _CONVERT.items():
            if name in self.__dataclass_fields__:
                object.__setattr__(self, name, convert(getattr(self, name)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome(Scalar):
    """A response with its verdict, but no probabilities (SGT).

    Attributes:
      response: its text, without the end token.
      success: whether it counts as solved.
      finish_reason: "stop" if the source ended it, "length" if it was cut off.
      tokens: the source's ids as drawn, end token included.
    """

    response: str
    success: bool
    finish_reason: FinishReason
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        Scalar.__post_init__(self)
        if self.finish_reason not in ("stop", "length"):
            raise ValueError(f"finish_reason must be stop or length, got {self.finish_reason!r}")

    @property
    def num_tokens(self) -> int:
        """Length in the source's tokens."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout(Outcome):
    """A response with its behaviour policy's probabilities (HACPO, naive sharing, PRP).

    Attributes:
      prompt: the prompt's text.
      behavior_mean_log_prob: mean log-prob of `tokens` under the policy that drew them, nats.
      behavior_mean_log_prob_without_eos: the same over the tokens before the end token.
      group_advantage: its advantage among its source's own answers to the prompt.
    """

    prompt: str
    behavior_mean_log_prob: float
    behavior_mean_log_prob_without_eos: float
    group_advantage: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace(Rollout):
    """A response with the log-prob of every token, for token-level ratios (PRP's `thl_peer`).

    Attributes:
      log_probs: of each of `tokens`, nats.
      spans: bytes [start, end) of `response` in UTF-8 that each of `tokens` stands for; empty at
        the end for an end token.
    """

    log_probs: tuple[float, ...]
    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        Outcome.__post_init__(self)
        for name in ("log_probs", "spans"):
            count = len(getattr(self, name))
            if count != len(self.tokens):
                raise ValueError(
                    f"{name} must have one value per token, got {count} values and "
                    f"{len(self.tokens)} tokens"
                )


RecordT = TypeVar("RecordT", bound=Scalar)
_RECORD_TYPES = {"scalar": Scalar, "outcome": Outcome, "rollout": Rollout, "trace": Trace}


def _tuple(values: Sequence | np.ndarray) -> tuple:
    plain = isinstance(values, tuple) and not (values and isinstance(values[0], np.generic))
    return values if plain else tuple(np.asarray(values).tolist())  # type: ignore[return-value]


def _spans(values: Sequence | np.ndarray) -> tuple[tuple[int, int], ...]:
    plain = len(values) > 0 and isinstance(values[0], tuple) and type(values[0][0]) is int
    return tuple(values) if plain else tuple((int(start), int(end)) for start, end in values)


_CONVERT = {
    "step": int,
    "index": int,
    "reward": float,
    "valid": bool,
    "success": bool,
    "tokens": _tuple,
    "behavior_mean_log_prob": float,
    "behavior_mean_log_prob_without_eos": float,
    "group_advantage": float,
    "log_probs": _tuple,
    "spans": _spans,
}


def view(record: Scalar, record_type: type[RecordT]) -> RecordT:
    """The record narrowed to exactly `record_type`, everything else left behind."""
    if type(record) is record_type:
        return record
    names = [field.name for field in dataclasses.fields(record_type)]
    return record_type(**{name: getattr(record, name) for name in names})


class Exchange:
    """The records of one step. Safe to use from one thread per agent.

    Every agent publishes once, then learners collect: what they learn from is complete and fixed
    before any update. The next step has an exchange of its own.

    Args:
      agents: names of all agents, in the order in which records are handed out.
    """

    def __init__(self, agents: Sequence[str]):
        if len(set(agents)) != len(agents):
            raise ValueError(f"agents must have different names, got {list(agents)}")
        self._agents = tuple(agents)
        self._records: dict[str, tuple[Scalar, ...]] = {}
        self._lock = threading.Lock()

    @classmethod
    def replay(cls, records: Iterable[Scalar]) -> "Exchange":
        """The exchange of a step again, from the records that `read_jsonl` returns of it.

        Agents come in the order of their first record.

        Raises:
          ValueError: records of several steps.
        """
        by_source: dict[str, list[Scalar]] = {}
        records = tuple(records)
        if len(steps := {record.step for record in records}) > 1:
            raise ValueError(f"records must be those of one step, got steps {sorted(steps)}")
        for record in records:
            by_source.setdefault(record.source, []).append(record)
        exchange = cls(list(by_source))
        for source, published in by_source.items():
            exchange.publish(source, published)
        return exchange

    def publish(self, source: str, records: Iterable[Scalar]) -> None:
        """Hands in everything that `source` drew in this step.

        Raises:
          ValueError: an unknown agent, a second publication in the step, or a record of another
            agent.
        """
        records = tuple(records)
        self._check(source)
        for record in records:
            if record.source != source:
                raise ValueError(f"record of {record.source!r} published by {source!r}")
        with self._lock:
            if source in self._records:
                raise ValueError(f"agent {source!r} has published already in this step")
            self._records[source] = records

    def collect(
        self, record_type: type[RecordT], *, learner: str, own: bool
    ) -> tuple[RecordT, ...]:
        """All records of the step as `record_type`: by agent, then as published.

        Args:
          record_type: `Scalar`, `Outcome`, `Rollout` or `Trace`: the learner gets no field beyond
            it.
          learner: who collects.
          own: whether its own records are included.

        Raises:
          ValueError: an unknown learner, agents that have not published yet, or published less.
        """
        self._check(learner)
        with self._lock:
            missing = [name for name in self._agents if name not in self._records]
            if missing:
                raise ValueError(f"agents {missing} have not published yet")
            sources = [name for name in self._agents if own or name != learner]
            records = [record for name in sources for record in self._records[name]]
        for record in records:
            if not isinstance(record, record_type):
                raise ValueError(
                    f"learner {learner!r} needs a {record_type.__name__} of each response and "
                    f"{record.source!r} published a {type(record).__name__}"
                )
        return tuple(view(record, record_type) for record in records)

    def own(self, agent: str) -> tuple[Scalar, ...]:
        """What an agent itself has published in this step, whole."""
        self._check(agent)
        with self._lock:
            return self._records.get(agent, ())

    def _check(self, name: str) -> None:
        if name not in self._agents:
            raise ValueError(f"agent must be one of {list(self._agents)}, got {name!r}")


def write_jsonl(path: str | Path, records: Iterable[Scalar]) -> None:
    """Writes one JSON object per record and line; the file appears whole or not at all.

    Finite floats read back bit for bit; NaN and infinities are written as strings, which any JSON
    reader accepts. Everything outside ASCII is escaped, so lone surrogates survive (two adjacent
    halves of a pair read back joined).
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="ascii", newline="\n") as file:
            for record in records:
                file.write(_line(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_jsonl(path: str | Path) -> list[Scalar]:
    """Reads what `write_jsonl` wrote.

    Raises:
      UserError: a line that is not such a record; the error names file and line.
    """
    records = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                record_type = _RECORD_TYPES[entry.pop("record")]
                if "log_probs" in entry:
                    entry["log_probs"] = tuple(float(x) for x in entry["log_probs"])
                records.append(record_type(**entry))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                remedy = f"not a record ({type(error).__name__}: {error})"
                raise UserError(f"{path}:{number}", line[:80], remedy) from error
    return records


def _line(record: Scalar) -> str:
    entry: dict[str, Any] = {"record": type(record).__name__.lower()}
    entry |= {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    try:
        return json.dumps(entry, allow_nan=False)
    except ValueError:  # JSON has no NaN
        return json.dumps({key: _finite_or_name(value) for key, value in entry.items()})


def _finite_or_name(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_finite_or_name(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
