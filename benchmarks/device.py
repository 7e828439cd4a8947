"""What one accelerator does with the trainer: python benchmarks/device.py [--small].

Steps of GRPO as the trainer makes them, at the sizes of Qwen3-0.6B and 1.7B with random weights,
activations in bfloat16, parameters and optimizer in float32: 8 prompts of 256 tokens, 8 answers of
768 to each, one update, layers recomputed in the backward pass. Every implementation of attention
that runs on the device has its turn, the plain one last. Prints one table, with device and date:

- decode: tokens a second, prompts included, and bytes that have to be read (weights once a token
  of all answers, keys and values of what was said) as a share of the memory's bandwidth;
- scoring: a forward pass of the trainer over all answers, as a share of the peak in bfloat16;
- update: forward and backward pass and AdamW, the same.

Shares of the peak (MFU) count the model's products over whole sequences, logits of answers only,
half of the square of attention, and twice the forward pass for the backward one; what is computed
again counts as time only. Seconds are the trainer's own for each phase, its work on the host
included. Memory is the device's peak up to the end of the line's steps. Peaks and bandwidths come
from `hacpo_jax.parallel.chips`.

Ends within 8 minutes: what has not begun after 6 is left out, and says so. `--small` takes a tiny
model and seconds on CPU.
"""

import argparse
import dataclasses
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import jax
from peer_scripts.work import Batch, Shape
from random_run import Stepper, random_config

from hacpo_jax.config import Config
from hacpo_jax.errors import UserError
from hacpo_jax.models import AttentionKind
from hacpo_jax.parallel.chips import GIB, Chip, chip_of
from hacpo_jax.training.run import Run, prepare

ATTENTION: tuple[AttentionKind, ...] = ("splash", "cudnn", "xla")
COLUMNS = ("model", "attention", "phase", "seconds", "tokens/s", "share", "peak GiB", "first step")
PHASES = ("time/rollout", "time/rescore", "time/update")
LAST_START = 360.0
"""Seconds after which nothing new is begun."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A model, the step that it makes, and how many of them count."""

    name: str
    shape: Shape
    batch: Batch
    timed: int = 2

    def forward_flops(self) -> int:
        """Of all answers with their prompts."""
        shape, batch = self.shape, self.batch
        tokens = batch.prompt + batch.new
        layers = 2 * tokens * shape.layer_products
        head = 2 * batch.new * shape.hidden * shape.vocab
        pairs = tokens * (tokens + 1) // 2
        attention = 4 * shape.layers * shape.heads * shape.head_dim * pairs
        return batch.rows * (layers + head + attention)

    def update_flops(self) -> int:
        return 3 * self.forward_flops()

    def decode_bytes(self) -> int:
        """That have to be read to draw all answers, in bfloat16.

        The first token of each comes of the prompts and reads all weights, too. Of every later one
        the prompt's keys and values are read once for all answers to it, and the answer's own.
        """
        shape, batch = self.shape, self.batch
        of_token = 2 * shape.layers * shape.kv_heads * shape.head_dim
        steps = batch.new - 1
        shared = steps * batch.prompts * batch.prompt
        own = batch.rows * steps * (steps + 1) // 2
        return 2 * (batch.new * shape.products + of_token * (shared + own))


STEP = Batch(prompts=8, samples=8, prompt=256, new=768)
MODELS = (
    Sizes("Qwen3-0.6B", Shape(28, 1024, 16, 8, 128, 3072, 151_936), STEP),
    Sizes("Qwen3-1.7B", Shape(28, 2048, 16, 8, 128, 6144, 151_936), STEP),
)
SMALL = (Sizes("tiny", Shape(2, 32, 4, 2, 8, 48, 300), Batch(2, 2, 6, 8), timed=1),)


