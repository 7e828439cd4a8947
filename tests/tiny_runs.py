"""Configs of runs that take seconds."""

import copy
from typing import Any

from hacpo_jax.config import Config, parse_config

LLAMA = {
    "family": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
QWEN3 = LLAMA | {"family": "qwen3", "hidden_size": 24}

# `one` and `three` make up a group: same shape, tokenizer and optimizer.
AGENTS: dict[str, dict[str, Any]] = {
    "one": {"name": "one", "model": LLAMA, "tokenizer": {"kind": "characters"}},
    "two": {"name": "two", "model": QWEN3, "tokenizer": {"kind": "bpe", "vocab_size": 300}},
    "three": {"name": "three", "model": LLAMA, "tokenizer": {"kind": "characters"}},
}


def tiny_config(run_dir, *, agents=("one", "two", "three"), **sections) -> Config:
    """A run of addition with two prompts a step.

    Args:
      run_dir: where it writes, if it runs.
      agents: names of `AGENTS`, or agents' sections.
      sections: keys that replace those of whole sections.
    """
    data: dict[str, Any] = {
        "run_dir": str(run_dir),
        "task": {
            "train": {"kind": "arithmetic", "size": 12, "high": 9, "template": "What {a}{op}{b}?"},
            "eval": {"held": {"kind": "arithmetic", "split": "held_out", "size": 3, "high": 20}},
        },
        "agents": [AGENTS[agent] if isinstance(agent, str) else agent for agent in agents],
        "algorithm": {"name": "hacpo"},
        "sampling": {"max_new_tokens": 4},
        "training": {
            "steps": 2,
            "prompts_per_step": 2,
            "group_size": 3,
            "mini_batch_prompts": 2,
        },
        "optimizer": {"learning_rate": 0.01},
    }
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section} if isinstance(section, dict) else section
    return parse_config(copy.deepcopy(data))
