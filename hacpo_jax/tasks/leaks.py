"""Training problems by which models are measured: allowed, and never in silence."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from hacpo_jax.config import Preset
from hacpo_jax.config.task import Source
from hacpo_jax.tasks.examples import Example
from hacpo_jax.tasks.presets import PRESETS

_log = logging.getLogger(__name__)


def warn_of_leaks(
    source: Source, train: Sequence[Example], benchmarks: Mapping[str, Sequence[Example]]
) -> None:
    """Warns of training problems that are also measured on, and of a benchmark that is learned.

    Problems are the same where their texts are, spaces aside.

    Args:
      source: `task.train`.
      train: its problems.
      benchmarks: problems to measure on, by name.
    """
    if isinstance(source, Preset) and source.split is None and not _is_file(source.path):
        split = PRESETS[source.name].split
        if split != "train":
            _log.warning(
                "task.train: the preset %s is what models are measured on, its split %r; to train "
                "on its training split set task.train.split=train, or name the split you mean",
                source.name,
                split,
            )
    learned = {_text(example) for example in train}
    for name, examples in benchmarks.items():
        shared = sum(_text(example) in learned for example in examples)
        if shared:
            _log.warning(
                "task.eval.%s shares %d of its %d problems with task.train: accuracy on those says "
                "nothing of new problems; measure, or train, on another split or file",
                name,
                shared,
                len(examples),
            )


def _is_file(path: str | None) -> bool:
    """Whether a file is named, of which no split is chosen."""
    return path is not None and Path(path).is_file()


def _text(example: Example) -> str:
    return " ".join(example.prompt.split())
