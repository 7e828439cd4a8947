"""Libraries that only some data need, installed as extras of the package."""

import importlib
import types

from hacpo_jax.errors import UserError


def import_extra(module: str, extra: str, *, field: str, value: str) -> types.ModuleType:
    """Imports a library that comes with an extra.

    Args:
      module: its name, e.g. `pyarrow.parquet`.
      extra: the extra that installs it.
      field: what in the config needs it, for the error.
      value: what stands there.

    Raises:
      UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = f"needs {module.partition('.')[0]} ({error}); pip install 'hacpo-jax[{extra}]'"
        raise UserError(field, value, remedy) from None
