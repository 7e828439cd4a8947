"""Which kind of devices JAX works on."""

import os
import re

import jax

from hacpo_jax.errors import MISSING, UserError

# JAX's words without what they say of JAX_PLATFORMS itself.
_REASON = re.compile(r"(?:Unable to initialize backend '.*?': )?(.*?)\.?(?: \(.*\))?", re.DOTALL)
# What JAX begins with where another variable than JAX_PLATFORMS is at fault, and what to do.
_OTHERS = {
    "Unknown backend": ("JAX_PLATFORM_NAME", "write JAX_PLATFORM_NAME=cpu, or unset it"),
    "Unable to initialize backend 'cpu'": ("XLA_FLAGS", "unset it"),
}


def start_platform() -> None:
    """Have JAX find its devices; of several processes each must call it, after `hosts.start`.

    Raises:
      UserError: the environment asks for devices that are not there, or says so in a wrong way.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where cuda alone is asked for
        usual = ("JAX_PLATFORMS", "write JAX_PLATFORMS=cpu, or unset it")
        name, way_out = next((v for k, v in _OTHERS.items() if str(error).startswith(k)), usual)
        said = _REASON.fullmatch(str(error))
        reason = "no such device is here" if said is None or not said[1] else said[1][:200]
        remedy = f"JAX cannot work on that ({reason}); {way_out}"
        raise UserError(name, os.environ.get(name, MISSING), remedy) from None
