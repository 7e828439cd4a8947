"""One verifier for benchmarks of several kinds, chosen by the gold answer."""

import re

from hacpo_jax.tasks.gym import is_gym_answer
from hacpo_jax.tasks.math_answers import math_reward
from hacpo_jax.tasks.text_rewards import choice_reward

_CHOICE = re.compile(r"[A-Z]")


def auto_reward(response: str, answer: str) -> float:
    """The reward of the verifier that fits the gold answer.

    That is `reasoning_gym` for its problems, `choice` for a single capital letter, else `math`.
    """
    if is_gym_answer(answer):
        # The library is an extra that other benchmarks do not need.
        from hacpo_jax.tasks.gym_reward import gym_reward

        return gym_reward(response, answer)
    if _CHOICE.fullmatch(answer.strip()):
        return choice_reward(response, answer)
    return math_reward(response, answer)
