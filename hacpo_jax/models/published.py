"""Shapes of models from their `config.json` alone: no weights and no tokenizer are looked at.

`published.json` holds those fields of the `config.json` files on huggingface.co that decide the
shape, for the models that the built-in configs name: so their programs can be planned without a
network. The divisors of Phi-4-mini's rotary frequencies, on which no shape depends, are 1 there.
"""

import functools
import json
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HFValidationError

from hacpo_jax.errors import UserError
from hacpo_jax.models.config import ModelConfig
from hacpo_jax.models.hf_config import config_from_hf
from hacpo_jax.models.hf_fields import read_json


def model_shape(path_or_hub_id: str, field: str, *, longest: int | None = None) -> ModelConfig:
    """The shape of a model, from a directory, the table of published ones, or the hub.

    Args:
      path_or_hub_id: as for `resolve_model`.
      field: what the user called this model, for error messages, e.g. `agents.0.model`.
      longest: tokens of the longest sequence; see `config_from_hf`.

    Raises:
      UserError: there is no such model, or its config is not supported.
    """
    directory = Path(path_or_hub_id).expanduser()
    if directory.is_dir():
        values = read_json(directory / "config.json", field)
    elif path_or_hub_id in _published():
        values = _published()[path_or_hub_id]
    else:
        values = read_json(_download(path_or_hub_id, field), field)
    return config_from_hf(values, field=field, longest=longest)


@functools.cache
def _published() -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_name("published.json")
    return json.loads(path.read_text(encoding="utf-8"))


def _download(hub_id: str, field: str) -> Path:
    try:
        return Path(huggingface_hub.hf_hub_download(hub_id, "config.json"))
    except (OSError, HFValidationError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        remedy = f"no such directory, and its config.json is not found on the hub ({reason})"
        raise UserError(field, hub_id, remedy) from error
