"""`generate`: answers of models and of agents of runs to prompts, side by side."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field, field_validator
from rich.table import Table
from rich.text import Text

from hacpo_jax.cli.subjects import Subject, parse_subject
from hacpo_jax.cli.words import Command, parse_options, refuse_config, refuse_paths
from hacpo_jax.config import AgentConfig, Config
from hacpo_jax.config.base import Section
from hacpo_jax.errors import MISSING, UserError
from hacpo_jax.terminal import rich_console
from hacpo_jax.text import printable

if TYPE_CHECKING:
    from hacpo_jax.agents import AgentGroup
    from hacpo_jax.models import Adapted

_DEFAULT_TOKENS = 256
_ROWS = 64  # answers at a time
_LOG_WIDTH, _NARROWEST = 120, 24  # characters of a log's line, and of a column


class _Options(Section):
    model: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    run: str | None = None
    agent: str | None = None
    step: int | None = Field(default=None, ge=0)
    prompt: tuple[str, ...] = ()
    prompts: str | None = None
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
        if not isinstance(value, str):
            return value
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError("is no YAML; write {enable_thinking: false}, say") from None


@dataclasses.dataclass(frozen=True)
class _Source:
    """Who answers.

    Args:
      name: as the command line calls it, with the agent where a run has several.
      subject: an agent of a run; None is a model.
      config: of the run.
    """

    name: str
    subject: Subject | None = None
    config: Config | None = None


@dataclasses.dataclass(frozen=True)
class _Answer:
    text: str
    stopped: bool
    length: int

    @property
    def about(self) -> str:
        return f"{self.length} tokens, finish reason {'stop' if self.stopped else 'length'}"


def run(command: Command) -> None:
    """Print the answers that the command asks for."""
    refuse_config(command)
    refuse_paths(command)
    options = parse_options(_Options, command.settings)
    prompts = _prompts(options)
    _check(options)
    sources = _sources(options)

    from hacpo_jax.cli.cache import use_compilation_cache
    from hacpo_jax.parallel.platforms import start_platform

    start_platform()
    use_compilation_cache()
    # One after another: only one set of weights is held at a time.
    answers = [_answer_all(source, prompts, options) for source in sources]
    if len(sources) == 1:
        _print_lines(prompts, options.samples, "", answers[0])
    else:
        _print_side_by_side(prompts, options.samples, [s.name for s in sources], answers)


def _check(options: _Options) -> None:
    if options.run is not None and (options.model or options.of):
        word = next(iter(options.model + options.of))
        remedy = "goes without run; to compare, write of=RUN:AGENT for agents of runs"
        raise UserError("model" if options.model else "of", word, remedy)
    if options.run is None and not options.model and not options.of:
        remedy = "name model=DIR_OR_HUB_ID, run=RUN_DIR, or several by of=RUN:AGENT@STEP"
        raise UserError("model", MISSING, remedy)
    if options.run is not None and options.agent is None:
        raise UserError("agent", MISSING, "is required with run: name one of its agents")
    for key in ("agent", "step"):
        value = getattr(options, key)
        if options.run is None and value is not None:
            raise UserError(key, value, "goes with run; of=RUN:AGENT@STEP names its own")
    for key in ("chat", "chat_options"):
        if not options.model and getattr(options, key) not in (None, {}):
            remedy = "goes with model; a run keeps its own setting"
            raise UserError(key, getattr(options, key), remedy)
    if options.temperature == 0 and options.samples > 1:
        remedy = "greedy answers are all alike; set temperature above 0"
        raise UserError("samples", options.samples, remedy)


def _prompts(options: _Options) -> list[str]:
    """Those of the command line, then those of the file."""
    found = list(options.prompt)
    if options.prompts is not None:
        found += _prompts_of_file(Path(options.prompts))
    if not found:
        raise UserError("prompt", MISSING, "is required: write prompt=TEXT or prompts=FILE")
    return found


def _prompts_of_file(path: Path) -> list[str]:
    """A prompt a line, or the field `prompt` of every line of a `.jsonl` file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError("prompts", str(path), f"cannot be read ({reason})") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            found.append(line)
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str):
            remedy = f'line {number} must be an object such as {{"prompt": "12+7="}}'
            raise UserError("prompts", str(path), remedy)
        found.append(prompt)
    if not found:
        raise UserError("prompts", str(path), "holds no prompt")
    return found


def _sources(options: _Options) -> list[_Source]:
    """Who answers; agents are looked up in their runs before any weight is read."""
    if options.run is not None:
        subjects = {options.run: Subject(Path(options.run), options.agent, options.step)}
    else:
        subjects = {word: parse_subject(word) for word in options.of}

    from hacpo_jax.training.run_dir import saved_config
    from hacpo_jax.training.saved_run import choose_step, find_agent

    found = []
    for word, subject in subjects.items():
        config = saved_config(subject.run)
        if subject.agent is not None:
            find_agent(config, subject.agent)
            agents = {word: subject.agent}
        else:
            agents = {_with_agent(word, agent.name): agent.name for agent in config.agents}
        step = choose_step(subject.run, subject.step)
        for name, agent in agents.items():
            found.append(_Source(name, Subject(subject.run, agent, step), config))
    found += [_Source(model) for model in dict.fromkeys(options.model)]
    return found


