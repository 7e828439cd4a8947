"""What a command line means by a run, one of its checkpoints, or one of its agents."""

import dataclasses
import re
from pathlib import Path

from hacpo_jax.config import AgentConfig, Config
from hacpo_jax.errors import UserError

_SUBJECT = re.compile(
    r"(?P<run>.+?)(?::(?P<agent>[A-Za-z0-9][A-Za-z0-9._-]*))?(?:@(?P<step>\d+))?", re.DOTALL
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """Agents of a run.

    Args:
      run: its directory.
      agent: one of its agents; None is all.
      step: steps done at the checkpoint; None is the latest.
    """

    run: Path
    agent: str | None = None
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    """Agents that are measured together.

    Args:
      name: how they are called: the run or the model.
      config: their benchmarks, and who they are.
      directory: where results go; None is not decided yet.
      run_dir: the run that they come from; None takes them as they are before any training.
      step: steps done at the checkpoint; None is the latest.
    """

    name: str
    config: Config
    directory: Path | None
    run_dir: Path | None = None
    step: int | None = None


def model_agent(name: str) -> AgentConfig:
    """An agent that is a Hugging Face model and nothing else; its name is the last of the path."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", Path(name).name).lstrip("._-")
    return AgentConfig(name=plain or "model", model=name)


def parse_subject(word: str) -> Subject:
    """Read `RUN`, `RUN:AGENT`, `RUN@STEP` or `RUN:AGENT@STEP`; directories come first.

    Raises:
      UserError: it is empty.
    """
    if word and Path(word).is_dir():
        return Subject(Path(word))
    found = _SUBJECT.fullmatch(word)
    if found is None:
        raise UserError("run", word, "write RUN, RUN:AGENT, RUN@STEP or RUN:AGENT@STEP")
    step = found["step"]
    return Subject(Path(found["run"]), found["agent"], None if step is None else int(step))
