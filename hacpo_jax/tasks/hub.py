"""Data sets of the Hugging Face hub, or directories in one of its forms, by `datasets`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.extras import import_extra
from hacpo_jax.tasks.rows import Row, numbered

_BATCH = 1000
_MESSAGE_CHARS = 300


def hub_rows(
    dataset: str, split: str, subset: str | Sequence[str] | None, revision: str | None
) -> Iterator[Row]:
    """Rows of one split; see `tables.load_hub`.

    Raises:
      UserError: it cannot be loaded; told with the way that needs no network.
    """
    library = import_extra("datasets", "data", field="dataset", value=dataset)
    names = [subset] if subset is None or isinstance(subset, str) else list(subset)
    for name in names:
        table = _load(library, dataset, name, split, revision)
        # As Arrow: images and sounds in other columns are not decoded.
        batches = (part.to_pylist() for part in table.with_format("arrow").iter(_BATCH))
        place = "/".join(filter(None, (dataset.rpartition("/")[2], name, split)))
        shown = "" if name is None or len(names) == 1 else name
        for line, columns in numbered(batches):
            yield Row(f"{place}:{line}", shown, line, columns)


def _load(library: Any, dataset: str, subset: str | None, split: str, revision: str | None) -> Any:
    try:
        if (Path(dataset) / "state.json").is_file():
            return library.load_from_disk(dataset)
        if (Path(dataset) / "dataset_dict.json").is_file():
            return library.load_from_disk(dataset)[split]
        return library.load_dataset(dataset, subset, split=split, revision=revision)
    except Exception as error:
        # The libraries below raise dozens of types here, for a lost network and a wrong name alike.
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_CHARS]
        where = " ".join(filter(None, (subset and f"subset {subset!r},", f"split {split!r}")))
        remedy = (
            f"{where} cannot be loaded ({reason}); check the names, or where the hub cannot be "
            "reached: fetch the data elsewhere and give its local path, by kind: jsonl or parquet "
            "with path: FILE, kind: preset with path: FOLDER, or dataset: DIRECTORY here"
        )
        raise UserError("dataset", dataset, remedy) from error
