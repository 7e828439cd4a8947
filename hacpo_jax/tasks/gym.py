"""Tasks of reasoning-gym: problems without end, each scored by the task that made it.

The library runs in child processes only: some of its scorers evaluate what the model wrote, and
some of its problems depend on the order of sets, which is the same in all children.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Literal

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.children import child_command, child_environment
from hacpo_jax.tasks.examples import Example

KEY = "reasoning_gym"
NO_GOLD = "(no answer is known)"
# Problems looked at for one that is asked for, on its side of the split; more if those repeat.
_DRAWS = (2, 8, 32)


def gym_examples(
    name: str,
    *,
    split: Literal["train", "held_out"],
    size: int,
    seed: int = 0,
    held_out_fraction: float = 0.1,
    options: Mapping[str, Any] | None = None,
) -> tuple[Example, ...]:
    """Draws distinct problems of a task from one side of a fixed split.

    The side is decided by a hash of the problem's text alone, as in `arithmetic_examples`: equal
    seeds, and neighbouring ones, would otherwise give training and held-out problems in common.

    Args:
      name: of the task, e.g. `chain_sum`.
      split: `train` or `held_out`.
      size: number of problems, at least 1.
      seed: decides which problems are drawn and their order.
      held_out_fraction: expected share of all problems on the `held_out` side, 0.001 to 0.999.
      options: settings of the task, e.g. `{min_terms: 2, max_terms: 3}` for `chain_sum`.

    Returns:
      `size` examples. The answer is JSON that names the problem, from which the verifier
      `reasoning_gym` makes it again; the gold answer is in it, and is the solution.

    Raises:
      UserError: the extra `tasks` is missing, the task or an option is unknown, or there are not
        so many distinct problems.
    """
    if size < 1:
        raise UserError("size", size, "must be at least 1")
    if not 0.001 <= held_out_fraction <= 0.999:
        raise UserError("held_out_fraction", held_out_fraction, "must be within 0.001 to 0.999")
    request = {
        "name": name,
        "held_out": split == "held_out",
        "size": size,
        "seed": seed,
        "fraction": held_out_fraction,
        "options": dict(options or {}),
    }
    done = subprocess.run(
        child_command(f"{__name__}:print_problems", json.dumps(request)),
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answered = json.loads(done.stdout.rsplit("\n", 2)[-2])
    except (IndexError, json.JSONDecodeError):
        last = done.stderr.strip().rsplit("\n", 1)[-1]
        raise UserError("name", name, f"its problems cannot be made: {last}") from None
    if "field" in answered:
        raise UserError(answered["field"], answered["value"], answered["remedy"])
    return tuple(
        Example(
            id=f"{name}:{seed}:{problem['index']}",
            prompt=problem["question"],
            answer=json.dumps(
                {
                    KEY: name,
                    "options": request["options"],
                    "seed": seed,
                    "size": answered["size"],
                    "index": problem["index"],
                    "digest": digest(problem["question"]).hex(),
                    "answer": problem["answer"],
                }
            ),
            solution=NO_GOLD if problem["answer"] is None else problem["answer"],
        )
        for problem in answered["problems"]
    )


def is_gym_answer(answer: str) -> bool:
    """Whether a gold answer names a problem of reasoning-gym."""
    return answer.startswith(f'{{"{KEY}": ')


@functools.lru_cache(maxsize=64)
def gym_dataset(name: str, options: str, seed: int, size: int) -> Any:
    """A data set of the library, which must be installed; `options` is JSON. For children only."""
    import reasoning_gym

    # Some tasks plan all their problems ahead: with another size, an index is another problem.
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(options))


def digest(question: str) -> bytes:
    """What tells problems apart, and the sides of the split."""
    return hashlib.blake2b(question.encode(), digest_size=8).digest()


def print_problems(request: str) -> None:
    """What the child process does: prints the problems, or what is wrong, as one line of JSON."""
    asked = json.loads(request)
    try:
        answer = _problems(asked)
    except UserError as error:
        answer = {"field": error.field, "value": error.value, "remedy": error.remedy}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def _problems(asked: dict[str, Any]) -> dict[str, Any]:
    _check_task(asked["name"], asked["options"])
    share = asked["fraction"] if asked["held_out"] else 1 - asked["fraction"]
    found: list[dict[str, Any]] = []
    for draws in _DRAWS:
        size = int(draws * asked["size"] / share) + 64
        found = _distinct(asked, size)
        if len(found) == asked["size"]:
            return {"size": size, "problems": found}
    remedy = f"{size} draws gave only {len(found)} distinct problems on this side; lower it"
    raise UserError("size", asked["size"], f"{remedy} or widen the options")


def _distinct(asked: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """The first distinct problems on the side that is asked for, of a data set of this size."""
    try:
        tasks = gym_dataset(asked["name"], json.dumps(asked["options"]), asked["seed"], size)
    except (AssertionError, ValueError, TypeError) as error:
        remedy = f"{asked['name']} refuses them: {error}"
        raise UserError("options", asked["options"], remedy) from None
    found: dict[str, dict[str, Any]] = {}
    for index in range(size):
        entry = tasks[index]
        question, gold = entry["question"], entry["answer"]
        held_out = int.from_bytes(digest(question), "big") < asked["fraction"] * 2**64
        if held_out == asked["held_out"] and question not in found:
            gold = gold if gold is None else str(gold)
            found[question] = {"question": question, "answer": gold, "index": index}
            if len(found) == asked["size"]:
                break
    return list(found.values())


def _check_task(name: str, options: dict[str, Any]) -> None:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        remedy = f"needs reasoning_gym ({error}); pip install 'hacpo-jax[tasks]'"
        raise UserError("name", name, remedy) from None
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=3)
        hint = (
            f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(DATASETS)}"
        )
        raise UserError("name", name, f"no task of reasoning-gym; {hint}")
    settings = {field.name for field in dataclasses.fields(DATASETS[name][1])} - {"seed", "size"}
    unknown = sorted(set(options) - settings)
    if unknown:
        remedy = f"{name} has no such option; known are {', '.join(sorted(settings))}"
        raise UserError("options", unknown[0], remedy)
