"""Which kind of devices JAX works on."""

import os
import re

import jax

from hacpo_jax.errors import MISSING, UserError

# JAX's words without what they say of JAX_PLATFORMS itself.
_REASON = re.compile(r"(?:Unable to initialize backend '.*?': )?(.*?)\.?(?: \(.*\))?", re.DOTALL)
_VARIABLES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME")


def start_platform() -> None:
    """Have JAX find its devices; of several processes each must call it, after `hosts.start`.

    Raises:
      UserError: the environment asks for a kind of device that is not there.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where cuda alone is asked for
        name = next((name for name in _VARIABLES if os.environ.get(name)), _VARIABLES[0])
        said = _REASON.fullmatch(str(error))
        reason = "no such device is here" if said is None or not said[1] else said[1][:200]
        remedy = f"JAX cannot work on that ({reason}); write {name}=cpu, or unset it"
        raise UserError(name, os.environ.get(name, MISSING), remedy) from None
