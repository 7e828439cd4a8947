"""Scores of reasoning-gym's own tasks; worker processes alone import this module.

Some scorers evaluate what the model wrote.
"""

import functools
import json
from typing import Any

import reasoning_gym  # noqa: F401 (takes seconds, which must not count as those of an answer)

from hacpo_jax.tasks.boxed import last_boxed
from hacpo_jax.tasks.gym import KEY, digest, gym_dataset, is_gym_answer


def gym_reward(response: str, answer: str) -> float:
    r"""Returns 1.0 if the task gives the response its full score, else 0.0.

    What is scored is, of these, the first that is there: the last `\boxed{...}`, the last
    `<answer>...</answer>`, all of the response; white space around it is removed. Partial credit,
    which the library gives to almost any text in some tasks, is none.

    Args:
      response: what the model wrote.
      answer: as made by `gym_examples`.
    """
    if not is_gym_answer(answer):
        raise ValueError("the gold answer is of no reasoning-gym problem; use another verifier")
    named = json.loads(answer)
    made = (named[KEY], json.dumps(named["options"]), named["seed"], named["size"])
    tasks, entry = gym_dataset(*made), _entry(*made, named["index"])
    if digest(entry["question"]).hex() != named["digest"]:
        raise ValueError("this release of reasoning-gym makes another problem of the same number")
    try:
        score = tasks.score_answer(answer=_final(response), entry=entry)
    except (MemoryError, TimeoutError):
        raise
    except Exception:
        # Scorers raise on answers of a wrong form: int("nine"), a missing key, and so on.
        return 0.0
    return float(isinstance(score, int | float) and score >= 1.0)


def _final(response: str) -> str:
    boxed = last_boxed(response)
    if boxed is not None:
        return boxed.strip()
    _, opened, rest = response.rpartition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return inside.strip() if opened and closed else response.strip()


@functools.lru_cache(maxsize=512)
def _entry(name: str, options: str, seed: int, size: int, index: int) -> dict[str, Any]:
    # The answers to one problem are graded one after another.
    return gym_dataset(name, options, seed, size)[index]
