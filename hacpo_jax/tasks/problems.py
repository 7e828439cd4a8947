"""A run's problems, encoded for every agent, in an order that depends on the seed alone."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hacpo_jax.config import Arithmetic, Hub, Parquet, Preset, ReasoningGym, Task
from hacpo_jax.config.task import Source
from hacpo_jax.errors import UserError
from hacpo_jax.tasks.arithmetic import arithmetic_examples
from hacpo_jax.tasks.conditions import Condition
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.gym import gym_examples
from hacpo_jax.tasks.presets import load_preset
from hacpo_jax.tasks.prompts import render
from hacpo_jax.tasks.tables import LoadedExamples, load_hub, load_jsonl, load_parquet

if TYPE_CHECKING:
    from hacpo_jax.agents import Agent

_log = logging.getLogger(__name__)
_SHOWN_REASONS = 5
_SHOWN_LINES = 100


def load_examples(source: Source, field: str) -> tuple[Example, ...]:
    """The examples that a section of the config describes.

    Rows that are left out are warned about, with their line numbers.

    Args:
      source: a section such as `task.train`.
      field: its name, for error messages.

    Raises:
      UserError: the source cannot be read or holds nothing.
    """
    try:
        loaded = _load(source)
    except UserError as error:
        raise UserError(f"{field}.{error.field}", error.value, error.remedy) from None
    if isinstance(loaded, tuple):
        return loaded
    if loaded.bad_rows:
        reasons = "; ".join(map(str, loaded.bad_rows[:_SHOWN_REASONS]))
        numbers = ", ".join(
            f"{row.file}{row.file and ':'}{row.line}"
            for row in loaded.bad_rows[_SHOWN_REASONS:_SHOWN_LINES]
        )
        more = len(loaded.bad_rows) - _SHOWN_LINES
        _log.warning(
            "%s: %d of %d rows left out (%s%s%s)",
            field,
            len(loaded.bad_rows),
            loaded.rows,
            reasons,
            f"; and lines {numbers}" if numbers else "",
            f" and {more} more" if more > 0 else "",
        )
    return loaded.examples


def _load(source: Source) -> tuple[Example, ...] | LoadedExamples:
    if isinstance(source, Arithmetic):
        return arithmetic_examples(
            split=source.split,
            size=source.size,
            operands=(source.low, source.high),
            operations=source.operations,
            seed=source.seed,
            held_out_fraction=source.held_out_fraction,
            template=source.template,
        )
    settings = source.model_dump(exclude={"kind"})
    if isinstance(source, ReasoningGym):
        return gym_examples(settings.pop("name"), **settings)
    settings["filter"] = [Condition(**one) for one in settings["filter"]]
    if isinstance(source, Hub):
        return load_hub(settings.pop("dataset"), **settings)
    if isinstance(source, Preset):
        # What a preset does not name is as the benchmark has it.
        named = {key: value for key, value in settings.items() if value is not None}
        return load_preset(named.pop("name"), **named)
    load = load_parquet if isinstance(source, Parquet) else load_jsonl
    return load(settings.pop("path"), **settings)


@dataclasses.dataclass(frozen=True)
class Problems:
    """Problems with each agent's prompt tokens.

    Args:
      examples: N problems.
      texts: N rendered prompts.
      tokens: for each agent, N lists of ids.
      dropped: problems left out because some agent's prompt was too long.
    """

    examples: tuple[Example, ...]
    texts: tuple[str, ...]
    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    dropped: int

    def __len__(self) -> int:
        return len(self.examples)

    def prompts(self, agent: int, indices: Sequence[int]) -> list[tuple[int, ...]]:
        """Prompt ids of one agent for some problems."""
        return [self.tokens[agent][i] for i in indices]

    def first(self, count: int) -> "Problems":
        """The first `count` problems alone."""
        return Problems(
            examples=self.examples[:count],
            texts=self.texts[:count],
            tokens=tuple(rows[:count] for rows in self.tokens),
            dropped=0,
        )


NO_PROBLEMS = Problems((), (), (), 0)


def encode_problems(
    examples: Sequence[Example],
    agents: "Sequence[Agent]",
    task: Task,
    *,
    max_new_tokens: int,
    answers: str,
    field: str,
) -> Problems:
    """Render and encode every problem for every agent, and apply the length limit.

    Prompts are never cut: too long ones are an error, or dropped and counted if the task says so.

    Args:
      examples: N problems.
      agents: who answers them.
      task: how they are rendered, and how long prompts may be.
      max_new_tokens: longest answer.
      answers: the key that says so, for error messages.
      field: the section of the problems, for error messages.

    Raises:
      UserError: a prompt is too long, or none is left.
    """
    texts = [render(task.template, example) for example in examples]
    by_tokenizer: dict[str, list[tuple[int, ...]]] = {}
    for agent in agents:
        if agent.tokenizer.fingerprint not in by_tokenizer:
            try:
                by_tokenizer[agent.tokenizer.fingerprint] = [
                    tuple(agent.tokenizer.encode_prompt(text, system=task.system)) for text in texts
                ]
            except UserError as error:
                key = "task.system" if error.field == "system" else f"{field}.{error.field}"
                raise UserError(key, error.value, f"agent {agent.name}: {error.remedy}") from None
    tokens = [by_tokenizer[agent.tokenizer.fingerprint] for agent in agents]
    fits = np.ones(len(examples), bool)
    for agent, rows in zip(agents, tokens, strict=True):
        lengths = np.array([len(row) for row in rows])
        if task.overlong == "error" and not lengths.all():
            remedy = f"{int((lengths == 0).sum())} of {len(rows)} prompts are empty; put text into "
            remedy += "them or task.template, or set task.overlong=drop to leave them out"
            raise UserError(f"{field} (prompt tokens of agent {agent.name})", 0, remedy)
        fits &= (lengths <= _prompt_limit(agent, task, max_new_tokens, answers)) & (lengths > 0)
        if not fits.any() or (task.overlong == "error" and not fits.all()):
            raise _too_long(agent, task, lengths, fits, max_new_tokens, answers, field)
    kept = np.flatnonzero(fits).tolist()
    return Problems(
        examples=tuple(examples[i] for i in kept),
        texts=tuple(texts[i] for i in kept),
        tokens=tuple(tuple(rows[i] for i in kept) for rows in tokens),
        dropped=len(examples) - len(kept),
    )


def _prompt_limit(agent: "Agent", task: Task, max_new_tokens: int, answers: str) -> int:
    """Most tokens of an agent's prompts; `answers` is the key of `max_new_tokens`."""
    positions = agent.model.max_position_embeddings
    room = prompt_room(positions, max_new_tokens, answers, f"agent {agent.name}")
    return min(task.max_prompt_tokens, room)


