"""From the config to agents: everything is checked before any weight is read."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from hacpo_jax.agents.agent import Agent, AgentGroup
from hacpo_jax.agents.base_weights import check_base
from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, character_tokenizer, train_bpe
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.config import AgentConfig, NewModel, NewTokenizer
from hacpo_jax.errors import UserError
from hacpo_jax.models import (
    Adapted,
    Lora,
    ModelConfig,
    init_adapters,
    init_params,
    inspect_model,
    load_config,
    load_params,
    resolve_model,
    trained_axes,
)
from hacpo_jax.models.hf_fields import read_json
from hacpo_jax.models.lora import with_base, without_adapters
from hacpo_jax.parallel.layout import Layout, one_device


def build_agents(
    configs: Sequence[AgentConfig],
    texts: Sequence[str],
    saved: Path | None = None,
    *,
    longest: int | None = None,
) -> list[Agent]:
    """Resolve models and tokenizers; weights are compared with their config but not loaded.

    Args:
      configs: the agents of a run.
      texts: training text of the task, for tokenizers that are made from it.
      saved: what `save_agent` wrote of each, if the run is not new: tokenizers are those.
      longest: tokens of the longest sequence; see `hacpo_jax.models.config_from_hf`.

    Raises:
      UserError: a model or tokenizer is missing or does not fit.
    """
    return [_build(i, config, texts, saved, longest) for i, config in enumerate(configs)]


def saved_agents(
    configs: Sequence[AgentConfig], saved: Path, *, longest: int | None = None
) -> list[Agent]:
    """The agents of a run from what `save_agent` wrote of each; neither task nor weights are read.

    Args:
      configs: the agents of the run.
      saved: a directory with one of each agent's name.
      longest: tokens of the longest sequence; see `hacpo_jax.models.config_from_hf`.

    Raises:
      UserError: an agent is not there, or the model that adapters are for is missing.
    """
    agents = []
    for index, config in enumerate(configs):
        field, home = f"agents.{index}", saved / config.name
        if not home.is_dir():
            remedy = (
                f"lacks {saved.name}/{config.name}, which a run writes at its start; put it back"
            )
            raise UserError("run directory", str(saved.parent), remedy)
        model = load_config(home, f"{field}.model", longest=longest)
        tokenizer = _load_tokenizer(field, config, home, stops=home)
        directory = _base_directory(field, config)
        agents.append(make_agent(index, config, model, tokenizer, directory, home))
    return agents


def _base_directory(field: str, config: AgentConfig) -> Path | None:
    """Where the weights are that a checkpoint of adapters leaves out."""
    if config.lora is None or isinstance(config.model, NewModel):
        return None
    return resolve_model(config.model, f"{field}.model")


def _build(
    index: int,
    config: AgentConfig,
    texts: Sequence[str],
    saved: Path | None,
    longest: int | None,
) -> Agent:
    field, directory = f"agents.{index}", None
    if isinstance(config.model, str):
        directory = resolve_model(config.model, f"{field}.model")
    home = None if saved is None else saved / config.name
    if home is not None and home.is_dir():
        tokenizer = _load_tokenizer(field, config, home, stops=home)
    else:
        tokenizer = _tokenizer(field, config, directory, texts)
    if isinstance(config.model, NewModel):
        model = new_model(config.model, tokenizer.size)
    else:
        assert directory is not None
        model = inspect_model(directory, f"{field}.model", longest=longest)
    return make_agent(index, config, model, tokenizer, directory, home)


def make_agent(
    index: int,
    config: AgentConfig,
    model: ModelConfig,
    tokenizer: Tokenizer,
    directory: Path | None,
    home: Path | None,
) -> Agent:
    """An agent of parts that fit each other; `home` is what `save_agent` wrote of it, if it did."""
    field = f"agents.{index}"
    if directory is not None and home is not None:
        check_base(directory, home, f"{field}.model")
    if tokenizer.size > model.vocab_size:
        raise UserError(
            f"{field}.tokenizer",
            config.tokenizer if isinstance(config.tokenizer, str | None) else config.tokenizer.kind,
            f"knows {tokenizer.size} ids and the model {model.vocab_size}; null is the model's own",
        )
    if config.lora is not None:
        if config.lora.rank > model.hidden_size:
            remedy = f"must be at most the model's hidden_size, {model.hidden_size}"
            raise UserError(f"{field}.lora.rank", config.lora.rank, remedy)
        lora = Lora(config.lora.rank, config.lora.alpha, config.lora.targets)
        model = dataclasses.replace(model, lora=lora)
    return Agent(
        index=index,
        name=config.name,
        model=model,
        tokenizer=tokenizer,
        directory=directory,
        optimizer=config.optimizer,
        algorithm=config.algorithm,
        mesh=config.mesh,
        warm_start=config.warm_start,
    )


def _tokenizer(
    field: str, config: AgentConfig, directory: Path | None, texts: Sequence[str]
) -> Tokenizer:
    chosen = config.tokenizer
    if isinstance(chosen, NewTokenizer):
        if config.chat:
            remedy = "a tokenizer made from the task has no chat template; set it to null or false"
            raise UserError(f"{field}.chat", config.chat, remedy)
        if config.chat_options:
            remedy = "a tokenizer made from the task has no chat template; leave it out"
            raise UserError(f"{field}.chat_options", config.chat_options, remedy)
        if chosen.kind == "bpe":
            return train_bpe(texts, vocab_size=chosen.vocab_size)
        return character_tokenizer(texts) if chosen.kind == "characters" else byte_tokenizer()
    source = directory if chosen is None else chosen
    assert source is not None
    return _load_tokenizer(field, config, source, stops=directory)


def _load_tokenizer(
    field: str, config: AgentConfig, source: Path | str, *, stops: Path | None
) -> Tokenizer:
    """The tokenizer in `source`, with the stop ids that the files of a model in `stops` name."""
    try:
        return Tokenizer.load(
            str(source),
            field=f"{field}.tokenizer",
            chat="auto" if config.chat is None else config.chat,
            chat_options=config.chat_options,
            extra_stop_ids=_stop_ids(stops, f"{field}.model") if stops else (),
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
            ids = read_json(path, field).get("eos_token_id")
            found |= set(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return found


def new_model(config: NewModel, vocab_size: int) -> ModelConfig:
    """The shape of a model made from scratch."""
    shape = config.model_dump(exclude={"family"})
    return ModelConfig(
        model_type=config.family,
        vocab_size=vocab_size,
        qkv_bias=config.family == "qwen2",
        qk_norm=config.family == "qwen3",
        **shape,
    )


def initial_params(
    group: AgentGroup, seed: int, dtype: DTypeLike = jnp.float32, layout: Layout | None = None
) -> dict | Adapted:
    """First parameters of a group's agents: loaded, or drawn from the seed.

    Args:
      group: the agents.
      seed: of the run.
      dtype: of the parameters.
      layout: where they lie; None is one device.

    Returns:
      `[A, ...]` in `dtype`, or adapters that change nothing yet on the base of them all.
    """
    layout = layout or one_device()
    base = base_params(group, seed, dtype, layout)
    loaded: dict[Path, dict] = {}
    members = []
    for agent in group.agents:
        if base is not None:
            members.append(_drawn(init_adapters, agent, seed, dtype, layout))
        elif agent.directory is None:
            members.append(_drawn(init_params, agent, seed, dtype, layout))
        else:
            if agent.directory not in loaded:
                loaded[agent.directory] = _load(agent, dtype, layout)
            members.append(loaded[agent.directory])
    return with_base(layout.stacked(members, trained_axes(group.model)), base)


def base_params(
    group: AgentGroup, seed: int, dtype: DTypeLike = jnp.float32, layout: Layout | None = None
) -> dict | None:
    """What the adapters of a group are trained on, without an agent axis; None has no adapters."""
    first, layout = group.agents[0], layout or one_device()
    if group.model.lora is None:
        return None
    if first.directory is not None:
        return _load(first, dtype, layout)
    bare = dataclasses.replace(first, model=without_adapters(group.model))
    return _drawn(init_params, bare, seed, dtype, layout)


def _drawn(init: Callable, agent: Agent, seed: int, dtype: DTypeLike, layout: Layout) -> dict:
    """Random parameters of one agent, made where they lie."""

    def new_weights(key: jax.Array) -> dict:
        return jax.tree.map(lambda x: x.astype(dtype), init(agent.model, key))

    key = jax.random.fold_in(jax.random.key(seed), agent.index)
    return layout.make(new_weights, trained_axes(agent.model))(key)


def _load(agent: Agent, dtype: DTypeLike, layout: Layout) -> dict:
    assert agent.directory is not None
    field = f"agents.{agent.index}.model"
    return load_params(agent.directory, agent.model, field, dtype=dtype, place=layout.place)
