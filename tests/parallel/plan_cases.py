"""A small run to plan: two agents of different shapes, with a KL penalty and long rows."""

import math
from pathlib import Path
from typing import Any

import jax
import yaml

from hacpo_jax.config import Config, load_config
from hacpo_jax.models import ModelConfig, abstract_params, logical_axes

LAYERS, VOCAB = 3, 20480  # more ids than one block of the head


def agent(name: str, family: str, hidden: int) -> dict[str, Any]:
    model = {
        "family": family,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden + 16,
        "num_layers": LAYERS,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
    }
    return {"name": name, "model": model, "tokenizer": {"kind": "bpe", "vocab_size": VOCAB}}


def data(**sections: Any) -> dict[str, Any]:
    """Two agents and one update of 32 answers, in one micro-batch."""
    return {
        "run_dir": "never made",
        "task": {
            "train": {"kind": "jsonl", "path": "not there.jsonl"},
            "eval": {"test": {"kind": "jsonl", "path": "not there.jsonl"}},
            "template": "{prompt}",
            "verifier": {"name": "exact"},
            "max_prompt_tokens": 8,
        },
        "agents": [agent("small", "llama", 32), agent("large", "qwen3", 64)],
        "placement": "colocated",
        "algorithm": {"name": "gspo"},
        "sampling": {"max_new_tokens": 8, "max_rows": 16},
        "training": {
            "steps": 2,
            "prompts_per_step": 8,
            "group_size": 4,
            "mini_batch_prompts": 8,
            "remat": True,
            "behavior_log_probs": "sampler",
        },
        **sections,
    }


def write_config(path: Path, **sections: Any) -> Path:
    path.write_text(yaml.safe_dump(data(**sections)), encoding="utf-8")
    return path


def small_run(path: Path, *words: str, **sections: Any) -> Config:
    return load_config(write_config(path / "run.yaml", **sections), words)


def whole_parameters(model: ModelConfig, tensor: int) -> set[tuple[int, ...]]:
    """Axes longer than 1, sorted, of every matrix of all layers or of the vocabulary as a device
    would have it if it were gathered along `fsdp`, divided by `tensor` or not."""
    found = set()
    shapes, axes = jax.tree.leaves(abstract_params(model)), logical_axes(model)
    names = jax.tree.leaves(axes, is_leaf=lambda x: isinstance(x, tuple))
    for shape, of_axes in zip(shapes, names, strict=True):
        if len(shape.shape) < 2 or "embed" not in of_axes or of_axes == ("layers", "embed"):
            continue
        for parts in {1, tensor}:
            divided = [
                n // parts if name in ("heads", "kv_heads", "mlp", "vocab") else n
                for n, name in zip(shape.shape, of_axes, strict=True)
            ]
            found.add(tuple(sorted(n for n in divided if n > 1)))
    return found


def elements_of_a_layer(model: ModelConfig) -> int:
    """Of the largest matrix of one layer."""
    return max(
        math.prod(x.shape[1:])
        for x in jax.tree.leaves(abstract_params(model))
        if x.shape[0] == LAYERS
    )
