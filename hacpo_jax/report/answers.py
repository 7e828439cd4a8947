"""Sample answers side by side: what every agent wrote to the same problems."""

from collections.abc import Sequence
from typing import Any

from hacpo_jax.report.ensemble import Ensemble
from hacpo_jax.text import printable
from hacpo_jax.training.run_dir import read_rows

_PROBLEMS = 6  # of each benchmark
_CHARS = 4000  # of one answer


def side_by_side(shown: Sequence[Ensemble]) -> list[dict[str, Any]]:
    """Problems with the answers of every agent of every kind of run.

    Answers to benchmarks come from the first and the last evaluation; runs that keep none show
    those of their last training step.

    Returns:
      Of each problem its name, prompt, right answer, and `columns`, one for each agent with its
      answers in order.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    count: dict[str, int] = {}
    for one in shown:
        for row in _rows(one):
            key = (row["benchmark"], row["problem"])
            if key not in found:
                if count.get(row["benchmark"], 0) == _PROBLEMS:
                    continue
                count[row["benchmark"]] = count.get(row["benchmark"], 0) + 1
                found[key] = {
                    "name": f"{key[0]}: {key[1]}",
                    "prompt": _shown(row["prompt"]),
                    "answer": _shown(row.get("answer") or ""),
                    "columns": {},
                }
            who = f"{row['agent']} ({one.name})" if len(shown) > 1 else row["agent"]
            found[key]["columns"].setdefault(who, []).append(_answer(row))
    return list(found.values())


def _rows(one: Ensemble) -> list[dict[str, Any]]:
    """Sample answers of the first run of a kind."""
    log = one.logs[0]
    steps = sorted({row["step"] for row in log.answers})
    if steps:
        return [row for row in log.answers if row["step"] in (steps[0], steps[-1])]
    files = [] if log.directory is None else sorted((log.directory / "rollouts").glob("*.jsonl"))
    # A run of several processes writes a file of each.
    last = [path for path in files if path.name.split(".")[0] == files[-1].name.split(".")[0]]
    return [
        {**row, "benchmark": "training", "problem": row["prompt_id"], "agent": row["source"]}
        for path in last
        for row in read_rows(path)
        if row["index"] == 0
    ]


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    graded = f"reward {row['reward']:g}" if row["valid"] else "not graded"
    cut = "" if row["finish_reason"] == "stop" else ", cut off"
    return {
        "when": f"step {row['step']}",
        "grade": graded + cut,
        "right": bool(row["valid"] and row["reward"] > 0),
        "text": _shown(row["response"]),
    }


def _shown(text: str) -> str:
    """Text without characters that would move or hide other text, and not without end."""
    rest = len(text) - _CHARS
    return printable(text[:_CHARS]) + (f" … ({rest:,} more characters)" if rest > 0 else "")