@dataclasses.dataclass(frozen=True)
class Found:
    """What the steps of one model with one attention came to.

    Args:
      decode, scoring, update: seconds of each phase, the median of the steps.
      first: seconds of the first step, most of them for compilation.
      peak: bytes; None where the device does not tell.
    """

    decode: float
    scoring: float
    update: float
    first: float
    peak: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tiny model")
    arguments = parser.parse_args()
    for line in table(SMALL if arguments.small else MODELS):
        print(line, flush=True)


def table(models: tuple[Sizes, ...]) -> Iterator[str]:
    """The lines of the table, each as soon as it is there."""
    started, device = time.monotonic(), jax.devices()[0]
    chip = chip_of(device)
    guess = "" if chip.known else ", whose peaks are a guess"
    today = datetime.date.today().isoformat()
    yield f"{device.device_kind} ({chip.name}{guess}), {today}, jax {jax.__version__}"
    yield ""
    yield line(COLUMNS)
    yield line(["---"] * len(COLUMNS))
    for sizes in models:
        for kind in ATTENTION:
            if time.monotonic() - started > LAST_START:
                yield line([sizes.name, kind, "left out: out of time", *[""] * 5])
                continue
            found = measure(sizes, kind)
            if isinstance(found, str):
                yield line([sizes.name, kind, found, *[""] * 5])
                continue
            yield from (line(cells) for cells in rows(sizes, kind, found, chip))


def line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def rows(sizes: Sizes, kind: str, found: Found, chip: Chip) -> list[list[str]]:
    """Three rows of cells, one for each phase."""
    peak = "" if found.peak is None else f"{found.peak / GIB:.2f}"
    batch = sizes.batch
    drawn, passed = batch.rows * batch.new, batch.rows * (batch.prompt + batch.new)
    bandwidth = sizes.decode_bytes() / found.decode / chip.bandwidth
    phases = [
        ("decode", found.decode, drawn, f"{bandwidth:.1%} of bandwidth"),
        ("scoring", found.scoring, passed, mfu(sizes.forward_flops(), found.scoring, chip)),
        ("update", found.update, passed, mfu(sizes.update_flops(), found.update, chip)),
    ]
    return [
        [
            sizes.name,
            kind,
            phase,
            f"{seconds:.3f}",
            f"{tokens / seconds:,.0f}",
            share,
            peak,
            f"{found.first:.0f} s",
        ]
        for phase, seconds, tokens, share in phases
    ]


def mfu(flops: int, seconds: float, chip: Chip) -> str:
    return f"{flops / seconds / chip.flops:.1%} MFU"


def measure(sizes: Sizes, kind: AttentionKind) -> Found | str:
    """The steps of one model, or why there are none."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            run = prepare(config_of(sizes, kind, Path(directory)))
        except UserError as error:
            return f"cannot run here: {error.remedy}"
        try:
            return steps(run, sizes)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return "no room on this device"
        finally:
            run.verifier.close()


def config_of(sizes: Sizes, kind: AttentionKind, directory: Path) -> Config:
    """The run; `behavior_log_probs` has the trainer score its own answers again."""
    return random_config(
        directory,
        sizes.shape,
        sizes.batch,
        training={
            "compute_dtype": "bfloat16",
            "attention": kind,
            "remat": True,
            "behavior_log_probs": "trainer",
        },
    )


def steps(run: Run, sizes: Sizes) -> Found:
    """A step that compiles, one more, and those that count."""
    make_step = Stepper(run)
    found: list[dict[str, float]] = []
    started, first = time.perf_counter(), 0.0
    for number in range(2 + sizes.timed):
        (row,) = make_step()
        first = first or time.perf_counter() - started
        if number >= 2:
            found.append({name: float(row[name]) for name in PHASES})
    decode, scoring, update = (statistics.median(one[name] for one in found) for name in PHASES)
    stats = jax.local_devices()[0].memory_stats() or {}
    return Found(decode, scoring, update, first, stats.get("peak_bytes_in_use"))


if __name__ == "__main__":
    main()