def prompt_room(positions: int, max_new_tokens: int, field: str, whose: str) -> int:
    """Tokens that a prompt may have beside the longest answer.

    Args:
      positions: of the model.
      max_new_tokens: longest answer.
      field: the key that says so, for error messages.
      whose: the model, for error messages.

    Raises:
      UserError: none is left.
    """
    if max_new_tokens >= positions:
        remedy = f"leaves no room for a prompt in the {positions} positions of {whose}"
        raise UserError(field, max_new_tokens, f"{remedy}; use less than {positions}")
    return positions - max_new_tokens


def _too_long(
    agent: "Agent",
    task: Task,
    lengths: np.ndarray,
    fits: np.ndarray,
    max_new_tokens: int,
    answers: str,
    field: str,
) -> UserError:
    """What to say of prompts that are longer than `_prompt_limit`: what is in their way."""
    positions, longest = agent.model.max_position_embeddings, int(lengths.max())
    drop = " or set task.overlong=drop to leave them out" if task.overlong == "error" else ""
    room = positions - max_new_tokens
    if room >= task.max_prompt_tokens:
        count = f"{int((~fits).sum())} of {len(fits)} prompts exceed"
        remedy = f"{count} task.max_prompt_tokens = {task.max_prompt_tokens}; raise it{drop}"
        return UserError(f"{field} (prompt tokens of agent {agent.name})", longest, remedy)
    held = f"leaves prompts of agent {agent.name} {room} of its {positions} positions"
    less = f"use {positions - longest} or less" if longest < positions else "shorten prompts"
    remedy = f"{held}, and they take up to {longest}; {less}{drop and ',' + drop}"
    return UserError(answers, max_new_tokens, remedy)


def step_indices(seed: int, num_problems: int, count: int, step: int) -> np.ndarray:
    """The `count` problems of a step: a fresh shuffle for every pass over the data.

    A step never spans two passes, so that no problem is in it twice; what is left of a pass is
    left out.
    """
    epoch, place = divmod(step, num_problems // count)
    order = np.random.default_rng([seed, epoch]).permutation(num_problems)
    return order[place * count : (place + 1) * count]
