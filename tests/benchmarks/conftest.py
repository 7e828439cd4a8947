"""The benchmarks are scripts: what they import from one another lies beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
