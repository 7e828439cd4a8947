"""The command line: `python -m hacpo_jax.launch [verb] --config FILE [key=value ...]`."""

import sys

from hacpo_jax.errors import UserError


def main(argv):
    from hacpo_jax.config import load_config
    from hacpo_jax.training.console import Console
    from hacpo_jax.training.trainer import train
    c = load_config(argv[0], argv[1:])
    console = Console()
    s = train(c, console)
    console.summary(s, c.run_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
