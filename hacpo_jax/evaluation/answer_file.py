"""Every answer of an evaluation in a JSONL file, from which a killed evaluation goes on."""

import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hacpo_jax.errors import UserError
from hacpo_jax.evaluation.evaluate import Graded
from hacpo_jax.tasks.problems import Problems


def answer_rows(problems: Problems, places: Sequence[int], graded: Graded) -> Iterator[dict]:
    """One row per answer.

    Args:
      problems: what was asked.
      places: which of them `graded` is about.
      graded: the answers.
    """
    for i, place in enumerate(places):
        example = problems.examples[place]
        for k, response in enumerate(graded.texts[i]):
            yield {
                "problem": example.id,
                "sample": k,
                "prompt": problems.texts[place],
                "answer": example.answer,
                "response": response,
                "reward": float(graded.rewards[i, k]),
                "valid": bool(graded.valid[i, k]),
                "finish_reason": "stop" if graded.stopped[i, k] else "length",
                "length": int(graded.lengths[i, k]),
            }


def fingerprint(settings: Any, problems: Problems) -> str:
    """A short name of everything that decides what is drawn and how it is graded.

    Args:
      settings: plain data: who answers, and how.
      problems: what is answered.
    """
    asked = [[example.id, example.answer] for example in problems.examples]
    text = json.dumps([settings, problems.texts, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class AnswerFile:
    """Answers as they are drawn; one process at a time.

    The file only grows: rows carry the fingerprint of their evaluation under `draws`, and those of
    other evaluations stay where they are.

    Args:
      path: the file; its folder is made.

    Raises:
      UserError: it cannot be written, or another process is writing it.
    """

    def __init__(self, path: Path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            remedy = f"cannot be written ({error.strerror})"
            raise UserError("out", str(path.parent), remedy) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            remedy = "another evaluation is writing there; wait for it or choose another out"
            raise UserError("out", str(path.parent), remedy) from None
        self._rows: dict[tuple, dict[str, Any]] = {}
        self._read()

    def add(self, draws: str, benchmark: str, rows: Mapping[str, Iterable[dict]]) -> None:
        """Write the rows of each agent in one go, so that a kill leaves all of them or none."""
        lines = []
        for agent, answers in rows.items():
            for answer in answers:
                row = {"agent": agent, "benchmark": benchmark, **answer, "draws": draws}
                self._rows[_key(row)] = row
                lines.append(json.dumps(row) + "\n")
        self._file.write("".join(lines).encode())
        self._file.flush()

    def has(self, draws: str, agent: str, benchmark: str, problem: str, samples: int) -> bool:
        """Whether all answers of an agent to a problem are there."""
        keys = ((draws, agent, benchmark, problem, k) for k in range(samples))
        return all(key in self._rows for key in keys)

    def graded(
        self, draws: str, agent: str, benchmark: str, problems: Problems, samples: int
    ) -> Graded:
        """All answers of an agent to a benchmark; each of them must be there."""
        found = [
            [self._rows[draws, agent, benchmark, e.id, k] for k in range(samples)]
            for e in problems.examples
        ]

        def column(name: str) -> np.ndarray:
            return np.array([[row[name] for row in rows] for rows in found])

        return Graded(
            texts=[[row["response"] for row in rows] for rows in found],
            rewards=column("reward"),
            valid=column("valid"),
            lengths=column("length"),
            stopped=column("finish_reason") == "stop",
        )

    def close(self) -> None:
        """Let another process have the file."""
        self._file.close()

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        """Take in what is there; a last line that was cut off is cut away."""
        self._file.seek(0)
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
            except ValueError:
                self._file.close()
                remedy = f"has a line that is not JSON, at byte {end}; move the file away"
                raise UserError("out", self._file.name, remedy) from None
            if "draws" in row:
                self._rows[_key(row)] = row
            end += len(line)
        self._file.truncate(end)


def _key(row: dict[str, Any]) -> tuple:
    return tuple(row[name] for name in ("draws", "agent", "benchmark", "problem", "sample"))
