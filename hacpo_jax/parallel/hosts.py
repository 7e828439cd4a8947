"""The processes of one run."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Hosts:
    """This process among all."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def gather(self, name: str, value: Any) -> list[Any]:
        """Every process's value, in their order."""
        assert self.count == 1
        return [value]


ALONE = Hosts()
"""A run of one process."""
