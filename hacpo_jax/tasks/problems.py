"""A run's problems, encoded for every agent, in an order that depends on the seed alone."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hacpo_jax.config import Arithmetic, Jsonl, Task
from hacpo_jax.errors import UserError
from hacpo_jax.tasks.arithmetic import arithmetic_examples
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.jsonl import load_jsonl
from hacpo_jax.tasks.prompts import render

if TYPE_CHECKING:
    from hacpo_jax.agents import Agent

_log = logging.getLogger(__name__)


def load_examples(source: Arithmetic | Jsonl, field: str) -> tuple[Example, ...]:
    """The examples that a section of the config describes.

    Args:
      source: a section such as `task.train`.
      field: its name, for error messages.

    Raises:
      UserError: the source cannot be read or holds nothing.
    """
    try:
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
        settings = source.model_dump(exclude={"kind", "limit"})
        loaded = load_jsonl(settings.pop("path"), **settings)
    except UserError as error:
        raise UserError(f"{field}.{error.field}", error.value, error.remedy) from None
    if loaded.bad_rows:
        rows, first = len(loaded.examples) + len(loaded.bad_rows), loaded.bad_rows[0]
        _log.warning(
            "%s: %d of %d rows left out (line %d: %s)",
            field,
            len(loaded.bad_rows),
            rows,
            first.line,
            first.reason,
        )
    return loaded.examples[: source.limit]


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
    for agent, rows in zip(agents, tokens, strict=True):
        limit = _prompt_limit(agent, task, max_new_tokens)
        lengths = np.array([len(row) for row in rows])
        fits &= (lengths <= limit) & (lengths > 0)
        if task.overlong == "error" and not fits.all():
            raise UserError(
                f"{field} (prompt tokens of agent {agent.name})",
                int(lengths.max()),
                f"{int((~fits).sum())} of {len(rows)} prompts are empty or exceed {limit} tokens; "
                "raise task.max_prompt_tokens, or set task.overlong=drop to leave them out",
            )
    kept = np.flatnonzero(fits).tolist()
    if not kept:
        raise UserError(field, len(examples), "no prompt is short enough; see max_prompt_tokens")
    return Problems(
        examples=tuple(examples[i] for i in kept),
        texts=tuple(texts[i] for i in kept),
        tokens=tuple(tuple(rows[i] for i in kept) for rows in tokens),
        dropped=len(examples) - len(kept),
    )


def _prompt_limit(agent: "Agent", task: Task, max_new_tokens: int) -> int:
    room = agent.model.max_position_embeddings - max_new_tokens
    if room < 1:
        raise UserError(
            "sampling.max_new_tokens",
            max_new_tokens,
            f"leaves no room for a prompt in the {agent.model.max_position_embeddings} positions "
            f"of agent {agent.name}",
        )
    return min(task.max_prompt_tokens, room)


def step_indices(seed: int, num_problems: int, count: int, step: int) -> np.ndarray:
    """The `count` problems of a step: a fresh shuffle for every pass over the data.

    A step never spans two passes, so that no problem is in it twice; what is left of a pass is
    left out.
    """
    epoch, place = divmod(step, num_problems // count)
    order = np.random.default_rng([seed, epoch]).permutation(num_problems)
    return order[place * count : (place + 1) * count]
