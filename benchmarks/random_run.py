"""Runs of new models on random prompts of a given length, for measurements of speed."""

import itertools
import json
import random
import string
from pathlib import Path
from typing import Any

import jax
from peer_scripts.work import Batch, Shape
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hacpo_jax.agents import initial_params
from hacpo_jax.agents.token_bytes import byte_alphabet
from hacpo_jax.config import Config, parse_config
from hacpo_jax.models.lora import trained
from hacpo_jax.training.metrics import Metrics
from hacpo_jax.training.run import Run
from hacpo_jax.training.step import Frozen, train_step
from hacpo_jax.training.trainer import fresh_run_state

PROBLEMS = 64
LONGEST = 4096
"""Positions of the models."""
_END = "<end>"
# About half of all answers end in such a character, so that most groups have an advantage.
_REWARD = {"name": "format", "weight": 1.0, "pattern": r"[A-Za-m]\Z"}


def save_tokenizer(directory: Path, size: int) -> None:
    """A byte-level BPE of `size` ids, from 258 to half a million, that merges nothing but letters
    and punctuation: each digit is one token."""
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


def random_config(
    directory: Path,
    shape: Shape,
    batch: Batch,
    *,
    agents: int = 1,
    apart: bool = False,
    **sections: dict[str, Any],
) -> Config:
    """Agents that learn by GRPO, alone, or by HACPO in one update a step; the library's defaults
    but for sizes.

    Args:
      directory: where problems and tokenizer are written, and the run would be.
      shape: of every agent's model.
      batch: of a step.
      agents: how many.
      apart: each is a group of its own: their models differ in the longest context.
      sections: keys that are added to sections.
    """
    tokenizer, problems = directory / "tokenizer", directory / f"problems-{batch.prompt}.jsonl"
    if not tokenizer.exists():
        save_tokenizer(tokenizer, shape.vocab)
    digits = random.Random(0)
    rows = [
        {"prompt": "".join(digits.choices(string.digits, k=batch.prompt)), "answer": str(i)}
        for i in range(max(PROBLEMS, batch.prompts))
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = {"kind": "jsonl", "path": str(problems), "prompt": "prompt", "answer": "answer"}
    # A benchmark is asked for, and must not be among the problems that are learned.
    measured = directory / "measured.jsonl"
    measured.write_text(json.dumps({"prompt": "a", "answer": "0"}) + "\n", encoding="utf-8")
    data: dict[str, Any] = {
        "run_dir": str(directory / "run"),
        "task": {
            "train": source,
            "eval": {"none": source | {"path": str(measured)}},
            "verifier": {"name": [_REWARD], "workers": 1},
            "max_prompt_tokens": batch.prompt,
        },
        "agents": [
            {
                "name": f"agent{i}",
                "model": _model(shape, LONGEST - i * apart),
                "tokenizer": str(tokenizer),
            }
            for i in range(agents)
        ],
        "algorithm": {"name": "grpo" if agents == 1 else "hacpo"},
        "sampling": {"max_new_tokens": batch.new},
        "training": {
            "steps": 10_000,
            "prompts_per_step": batch.prompts,
            "group_size": max(batch.samples, 2),  # no advantage is taken of less
            "mini_batch_prompts": batch.prompts,
        },
        "optimizer": {"learning_rate": 1e-6},
    }
    for name, section in sections.items():
        data[name] |= section
    return parse_config(data)


def _model(shape: Shape, longest: int) -> dict[str, Any]:
    """As `agents.N.model`, new; the vocabulary is the tokenizer's."""
    return {
        "family": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": longest,
        "rope_theta": 1e6,
    }


class Stepper:
    """Steps of a run whose models are new, one a call; each ends when the device is done.

    Args:
      run: whose policies, and references where it looks at them, are new.
    """

    def __init__(self, run: Run):
        self._run, self._frozen, learners = run, [], []
        for group in run.groups:
            params = trained(initial_params(group, 0, run.param_dtype, run.layout(group)))
            kept = run.keeps_reference(group)
            reference = jax.tree.map(lambda x: x.copy(), params) if kept else None
            self._frozen.append(Frozen(reference=reference))
            learners.append(params)
        self._state = fresh_run_state(run, learners)

    def __call__(self) -> list[Metrics]:
        """Metrics of every agent."""
        self._state, result = train_step(self._run, self._state, self._frozen)
        jax.block_until_ready(self._state.learners)
        return result.metrics
