"""Which weights a run's adapters were trained on: on others they would compute something else."""

import hashlib
import json
from pathlib import Path

from hacpo_jax.errors import UserError
from hacpo_jax.models.hf_fields import read_json

_FILE = "base.json"


def write_base(directory: Path, saved: Path) -> None:
    """Note the weights in `directory` down, in a file in `saved`."""
    text = json.dumps({"sha256": weights_digest(directory)}) + "\n"
    (saved / _FILE).write_text(text, encoding="utf-8")


def check_base(directory: Path, saved: Path, field: str) -> None:
    """Compare the weights in `directory` with those that were noted down in `saved`, if any were.

    Raises:
      UserError: they are others.
    """
    path = saved / _FILE
    if path.is_file() and read_json(path, field).get("sha256") != weights_digest(directory):
        remedy = "holds other weights than the run's adapters were trained on; put those back"
        raise UserError(field, str(directory), remedy)


def weights_digest(directory: Path) -> str:
    """SHA-256 of all safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
