"""Our side of one row: python benchmarks/peer_scripts/run_ours.py ROW SHAPE.

A run is prepared from a config as any other, with a new model and a tokenizer of as many ids as the
shape has; answers, scores and steps are those of the trainer.
"""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import work
from random_run import Stepper, random_config

from hacpo_jax.agents import initial_params
from hacpo_jax.config import Config
from hacpo_jax.cpu_compiler import compile_quickly_for_cpus
from hacpo_jax.parallel.plan import compile_job
from hacpo_jax.parallel.plan_shapes import GroupShapes
from hacpo_jax.rollout import answer, answer_keys
from hacpo_jax.training.rescore import policy_log_probs
from hacpo_jax.training.run import Run, prepare


def main() -> None:
    compile_quickly_for_cpus()  # as the command line has it
    given = work.arguments(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        report = _ROWS[given.row](given, Path(directory))
    work.tell({"versions": f"jax {jax.__version__}", **report})


def config_of(shape: work.Shape, batch: work.Batch, directory: Path) -> Config:
    """A run of GRPO with a KL penalty."""
    return random_config(directory, shape, batch, algorithm={"kl_coef": work.KL_COEF})


class Answering:
    """Answers of a fresh policy, each call with other keys.

    Args:
      run: what is fixed.
      batch: of each call.
      stop_ids: that end an answer.
    """

    def __init__(self, run: Run, batch: work.Batch, stop_ids: tuple[int, ...] = ()):
        (group,) = run.groups
        self.run, self.batch, self.group, self.layout = run, batch, group, run.layout(group)
        seed = run.config.seed
        self.params = initial_params(group, seed, run.param_dtype, self.layout)
        self.prompts = [[int(i) for i in p] for p in run.train.prompts(0, range(batch.prompts))]
        self.spec = dataclasses.replace(run.sampling_spec(group), stop_ids=stop_ids)
        self.step = 0

    def __call__(self, **changes):
        """One call; `changes` are those of the spec."""
        self.step += 1
        return self.at(self.step, **changes)

    def at(self, step: int, **changes):
        """The answers that belong to a step."""
        keys = answer_keys(0, [0], step, range(self.batch.prompts), self.batch.samples)
        spec = dataclasses.replace(self.spec, **changes)
        rows = self.run.config.sampling.max_rows
        found = answer(self.params, self.prompts, keys, spec, max_rows=rows, layout=self.layout)
        assert np.isfinite(found.log_probs).all()
        return found


def decode(given: work.Arguments, directory: Path) -> dict[str, Any]:
    with _prepared(config_of(given.shape, work.DECODE, directory)) as run:
        draw = Answering(run, work.DECODE)
        assert (draw().lengths == work.DECODE.new).all()
        draw(max_new_tokens=1)
        return {"whole": given.timed(draw), "first": given.timed(lambda: draw(max_new_tokens=1))}


def step(given: work.Arguments, directory: Path) -> dict[str, Any]:
    with _prepared(config_of(given.shape, work.STEP, directory)) as run:
        make_step = Stepper(run)
        phases: list[dict[str, float]] = []

        def one() -> None:
            (row,) = make_step()
            phases.append({name: row[name] for name in row if name.startswith("time/")})

        one()
        one()
        found = given.timed(one)
        return {"step": found, "peak_mib": work.peak_mib(), "phases": phases[2:]}


def scoring(given: work.Arguments, directory: Path) -> dict[str, Any]:
    with _prepared(config_of(given.shape, work.STEP, directory)) as run:
        (group,) = run.groups
        params = initial_params(group, 0, run.param_dtype, run.layout(group))
        batch, ids = work.STEP, np.random.default_rng(0)
        shape = (1, batch.prompts, batch.samples, batch.new)
        tokens = ids.integers(0, given.shape.vocab, shape).astype(np.int32)
        lengths = np.full(shape[:-1], batch.new, np.int32)
        problems = np.arange(batch.prompts)

        def score() -> None:
            policy_log_probs(run, group, params, tokens, lengths, problems)

        score()
        return {"scoring": given.timed(score)}


def long(given: work.Arguments, directory: Path) -> dict[str, Any]:
    """The same answers under both limits: their last tokens are made to end them."""
    with _prepared(config_of(given.shape, work.DECODE, directory)) as run:
        draw = Answering(run, work.DECODE)
        last = draw.at(0).tokens[0, :, 0, -1]
        short = {"stop_ids": tuple(sorted(set(last.tolist())))}
        far = {**short, "max_new_tokens": work.LIMIT}
        found = draw.at(0, **far)
        assert found.lengths.max() == work.DECODE.new, "an answer did not end with its last token"
        assert (found.lengths == draw.at(0, **short).lengths).all()
        return {
            "whole": given.timed(lambda: draw.at(0, **far)),
            "at_answers": given.timed(lambda: draw.at(0, **short)),
        }


def prompts(given: work.Arguments, directory: Path) -> dict[str, Any]:
    batch = work.PROMPTS
    with _prepared(config_of(given.shape, batch, directory)) as run:
        draw = Answering(run, batch)
        assert (draw().lengths == batch.new).all()
        found = given.timed(draw)
    apart = dataclasses.replace(batch, prompts=batch.rows, samples=1)
    shared, whole = (_prefill_flops(given.shape, each, directory) for each in (batch, apart))
    return {"whole": found, "prefill_share": shared / whole}


def _prefill_flops(shape: work.Shape, batch: work.Batch, directory: Path) -> float:
    """Of the compiled program that reads the prompts, the output head aside."""
    config = config_of(shape, dataclasses.replace(batch, new=1), directory)
    with _prepared(config) as run:
        shapes = GroupShapes(run, run.groups[0])
        prefill = next(job for job in shapes.jobs() if job.name == "prefill")
        flops = compile_job(shapes, prefill).flops
    return flops - 2 * batch.prompts * shape.hidden * shape.vocab


def refill(given: work.Arguments, directory: Path) -> dict[str, Any]:
    """All prompts in one call, whose ended answers make room for others, and slot by slot's worth
    in a call of its own, which lasts as long as its longest answer."""
    batch = work.REFILL
    with _prepared(config_of(given.shape, batch, directory)) as run:
        every = work.REFILL_MEAN
        draw = Answering(run, batch, tuple(range(0, given.shape.vocab, every)))
        # All tokens are equally likely then: lengths are geometric, and no rounding, which differs
        # with the number of rows, changes a token.
        draw.params["final_norm"] = jnp.zeros_like(draw.params["final_norm"])
        prompts, slots = draw.prompts, work.REFILL_SLOTS
        keys = answer_keys(0, [0], 0, range(batch.prompts), 1)

        def some(start: int, end: int):
            rows = {"max_rows": slots, "layout": draw.layout}
            return answer(draw.params, prompts[start:end], keys[:, start:end], draw.spec, **rows)

        def refilled():
            return some(0, batch.prompts)

        def static():
            return [some(i, i + slots) for i in range(0, batch.prompts, slots)]

        found, parts = refilled(), static()
        assert (found.tokens == np.concatenate([part.tokens for part in parts], axis=1)).all()
        return {
            "static": given.timed(static),
            "refilled": given.timed(refilled),
            "mean_length": float(found.lengths.mean()),
        }


@contextlib.contextmanager
def _prepared(config: Config) -> Iterator[Run]:
    run = prepare(config)
    try:
        yield run
    finally:
        run.verifier.close()


_ROWS: dict[str, Callable[[work.Arguments, Path], dict[str, Any]]] = {
    "decode": decode,
    "step": step,
    "scoring": scoring,
    "long": long,
    "prompts": prompts,
    "refill": refill,
}

if __name__ == "__main__":
    main()
