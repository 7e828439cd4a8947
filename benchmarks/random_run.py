"""Runs of new models on random prompts of a given length, for measurements of speed."""

import itertools
import json
import random
import string
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hacpo_jax.agents.token_bytes import byte_alphabet
from hacpo_jax.config import Config, parse_config

PROBLEMS = 64
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
    model: dict[str, Any],
    vocab: int,
    *,
    prompts: int,
    samples: int,
    prompt_tokens: int,
    new_tokens: int,
    agents: int = 1,
    **sections: dict[str, Any],
) -> Config:
    """Agents that learn by GRPO, alone, or by HACPO in one update a step; the library's defaults
    but for sizes.

    Args:
      directory: where problems and tokenizer are written, and the run would be.
      model: as `agents.0.model`.
      vocab: ids of its tokenizer.
      prompts: of a step.
      samples: answers to each.
      prompt_tokens: of each prompt.
      new_tokens: of the longest answer.
      agents: how many of that model.
      sections: keys that are added to sections.
    """
    tokenizer, problems = directory / "tokenizer", directory / f"problems-{prompt_tokens}.jsonl"
    if not tokenizer.exists():
        save_tokenizer(tokenizer, vocab)
    digits = random.Random(0)
    rows = [
        {"prompt": "".join(digits.choices(string.digits, k=prompt_tokens)), "answer": str(i)}
        for i in range(max(PROBLEMS, prompts))
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = {"kind": "jsonl", "path": str(problems), "prompt": "prompt", "answer": "answer"}
    data: dict[str, Any] = {
        "run_dir": str(directory / "run"),
        "task": {
            "train": source,
            "eval": {"none": source},
            "verifier": {"name": [_REWARD], "workers": 1},
            "max_prompt_tokens": prompt_tokens,
        },
        "agents": [
            {"name": f"agent{i}", "model": model, "tokenizer": str(tokenizer)}
            for i in range(agents)
        ],
        "algorithm": {"name": "grpo" if agents == 1 else "hacpo"},
        "sampling": {"max_new_tokens": new_tokens},
        "training": {
            "steps": 10_000,
            "prompts_per_step": prompts,
            "group_size": max(samples, 2),  # no advantage is taken of less
            "mini_batch_prompts": prompts,
        },
        "optimizer": {"learning_rate": 1e-6},
    }
    for name, section in sections.items():
        data[name] |= section
    return parse_config(data)
