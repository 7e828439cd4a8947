"""The README knows every verb."""

import itertools
import re
import shlex
from pathlib import Path

from hacpo_jax.cli.configs import find_config
from hacpo_jax.cli.help import VERBS, help_text
from hacpo_jax.config import Arithmetic, load_config

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


def test_examples_ask_the_quickstart_as_it_was_trained():
    """Its folder, and prompts of its template: a blank that is missing is another prompt."""
    config = load_config(find_config("quickstart"))
    assert isinstance(config.task.train, Arithmetic)
    wanted = {config.task.train.template.format(a=a, op="+", b=b) for a, b in ((12, 7), (30, 5))}
    texts = [README.read_text(), help_text("generate")]
    lines = [line for text in texts for line in text.splitlines() if "12+7" in line]
    words = [shlex.split(line) for line in lines]
    assert len(words) == 3 and all("generate" in line for line in words)
    for word in itertools.chain(*words):
        key, _, value = word.partition("=")
        assert key != "prompt" or value in wanted
        assert key not in ("of", "run") or value.partition("@")[0] == config.run_dir
