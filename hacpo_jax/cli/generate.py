"""`generate`: answers of a model, or of an agent of a run, to prompts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field, field_validator

from hacpo_jax.cli.text import printable
from hacpo_jax.cli.words import Command, parse_options, refuse_config, refuse_paths
from hacpo_jax.config import AgentConfig
from hacpo_jax.config.base import Section
from hacpo_jax.errors import UserError

if TYPE_CHECKING:
    from hacpo_jax.agents import AgentGroup
    from hacpo_jax.models import Adapted

_DEFAULT_TOKENS = 256
_ROWS = 64  # answers at a time


class _Options(Section):
    model: str | None = None
    run: str | None = None
    agent: str | None = None
    step: int | None = Field(default=None, ge=0)
    prompt: tuple[str, ...]
    system: str | None = None
    chat: bool | None = None
    chat_options: dict[str, Any] = Field(default_factory=dict)
    max_new_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    samples: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**31)

    @field_validator("chat_options", mode="before")
    @classmethod
    def _as_yaml(cls, value: Any):
        """Options are words, and this one is a mapping as in a config."""
        return yaml.safe_load(value) if isinstance(value, str) else value


def run(command: Command) -> None:
    """Print the answers that the command asks for."""
    refuse_config(command)
    refuse_paths(command)
    options = parse_options(_Options, command.settings)
    _check(options)

    from hacpo_jax.cli.cache import use_compilation_cache

    use_compilation_cache()
    group, params = _load_model(options) if options.run is None else _load_agent(options)
    several = len(options.prompt) > 1
    for (p, i), text, stopped, length in _answers(group, params, options):
        which = f"prompt {p + 1} of {len(options.prompt)}, " if several else ""
        reason = "stop" if stopped else "length"
        print(
            f"--- {which}answer {i + 1} of {options.samples}: {length} tokens, "
            f"finish reason {reason}"
        )
        print(printable(text))


def _check(options: _Options) -> None:
    if (options.model is None) == (options.run is None):
        remedy = "name one of model=DIR_OR_HUB_ID and run=RUN_DIR"
        raise UserError("model", options.model, remedy)
    if options.run is not None and options.agent is None:
        raise UserError("agent", None, "is required with run: name one of its agents")
    for key in ("agent", "step"):
        value = getattr(options, key)
        if options.model is not None and value is not None:
            raise UserError(key, value, "goes with run, not with model")
    for key in ("chat", "chat_options"):
        if options.run is not None and getattr(options, key) not in (None, {}):
            remedy = "goes with model; a run keeps its own setting"
            raise UserError(key, getattr(options, key), remedy)
    if options.temperature == 0 and options.samples > 1:
        remedy = "greedy answers are all alike; set temperature above 0"
        raise UserError("samples", options.samples, remedy)


def _load_model(options: _Options) -> tuple["AgentGroup", "dict | Adapted"]:
    """A group of one with the weights of a Hugging Face directory."""
    from hacpo_jax.agents import build_agents, group_agents, initial_params

    assert options.model is not None
    config = AgentConfig(
        name="model",
        model=options.model,
        chat=options.chat,
        chat_options=options.chat_options,
    )
    try:
        (group,) = group_agents(build_agents([config], []))
        return group, initial_params(group, options.seed)
    except UserError as error:
        field = error.field.removeprefix("agents.0.")
        raise UserError(field, error.value, error.remedy) from None


def _load_agent(options: _Options) -> tuple["AgentGroup", "dict | Adapted"]:
    """A group of one with the weights of a checkpoint."""
    from hacpo_jax.agents import AgentGroup
    from hacpo_jax.models.lora import member
    from hacpo_jax.training.run_dir import saved_config
    from hacpo_jax.training.saved_run import choose_step, find_agent, saved_groups, saved_params

    assert options.run is not None and options.agent is not None
    path = Path(options.run)
    config = saved_config(path)
    find_agent(config, options.agent)
    step = choose_step(path, options.step)
    groups = saved_groups(path, config)
    params = saved_params(path, groups, step, config.seed)
    for group, stacked in zip(groups, params, strict=True):
        for i, agent in enumerate(group.agents):
            if agent.name == options.agent:
                return AgentGroup((agent,)), member(stacked, slice(i, i + 1))
    raise AssertionError("find_agent has found it")


def _answers(group: "AgentGroup", params: "dict | Adapted", options: _Options):
    """Numbers of prompt and answer, text, whether it ended by itself, and tokens of each answer."""
    import numpy as np

    from hacpo_jax.exchange import response_texts
    from hacpo_jax.models import choose_attention
    from hacpo_jax.rollout import DecodeSpec, Sampler, answer, answer_keys
    from hacpo_jax.training.run import compute_dtype

    tokenizer, positions = group.tokenizer, group.model.max_position_embeddings
    prompts = [tokenizer.encode_prompt(text, system=options.system) for text in options.prompt]
    room = positions - (options.max_new_tokens or 1)
    for text, prompt in zip(options.prompt, prompts, strict=True):
        if not 0 < len(prompt) <= room:
            remedy = (
                f"has {len(prompt)} tokens; the model's {positions} positions leave room for 1 to "
                f"{max(room, 0)} beside the answer"
            )
            raise UserError("prompt", text, remedy)
    room = positions - max(map(len, prompts))
    dtype = compute_dtype("auto")
    spec = DecodeSpec(
        model=group.model,
        sampler=Sampler(options.temperature, options.top_k, options.top_p),
        max_new_tokens=options.max_new_tokens or min(room, _DEFAULT_TOKENS),
        stop_ids=tokenizer.stop_ids,
        num_tokens=tokenizer.size,
        missing_ids=tokenizer.missing_ids,
        dtype=dtype,
        attention=choose_attention("auto", group.model, dtype),
    )
    # The same draws for an agent of a run and for its export, whichever its place in the run.
    keys = answer_keys(options.seed, [0], 0, range(len(prompts)), options.samples)
    rows = max(_ROWS, options.samples)
    found = answer(params, prompts, keys, spec, max_rows=rows)
    for place in np.ndindex(len(prompts), options.samples):
        length, stopped = int(found.lengths[0][place]), bool(found.stopped[0][place])
        ids = found.tokens[0][place][:length].tolist()
        (text,) = response_texts(tokenizer, [ids], [stopped])
        yield place, text, stopped, length
