"""XLA's older way of writing code for CPUs, which takes less time."""

import importlib.metadata
import os
from importlib.util import find_spec

import jaxlib.version

FLAG = "--xla_cpu_use_fusion_emitters"
"""Whether each fusion goes through MLIR, an emitter that is newer than the one it replaces."""

LAST_KNOWN_TO = (0, 10, 2)
"""The last jaxlib seen to have the flag: XLA ends a process that gives it one it does not know."""


def compile_quickly_for_cpus() -> None:
    """Have this process, whose JAX has not started, and its children compile so on CPUs.

    Nothing is set where the environment says otherwise or names a file of flags, where there may be
    an accelerator, whose compiler reads the same flags, and for a jaxlib newer than
    `LAST_KNOWN_TO`. `benchmarks/compiling.py` compares the two.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if FLAG in flags or not (flags.startswith("--") or flags == ""):
        return
    if _works_on_cpus() and jaxlib.version.__version_info__ <= LAST_KNOWN_TO:
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}=false".strip()


def _works_on_cpus() -> bool:
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms == "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return not plugins and find_spec("libtpu") is None
