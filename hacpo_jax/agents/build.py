"""From the config to agents: everything is checked before any weight is read."""

import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from hacpo_jax.agents.agent import Agent, AgentGroup
from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, character_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.config import AgentConfig, NewModel, NewTokenizer
from hacpo_jax.errors import UserError
from hacpo_jax.models import (
    ModelConfig,
    init_params,
    inspect_model,
    load_params,
    resolve_model,
)


def build_agents(configs: Sequence[AgentConfig], texts: Sequence[str]) -> list[Agent]:
    """Resolve models and tokenizers; weights are compared with their config but not loaded.

    Args:
      configs: the agents of a run.
      texts: training text of the task, for tokenizers that are made from it.

    Raises:
      UserError: a model or tokenizer is missing or does not fit.
    """
    return [_build(i, config, texts) for i, config in enumerate(configs)]


def _build(index: int, config: AgentConfig, texts: Sequence[str]) -> Agent:
    field = f"agents.{index}"
    if isinstance(config.model, NewModel):
        directory = None
        tokenizer = _tokenizer(field, config, None, texts)
        model = _new_model(config.model, tokenizer.size)
    else:
        directory = resolve_model(config.model, f"{field}.model")
        model = inspect_model(directory, f"{field}.model")
        tokenizer = _tokenizer(field, config, directory, texts)
    if tokenizer.size > model.vocab_size:
        raise UserError(
            f"{field}.tokenizer",
            config.tokenizer if isinstance(config.tokenizer, str | None) else config.tokenizer.kind,
            f"knows {tokenizer.size} ids and the model {model.vocab_size}; use the model's own",
        )
    return Agent(
        index=index,
        name=config.name,
        model=model,
        tokenizer=tokenizer,
        directory=directory,
        optimizer=config.optimizer,
        algorithm=config.algorithm,
        warm_start=config.warm_start,
    )


def _tokenizer(
    field: str, config: AgentConfig, directory: Path | None, texts: Sequence[str]
) -> Tokenizer:
    chosen = config.tokenizer
    if isinstance(chosen, NewTokenizer):
        if config.chat:
            remedy = "a tokenizer made from the task has no chat template; use null or false"
            raise UserError(f"{field}.chat", config.chat, remedy)
        if config.chat_options:
            remedy = "a tokenizer made from the task has no chat template; leave it out"
            raise UserError(f"{field}.chat_options", config.chat_options, remedy)
        if chosen.kind == "bpe":
            return train_bpe(texts, vocab_size=chosen.vocab_size)
        return character_tokenizer(texts) if chosen.kind == "characters" else byte_tokenizer()
    try:
        return Tokenizer.load(
            chosen or str(directory),
            field=f"{field}.tokenizer",
            chat="auto" if config.chat is None else config.chat,
            chat_options=config.chat_options,
            extra_stop_ids=_stop_ids(directory, f"{field}.model") if directory else (),
        )
    except UserError as error:
        key = error.field.replace(".tokenizer.chat", ".chat")  # chat and chat_options
        raise UserError(key, error.value, error.remedy) from error


def _stop_ids(directory: Path, field: str) -> set[int]:
    """End tokens that the model's files name; they often disagree, so all of them count."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        if path.exists():
            try:
                ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            except (ValueError, AttributeError) as error:
                raise UserError(field, str(path), f"not a JSON object ({error})") from None
            found |= set(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return found


def _new_model(config: NewModel, vocab_size: int) -> ModelConfig:
    shape = config.model_dump(exclude={"family"})
    return ModelConfig(
        model_type=config.family,
        vocab_size=vocab_size,
        qkv_bias=config.family == "qwen2",
        qk_norm=config.family == "qwen3",
        **shape,
    )


def initial_params(group: AgentGroup, seed: int):
    """First parameters of a group's agents, `[A, ...]` float32: loaded, or drawn from the seed."""
    loaded: dict[Path, dict] = {}
    members = []
    for agent in group.agents:
        if agent.directory is None:
            key = jax.random.fold_in(jax.random.key(seed), agent.index)
            members.append(init_params(agent.model, key))
            continue
        if agent.directory not in loaded:
            field = f"agents.{agent.index}.model"
            loaded[agent.directory] = load_params(
                agent.directory,
                agent.model,
                field,
                dtype=jnp.float32,
                place=lambda array, axes: jnp.asarray(array),
            )
        members.append(loaded[agent.directory])
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
