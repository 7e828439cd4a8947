"""One agent as a Hugging Face directory."""

import json
import shutil
import uuid
from pathlib import Path

from jax.typing import DTypeLike

from hacpo_jax.agents.agent import Agent
from hacpo_jax.models import save_model


def export_agent(agent: Agent, params: dict, directory: Path, *, dtype: DTypeLike) -> None:
    """Write weights, configs, tokenizer and chat template that `transformers` and vLLM load.

    Everything is written beside `directory` and moved there at the end.

    Args:
      agent: the agent.
      params: its parameters, without an agent axis.
      directory: absent or empty.
      dtype: dtype of the file.

    Raises:
      UserError: see `hacpo_jax.models.save_model`.
    """
    tokenizer = agent.tokenizer
    ids = {"bos_token_id": tokenizer.bos_id, "pad_token_id": tokenizer.pad_id}
    partial = directory.parent / f".{directory.name}.{uuid.uuid4().hex}.export"
    try:
        one_end = {"eos_token_id": tokenizer.eos_id}
        save_model(partial, agent.model, params, dtype=dtype, extra_config=ids | one_end)
        tokenizer.save(str(partial))
        # The end token of a text is one, but any of several may end an answer.
        generation = ids | {"eos_token_id": list(tokenizer.stop_ids)}
        text = json.dumps(generation, indent=2, sort_keys=True) + "\n"
        (partial / "generation_config.json").write_text(text, encoding="utf-8")
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
