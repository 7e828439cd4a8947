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
    field: str,
) -> Problems:
    """Render and encode every problem for every agent, and apply the length limit.

    Prompts are never cut: too long ones are an error, or dropped and counted if the task says so.

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
    answers = "sampling.max_new_tokens" if field == "task.train" else "evaluation.max_new_tokens"
    for agent, rows in zip(agents, tokens, strict=True):
        limit, remedy = _prompt_limit(agent, task, max_new_tokens, answers)
        lengths = np.array([len(row) for row in rows])
        fits &= (lengths <= limit) & (lengths > 0)
        told, of_agent = (
            f"exceed {limit} tokens; {remedy}",
            f"(prompt tokens of agent {agent.name})",
        )
        if task.overlong == "error" and not fits.all():
            raise UserError(
                f"{field} {of_agent}",
                int(lengths.max()),
                f"{int((~fits).sum())} of {len(rows)} prompts are empty or {told}, or set "
                "task.overlong=drop to leave them out",
            )
        if not fits.any():
            remedy = f"no prompt is short enough for all agents: those that are left {told}"
            raise UserError(f"{field} {of_agent}", int(lengths.max()), remedy)
    kept = np.flatnonzero(fits).tolist()
    return Problems(
        examples=tuple(examples[i] for i in kept),
        texts=tuple(texts[i] for i in kept),
        tokens=tuple(tuple(rows[i] for i in kept) for rows in tokens),
        dropped=len(examples) - len(kept),
    )


def _prompt_limit(agent: "Agent", task: Task, max_new_tokens: int, answers: str) -> tuple[int, str]:
    """Most tokens of an agent's prompts, and what to do to have more; `answers` is the key of
    `max_new_tokens`."""
    positions = agent.model.max_position_embeddings
    room = positions - max_new_tokens
    if room < 1:
        raise UserError(
            answers,
            max_new_tokens,
            f"leaves no room for a prompt: max_position_embeddings of agent {agent.name} is "
            f"{positions}; lower {answers} or take a model with a longer context",
        )
    if task.max_prompt_tokens <= room:
        return task.max_prompt_tokens, "raise task.max_prompt_tokens"
    return room, (
        f"max_position_embeddings = {positions} of its model leaves no more beside {answers} = "
        f"{max_new_tokens}: lower that, take a model with a longer context"
    )


def step_indices(seed: int, num_problems: int, count: int, step: int) -> np.ndarray:
    """The `count` problems of a step: a fresh shuffle for every pass over the data.

    A step never spans two passes, so that no problem is in it twice; what is left of a pass is
    left out.
    """
    epoch, place = divmod(step, num_problems // count)
    order = np.random.default_rng([seed, epoch]).permutation(num_problems)
    return order[place * count : (place + 1) * count]