def _with_agent(word: str, agent: str) -> str:
    """`RUN` or `RUN@STEP` with an agent put in."""
    path, _, step = word.rpartition("@")
    return f"{path}:{agent}@{step}" if path and step.isdecimal() else f"{word}:{agent}"


def _answer_all(
    source: _Source, prompts: list[str], options: _Options
) -> dict[tuple[int, ...], _Answer]:
    """Answers by numbers of prompt and answer."""
    group, params = _load(source, options)
    return dict(_answers(group, params, prompts, options))


def _load(source: _Source, options: _Options) -> tuple["AgentGroup", "dict | Adapted"]:
    """A group of one with its weights."""
    if source.subject is None:
        return _load_model(source.name, options)
    assert source.config is not None
    return _load_agent(source.subject, source.config)


def _load_model(name: str, options: _Options) -> tuple["AgentGroup", "dict | Adapted"]:
    """A group of one with the weights of a Hugging Face directory."""
    from hacpo_jax.agents import build_agents, group_agents, initial_params

    config = AgentConfig(
        name="model", model=name, chat=options.chat, chat_options=options.chat_options
    )
    try:
        (group,) = group_agents(build_agents([config], []))
        return group, initial_params(group, options.seed)
    except UserError as error:
        field = error.field.removeprefix("agents.0.")
        raise UserError(field, error.value, error.remedy) from None


def _load_agent(subject: Subject, config: Config) -> tuple["AgentGroup", "dict | Adapted"]:
    """A group of one with the weights of a checkpoint."""
    from hacpo_jax.agents import AgentGroup
    from hacpo_jax.models.lora import member
    from hacpo_jax.training.saved_run import choose_step, saved_groups, saved_params

    groups = saved_groups(subject.run, config)
    step = choose_step(subject.run, subject.step)
    params = saved_params(subject.run, groups, step, config.seed)
    for group, stacked in zip(groups, params, strict=True):
        for i, agent in enumerate(group.agents):
            if agent.name == subject.agent:
                return AgentGroup((agent,)), member(stacked, slice(i, i + 1))
    raise AssertionError("the agent was looked up before")


def _print_lines(
    prompts: list[str], samples: int, who: str, answers: dict[tuple[int, ...], _Answer]
) -> None:
    """Every answer below a line about it; `who` gives it, where several do."""
    for (p, i), answer in answers.items():
        which = f"prompt {p + 1} of {len(prompts)}, " if len(prompts) > 1 else ""
        print(f"--- {who}{which}answer {i + 1} of {samples}: {answer.about}")
        print(printable(answer.text))


def _print_side_by_side(
    prompts: list[str],
    samples: int,
    names: list[str],
    answers: list[dict[tuple[int, ...], _Answer]],
) -> None:
    """A table for each prompt, with a column for each source; where columns would be too narrow,
    one below the other."""
    terminal = rich_console(highlight=False)
    log = rich_console(highlight=False, width=_LOG_WIDTH)
    console = terminal if terminal.is_terminal else log
    for p, prompt in enumerate(prompts):
        console.print(Text(f"prompt {p + 1} of {len(prompts)}: {printable(prompt)}"))
        if console.width // len(names) < _NARROWEST:
            for name, found in zip(names, answers, strict=True):
                own = {place: a for place, a in found.items() if place[0] == p}
                _print_lines(
                    [prompt], samples, f"{name}: ", {(0, i): a for (_, i), a in own.items()}
                )
            continue
        table = Table(expand=True)
        for name in names:
            table.add_column(Text(name, overflow="fold"), ratio=1, overflow="fold")
        for i in range(samples):
            cells = [found[p, i] for found in answers]
            table.add_row(
                *(Text(printable(a.text)) for a in cells),
            )
            table.add_row(*(Text(a.about, style="dim") for a in cells), end_section=True)
        console.print(table)


def _answers(
    group: "AgentGroup", params: "dict | Adapted", texts: list[str], options: _Options
) -> Iterator[tuple[tuple[int, ...], _Answer]]:
    """Numbers of prompt and answer, and the answer."""
    import numpy as np

    from hacpo_jax.exchange import response_texts
    from hacpo_jax.models import choose_attention
    from hacpo_jax.rollout import DecodeSpec, Sampler, answer, answer_keys
    from hacpo_jax.tasks.problems import prompt_room
    from hacpo_jax.training.run import compute_dtype

    tokenizer, positions = group.tokenizer, group.model.max_position_embeddings
    prompts = [tokenizer.encode_prompt(text, system=options.system) for text in texts]
    room = prompt_room(positions, options.max_new_tokens or 1, "max_new_tokens", group.name)
    for text, prompt in zip(texts, prompts, strict=True):
        if not 0 < len(prompt) <= room:
            remedy = (
                f"has {len(prompt)} tokens; the model's {positions} positions leave room for 1 to "
                f"{room} beside the answer"
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
        yield place, _Answer(text, stopped, length)
