"""Our side of one row: python benchmarks/peer_scripts/run_ours.py ROW SHAPE.

A run is prepared from a config as any other, with a new model and a tokenizer of as many ids as the
shape has; answers, scores and steps are those of the trainer.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import numpy as np
import work
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hacpo_jax.agents import initial_params
from hacpo_jax.agents.token_bytes import byte_alphabet
from hacpo_jax.config import Config, parse_config
from hacpo_jax.models.lora import trained
from hacpo_jax.parallel.plan import compile_job
from hacpo_jax.parallel.plan_shapes import GroupShapes
from hacpo_jax.rollout import answer, answer_keys
from hacpo_jax.training.rescore import policy_log_probs
from hacpo_jax.training.run import Run, prepare
from hacpo_jax.training.step import Frozen, train_step
from hacpo_jax.training.trainer import fresh_run_state

_PROBLEMS = 64
_END = "<end>"


def main() -> None:
    given = work.arguments(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        report = _ROWS[given.row](given, Path(directory))
    work.tell({"versions": f"jax {jax.__version__}", **report})


def save_tokenizer(directory: Path, size: int) -> None:
    """A byte-level BPE of `size` ids that merges nothing but letters: each digit is one token."""
    vocab, merges = dict(byte_alphabet()), []
    letters = string.ascii_letters + string.punctuation
    pairs = itertools.product(letters, letters)
    triples = ((a + b, c) for a, b, c in itertools.product(letters, repeat=3))
    for left, right in itertools.chain(pairs, triples):
        if len(vocab) == size - 1:
            break
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    vocab[_END] = len(vocab)
    backend = Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_END])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=_END).save_pretrained(directory)


def config_of(shape: work.Shape, batch: work.Batch, directory: Path) -> Config:
    """A run of GRPO with a KL penalty; the library's defaults but for the sizes."""
    tokenizer, problems = directory / "tokenizer", directory / f"problems-{batch.prompt}.jsonl"
    if not tokenizer.exists():
        save_tokenizer(tokenizer, shape.vocab)
    digits = random.Random(0)
    rows = [
        {"prompt": "".join(digits.choices(string.digits, k=batch.prompt)), "answer": str(i)}
        for i in range(max(_PROBLEMS, batch.prompts))
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "jsonl", "path": str(problems), "prompt": "prompt", "answer": "answer"}
    # About half of all answers end in such a character, so that most groups have an advantage.
    reward = {"name": "format", "weight": 1.0, "pattern": r"[A-Za-m]\Z"}
    model = {
        "family": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
    }
    data: dict[str, Any] = {
        "run_dir": str(directory / "run"),
        "task": {
            "train": source,
            "eval": {"none": source},
            "verifier": {"name": [reward], "workers": 1},
            "max_prompt_tokens": batch.prompt,
        },
        "agents": [{"name": "agent", "model": model, "tokenizer": str(tokenizer)}],
        "algorithm": {"name": "grpo", "kl_coef": work.KL_COEF},
        "sampling": {"max_new_tokens": batch.new},
        "training": {
            "steps": 10_000,
            "prompts_per_step": batch.prompts,
            "group_size": max(batch.samples, 2),  # no advantage is taken of less
            "mini_batch_prompts": batch.prompts,
        },
        "optimizer": {"learning_rate": work.LEARNING_RATE},
    }
    return parse_config(data)


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
        (group,) = run.groups
        params = initial_params(group, 0, run.param_dtype, run.layout(group))
        frozen = [Frozen(reference=jax.tree.map(lambda x: x.copy(), trained(params)))]
        state = fresh_run_state(run, [trained(params)])
        del params
        phases: list[dict[str, float]] = []

        def one() -> None:
            nonlocal state
            state, result = train_step(run, state, frozen)
            jax.block_until_ready(state.learners)
            (row,) = result.metrics
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
    """Of the compiled program that draws one token of each answer, the output head aside."""
    config = config_of(shape, dataclasses.replace(batch, new=1), directory)
    with _prepared(config) as run:
        shapes = GroupShapes(run, run.groups[0])
        decode = next(job for job in shapes.jobs() if job.name == "decode")
        flops = compile_job(shapes, dataclasses.replace(decode, turns=0)).flops
    rows = batch.prompts * config.training.group_size
    return flops - 2 * rows * shape.hidden * shape.vocab


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
}

if __name__ == "__main__":
    main()
