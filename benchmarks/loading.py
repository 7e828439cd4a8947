"""Host memory that reading a checkpoint takes: python benchmarks/loading.py DIR [--dtype bfloat16].

Prints, in MB, the parameters, the largest of them (all layers stacked), the files, and the peak of
private memory while they are read, above what the process held before. Pages of the mapped files
are not private: the kernel takes them back when it needs them. Linux only.
"""

import argparse
import threading
from pathlib import Path

import jax
import jax.numpy as jnp

from hacpo_jax.errors import UserError
from hacpo_jax.models import load_model

MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    jnp.zeros(1).block_until_ready()
    before, peak, done = private_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, private_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        _, params = load_model(arguments.directory, "DIR", dtype=arguments.dtype)
        jax.block_until_ready(params)
    except UserError as error:
        parser.error(str(error))
    finally:
        done.set()
        watcher.join()
    sizes = [x.nbytes for x in jax.tree.leaves(params)]
    files = sum(path.stat().st_size for path in arguments.directory.glob("*.safetensors"))
    print(
        f"parameters {sum(sizes) / MB:.0f} MB, largest {max(sizes) / MB:.0f} MB, "
        f"files {files / MB:.0f} MB, peak {(peak - before) / MB:.0f} MB"
    )


def private_bytes() -> int:
    """Anonymous memory of this process that is resident."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
