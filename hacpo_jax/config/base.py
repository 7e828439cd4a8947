"""What every section of the config has in common."""

import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

AT_KEY = "at_key"
"""Type of the error that a section raises about one of its keys."""
FLAG = "flag_for_a_number"
"""Type of the error about a flag where a number belongs."""


def refused(key: str, value: object, remedy: str) -> PydanticCustomError:
    """What a section's validator of several keys raises, so that the one at fault is named.

    Args:
      key: of the section.
      value: what is there.
      remedy: as in `hacpo_jax.errors.UserError`.
    """
    return PydanticCustomError(AT_KEY, "{remedy}", {"key": key, "value": value, "remedy": remedy})


class Section(BaseModel):
    """A frozen part of the config that refuses keys it does not know."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, data: Any):
        """YAML's `true` would pass for 1."""
        for name, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(name)
            kinds = field and (typing.get_args(field.annotation) or (field.annotation,))
            numeric = kinds and {int, float} & {*kinds} and bool not in kinds
            if isinstance(value, bool) and numeric:
                raise PydanticCustomError(FLAG, "a flag", {"key": name, "value": value})
        return data
