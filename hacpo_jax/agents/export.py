"""One agent as a Hugging Face directory, with its weights or without."""

import contextlib
import json
import logging
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from hacpo_jax.agents.agent import Agent
from hacpo_jax.agents.base_weights import write_base
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.models import Adapted, save_model, save_model_config
from hacpo_jax.models.lora import Params, merge, whole, without_adapters

_log = logging.getLogger(__name__)


def export_agent(
    agent: Agent, params: Params | Adapted, directory: Path, *, dtype: DTypeLike
) -> None:
    """Write weights, configs, tokenizer and chat template that `transformers` and vLLM load.

    Everything is written beside `directory` and moved there at the end.

    Args:
      agent: the agent.
      params: its parameters, without an agent axis; adapters are merged into their base.
      directory: absent or empty.
      dtype: dtype of the file.

    Raises:
      UserError: see `hacpo_jax.models.save_model`.
    """
    model = agent.model
    if model.lora is not None:
        params, model = merge(model, whole(params)), without_adapters(model)
    with _written_beside(directory) as partial:
        save_model(partial, model, whole(params), dtype=dtype, extra_config=_token_ids(agent))
        _save_tokens(agent, partial)
    _warn_if_read_otherwise(agent, directory)


def save_agent(agent: Agent, directory: Path) -> None:
    """Write what `transformers` reads of an agent but its weights; see `export_agent`.

    Args:
      agent: the agent.
      directory: made here, its parents too; if it is there already it is left as it is.
    """
    if directory.is_dir():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _written_beside(directory) as partial:
        partial.mkdir()
        shape, ids = without_adapters(agent.model), _token_ids(agent)
        save_model_config(partial, shape, dtype="float32", extra_config=ids)
        _save_tokens(agent, partial)
        if agent.model.lora is not None and agent.directory is not None:
            write_base(agent.directory, partial)


@contextlib.contextmanager
def _written_beside(directory: Path) -> Iterator[Path]:
    """A place for files that are moved to `directory` when all are there, or else removed."""
    partial = directory.parent / f".{directory.name}.{uuid.uuid4().hex}.export"
    try:
        yield partial
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _token_ids(agent: Agent) -> dict[str, int | None]:
    """For `config.json`: the end token of a text is one."""
    tokenizer = agent.tokenizer
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }


def _warn_if_read_otherwise(agent: Agent, directory: Path) -> None:
    """Beside some models' configs, Qwen2's above all, transformers makes every tokenizer theirs."""
    from transformers import AutoTokenizer  # seconds to import

    read: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
    if Tokenizer(read).vocabulary_fingerprint != agent.tokenizer.vocabulary_fingerprint:
        _log.warning(
            "%s: AutoTokenizer takes its tokenizer for another of model type %s; "
            "PreTrainedTokenizerFast reads it as it is",
            directory,
            agent.model.model_type,
        )


def _save_tokens(agent: Agent, directory: Path) -> None:
    """The tokenizer, its template, and every token that may end an answer."""
    agent.tokenizer.save(str(directory))
    generation = _token_ids(agent) | {"eos_token_id": list(agent.tokenizer.stop_ids)}
    text = json.dumps(generation, indent=2, sort_keys=True) + "\n"
    (directory / "generation_config.json").write_text(text, encoding="utf-8")
