"""From a directory or a hub id to a fast tokenizer of `transformers`, or a word on what to do."""

import base64
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_jax.errors import UserError
from hacpo_jax.models.hf_fields import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_log = logging.getLogger(__name__)

# transformers makes up an empty tokenizer for a directory that has none of these.
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


def read_tokenizer(path_or_hub_id: str, field: str) -> "PreTrainedTokenizerFast":
    """The tokenizer of a local directory or of the hub; code in the repository is never run.

    Read are `tokenizer.json`, `tokenizer.model` of SentencePiece, and, where a config beside them
    says whose they are, `vocab.json` with `merges.txt`, and `tokenizer.model` of tiktoken.

    Args:
      path_or_hub_id: directory, or hub id such as `Qwen/Qwen3-4B`.
      field: what errors call it.

    Raises:
      UserError: there is none, it cannot be loaded, or its files do not tell every id.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # seconds to import

    directory, reader = Path(path_or_hub_id), AutoTokenizer
    if directory.is_dir():
        names = {path.name for path in directory.iterdir()}
        _check_files(directory, names, field)
        if "tokenizer.json" in names:
            config = _json(directory / "tokenizer_config.json", field)
            # Says that tokenizer.json is the whole of it. The other does not believe that beside
            # some models' config.json, that of Qwen2 among them.
            if config.get("tokenizer_class") == "TokenizersBackend":
                reader = PreTrainedTokenizerFast
        elif "tokenizer.model" in names:
            # The class for Llama 2 that the other would choose merges in another order than
            # SentencePiece does, and gives other ids to one text in three.
            reader = PreTrainedTokenizerFast
    try:
        hf = reader.from_pretrained(str(path_or_hub_id), trust_remote_code=False)
    except Exception as error:  # the Rust side raises plain Exception on a malformed file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(field, str(path_or_hub_id), f"cannot be loaded: {reason}") from error
    if not isinstance(hf, PreTrainedTokenizerFast):
        remedy = f"{type(hf).__name__} is not a fast tokenizer; provide a tokenizer.json"
        raise UserError(field, str(path_or_hub_id), remedy)
    if directory.is_dir() and not (directory / "tokenizer.json").exists():
        _warn_without_bos(hf, directory, field)
    return hf


def _check_files(directory: Path, names: set[str], field: str) -> None:
    """Refuse files that transformers would read wrong, or about which it says little."""
    if "tokenizer.json" in names:
        return
    config = _json(directory / "tokenizer_config.json", field)
    remedy = None
    if "tokenizer.model" in names:
        # The file lists text alone; transformers would number the control tokens as it sees them.
        if _is_tiktoken(directory / "tokenizer.model") and not config.get("added_tokens_decoder"):
            remedy = (
                "its tokenizer.model is tiktoken's and has no control tokens; put the model's "
                "tokenizer.json there, or a tokenizer_config.json with added_tokens_decoder"
            )
    elif "vocab.json" in names or "merges.txt" in names:
        if not {"vocab.json", "merges.txt"} <= names:
            lost = next(n for n in ("vocab.json", "merges.txt") if n not in names)
            remedy = f"vocab.json and merges.txt belong together; put the model's {lost} there"
        elif "tokenizer_class" not in config and "config.json" not in names:
            remedy = (
                "vocab.json and merges.txt do not say how text is cut into words; put the model's "
                "tokenizer.json, tokenizer_config.json or config.json there"
            )
    elif foreign := sorted(n for n in names if n == "tekken.json" or n.endswith(".tiktoken")):
        remedy = f"{foreign[0]} is not read; put the model's tokenizer.json there"
    elif names.isdisjoint(_FILES):
        remedy = f"has no tokenizer; put one of {', '.join(_FILES)} there"
    if remedy is not None:
        raise UserError(field, str(directory), remedy)


def _is_tiktoken(path: Path) -> bool:
    """Whether the first line is a token in base64 and its rank."""
    with path.open("rb") as file:
        token, _, rank = file.readline(1000).strip().partition(b" ")
    try:
        return rank.isdigit() and bool(base64.b64decode(token, validate=True))
    except ValueError:
        return False


def _json(path: Path, field: str) -> dict[str, Any]:
    return read_json(path, field) if path.exists() else {}


def _warn_without_bos(hf: "PreTrainedTokenizerFast", directory: Path, field: str) -> None:
    """These files do not tell whether a document starts with the BOS; its absence goes unseen."""
    if hf.bos_token_id is None or hf.encode("a")[:1] == [hf.bos_token_id]:
        return
    if "add_bos_token" not in _json(directory / "tokenizer_config.json", field):
        _log.warning(
            "%s: prompts do not start with %s, as no file in %s asks for it; "
            'if the model was trained with it, write {"add_bos_token": true} into '
            "tokenizer_config.json there",
            field,
            hf.bos_token,
            directory,
        )
