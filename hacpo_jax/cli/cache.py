"""The persistent compilation cache: a second run compiles nothing again."""

import hashlib
import os
import platform
import sys
import tempfile
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keep compiled programs in `$JAX_COMPILATION_CACHE_DIR`, or below `$HACPO_CACHE`, or at home.

    A cache that cannot be written costs time only, so it is a warning.
    """
    path = _directory()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror
        print(
            f"warning: no compilation cache: {path} cannot be written ({reason})", file=sys.stderr
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    # A run has many small programs, and together they take as long as the large ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _directory() -> Path:
    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("HACPO_CACHE") or "~/.cache/hacpo_jax"
    return Path(base).expanduser() / "xla" / _processor()


def _processor() -> str:
    """A name for this kind of processor: code for another, in a shared home, would not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    kinds = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    digest = hashlib.sha256("\n".join(sorted(kinds)).encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"
