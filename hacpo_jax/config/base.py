"""What every section of the config has in common."""

import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


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
                raise ValueError(f"{name} = {str(value).lower()} must be a number")
        return data
