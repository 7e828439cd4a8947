"""Agents of a config as far as shapes go: no tokenizer, weight or problem is read."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hacpo_jax.agents.agent import Agent
from hacpo_jax.agents.build import make_agent, new_model
from hacpo_jax.config import AgentConfig, NewModel, NewTokenizer
from hacpo_jax.models.published import model_shape

CHARACTERS = 384
"""Ids of a `characters` tokenizer, whose number the task's text decides: the end token, the bytes,
and a little more than the printable ASCII characters."""

_BYTES = 257


@dataclasses.dataclass(frozen=True)
class UnreadTokenizer:
    """What compiled programs know of a tokenizer; which ids end an answer changes no shape.

    Args:
      size: number of ids.
      fingerprint: equal where the config names the same tokenizer.
    """

    size: int
    fingerprint: str
    stop_ids: tuple[int, ...] = (0,)
    missing_ids: tuple[int, ...] = ()


def unread_agents(configs: Sequence[AgentConfig], *, longest: int | None = None) -> list[Agent]:
    """The agents of a run with `UnreadTokenizer`s; of a model only its `config.json` is read.

    Args:
      configs: the agents.
      longest: tokens of the longest sequence; see `hacpo_jax.models.config_from_hf`.

    Raises:
      UserError: a model is missing or not supported.
    """
    return [_agent(i, config, longest) for i, config in enumerate(configs)]


def _agent(index: int, config: AgentConfig, longest: int | None) -> Agent:
    field, chosen = f"agents.{index}", config.tokenizer
    if isinstance(config.model, NewModel):
        assert chosen is not None  # see `hacpo_jax.config.check`
        size, directory = _size(chosen, f"{field}.tokenizer"), None
        model = new_model(config.model, size)
    else:
        model = model_shape(config.model, f"{field}.model", longest=longest)
        size, directory = model.vocab_size, Path(config.model)
    name = chosen.model_dump() if isinstance(chosen, NewTokenizer) else chosen or config.model
    fingerprint = json.dumps([name, config.chat, config.chat_options])
    tokenizer: Any = UnreadTokenizer(size, fingerprint)
    return make_agent(index, config, model, tokenizer, directory, None)


def _size(tokenizer: str | NewTokenizer, field: str) -> int:
    """Ids of a tokenizer that the task's text is made into, or at most those of a model's own."""
    if isinstance(tokenizer, str):
        return model_shape(tokenizer, field).vocab_size
    return {"bpe": tokenizer.vocab_size, "bytes": _BYTES, "characters": CHARACTERS}[tokenizer.kind]
