"""Memory that is freed, in a process of its own."""

import subprocess
import sys

# Arrays of 2 MB with little ones that stay between them, after one that raises glibc's threshold.
PROGRAM = """
import numpy as np
from hacpo_jax.training.host_memory import return_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if {asked}:
    return_freed_memory()
np.ones(1 << 20)
before, kept, large = resident(), [], []
for _ in range(100):
    large.append(np.ones(1 << 18))
    kept.append(bytearray(2000))
del large
print((resident() - before) / (100 << 21))
"""


def test_freed_arrays_go_back_to_the_system():
    def left(asked: bool) -> float:
        command = [sys.executable, "-c", PROGRAM.format(asked=asked)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert left(True) < 0.05
    assert left(False) > 0.5  # or nobody need ask
