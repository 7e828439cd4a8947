"""From what the user calls a model to a local directory."""

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HFValidationError

from hacpo_jax.errors import UserError

# Weights as safetensors only: the other formats are pickles, or not for training.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt"]
_UNWANTED = ["*/*", "consolidated*"]  # exports to other runtimes, second copies of the weights
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_GGUF = (
    "GGUF is out of scope: its quantized weights are for inference and cannot be trained; name the "
    "model that it was made from, as safetensors"
)


def resolve_model(path_or_hub_id: str, field: str) -> Path:
    """A local directory with the model's files, downloaded from the Hugging Face hub if need be.

    Args:
      path_or_hub_id: a directory, or a hub id such as `Qwen/Qwen3-0.6B`. A directory wins.
      field: what the user called this model, for error messages, e.g. `agents.0.model`.

    Raises:
      UserError: there is neither, or it has no weights as safetensors.
    """
    directory = Path(path_or_hub_id).expanduser()
    if directory.is_file() and directory.suffix == ".gguf":
        raise UserError(field, path_or_hub_id, _GGUF)
    if directory.is_file():
        raise UserError(field, path_or_hub_id, "is a file; name the directory that holds it")
    if not directory.is_dir() and path_or_hub_id.startswith(("/", ".", "~")):
        raise UserError(field, path_or_hub_id, "no such directory")
    if not directory.is_dir():
        directory = _download(path_or_hub_id, field)
    files = sorted(path.name for path in directory.iterdir())
    if not any(name.endswith(".safetensors") for name in files):
        if "gguf" in path_or_hub_id.lower() or any(name.endswith(".gguf") for name in files):
            raise UserError(field, path_or_hub_id, _GGUF)
        others = [name for name in files if name.endswith(_OTHER_WEIGHTS)]
        found = f"holds {', '.join(others)} but" if others else "has"
        raise UserError(
            field,
            path_or_hub_id,
            f"{found} no *.safetensors file; convert it, in transformers by "
            "model.save_pretrained(directory), or choose a model that ships safetensors",
        )
    return directory


def _download(hub_id: str, field: str) -> Path:
    try:
        return Path(
            huggingface_hub.snapshot_download(
                hub_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
            )
        )
    except (OSError, HFValidationError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            field, hub_id, f"no such directory, and not found on the hub ({reason})"
        ) from error
