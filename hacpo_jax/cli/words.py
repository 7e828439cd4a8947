"""From the words of a command line to a command; nothing is opened or imported for it."""

import dataclasses
import difflib
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from hacpo_jax.cli.help import VERBS
from hacpo_jax.config.base import Section
from hacpo_jax.config.faults import first_fault
from hacpo_jax.errors import MISSING, UserError

DEFAULT_VERB = "train"
_HOST_OPTIONS = {"--coordinator": str, "--processes": int, "--process": int}
_AFTER = {
    "--config": "name a file or a built-in config after it",
    "--topology": "name devices after it, such as v5e:4x4 or cpu:8",
    "--coordinator": "write HOST:PORT of process 0 after it",
    "--processes": "write the number of processes after it",
    "--process": "write the number of this process, from 0, after it",
}


@dataclasses.dataclass(frozen=True)
class Command:
    """What a command line says.

    Args:
      verb: one of `VERBS`, or None when only help is asked for.
      config: what stands after `--config`.
      paths: words that are neither options nor `key=value`.
      settings: the `key=value` words.
      help: whether help is asked for.
      hosts: what stands after `--coordinator`, `--processes` and `--process`, without the dashes;
        the fields of `hacpo_jax.parallel.hosts.Flags`.
      quiet: whether progress is not to be shown.
      topology: what stands after `--topology`, which `plan` alone takes.
    """

    verb: str | None
    config: str | None
    paths: tuple[str, ...]
    settings: tuple[str, ...]
    help: bool
    hosts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    quiet: bool = False
    topology: str | None = None


def parse(words: Sequence[str]) -> Command:
    """Sort the words of a command line.

    Raises:
      UserError: a verb or an option that does not exist.
    """
    rest = list(words)
    asks_help = any(word in ("-h", "--help") for word in rest)
    quiet = "--quiet" in rest
    rest = [word for word in rest if word not in ("-h", "--help", "--quiet")]
    verb = None if asks_help else DEFAULT_VERB
    if rest and not rest[0].startswith("-") and "=" not in rest[0]:
        verb = _verb(rest.pop(0))
    values, paths, settings = {}, [], []
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in _AFTER:
            if not equals and (not rest or rest[0].startswith("--")):
                raise UserError(option, MISSING, _AFTER[option])
            values[option] = value if equals else rest.pop(0)
        elif word.startswith("-"):
            raise UserError("option", word, f"unknown; {_option_remedy(word)}")
        elif "=" in word:
            settings.append(word)
        else:
            paths.append(word)
    topology = values.get("--topology")
    if topology is not None and verb not in (None, "plan"):
        raise UserError("--topology", topology, f"{verb} runs on the devices there are; use plan")
    config, hosts = values.get("--config"), _hosts(verb, values)
    return Command(verb, config, tuple(paths), tuple(settings), asks_help, hosts, quiet, topology)


def _hosts(verb: str | None, values: Mapping[str, str]) -> dict[str, Any]:
    """Options of runs of several processes."""
    hosts: dict[str, Any] = {}
    for option, kind in _HOST_OPTIONS.items():
        if option not in values:
            continue
        value = values[option]
        if verb not in (None, "train"):
            raise UserError(option, value, f"{verb} runs in one process; only train takes it")
        if kind is int and not (value.isascii() and value.isdigit()):
            raise UserError(option, value, f"must be a whole number, such as 2; {_AFTER[option]}")
        hosts[option.removeprefix("--")] = kind(value)
    return hosts


def _verb(word: str) -> str:
    if word in VERBS:
        return word
    if word.endswith((".yaml", ".yml")):
        raise UserError("verb", word, f"looks like a config; write --config {word}")
    raise UserError("verb", word, f"unknown; {_there_are(VERBS, word)}")


def _option_remedy(word: str) -> str:
    if word.startswith("--") and "=" in word:
        return f"settings have no dashes: {word.lstrip('-')}"
    known = _there_are([*_AFTER, "--quiet", "--help"], word)
    return f"{known}; settings are key=value words"


def _there_are(known: Collection[str], word: str) -> str:
    """What may stand in the place of a word, the nearest of it first."""
    close = difflib.get_close_matches(word, known, n=1)
    there = f"did you mean {close[0]!r}? There are" if close else "there are"
    return f"{there} {', '.join(known)}"


def refuse_paths(command: Command) -> None:
    """For verbs that take settings only."""
    if command.paths:
        remedy = "not a key=value word; for what this verb takes see --help"
        raise UserError("argument", command.paths[0], remedy)


def refuse_config(command: Command) -> None:
    """For verbs that work on what is there already."""
    if command.config is not None:
        raise UserError("--config", command.config, f"{command.verb} takes none; see --help")


Options = TypeVar("Options", bound=Section)


def parse_options(model: type[Options], settings: Sequence[str]) -> Options:
    """Settings of a verb that has its own: text stays as typed, numbers are read as such.

    A key of `model` that takes several values may be given several times.

    Args:
      model: which keys there are, of which types and ranges.
      settings: `key=value` words.

    Raises:
      UserError: an unknown or repeated key, or a value out of its range.
    """
    values: dict[str, str | list[str]] = {}
    for word in settings:
        key, _, value = word.partition("=")
        if key not in model.model_fields:
            known = _there_are(model.model_fields, key)
            raise UserError(key or "option", value, f"unknown key; {known}")
        if typing.get_origin(model.model_fields[key].annotation) is tuple:
            values[key] = [*values.get(key, []), value]
            continue
        if key in values:
            raise UserError(key, value, f"is given twice, first as {values[key]!r}")
        values[key] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise first_fault(error, model, knows_null=False) from None
