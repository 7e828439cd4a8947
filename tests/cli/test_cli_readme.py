"""The README knows every verb."""

import itertools
import re
from pathlib import Path

from hacpo_jax.cli.help import VERBS

README = Path(__file__).parents[2] / "README.md"


def test_every_verb_is_in_the_table_of_verbs():
    _, _, below = README.read_text().partition("| verb | does |\n")
    table = below.partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) == set(VERBS)


def test_headings_stand_free():
    lines = README.read_text().splitlines()
    inside = False
    for before, line in itertools.pairwise(lines):
        inside ^= before.startswith("```")
        assert inside or not line.startswith("## ") or before == "", line
