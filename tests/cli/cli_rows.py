"""Files with one JSON object a line."""

import json
from pathlib import Path


def rows(path: Path) -> list[dict]:
    """All objects of a file, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]
