"""A run of three tiny agents in two groups, trained once for all tests of the command line."""

import json
from pathlib import Path

import jax
import pytest
import yaml
from jax.experimental.compilation_cache import compilation_cache

from hacpo_jax.launch import main

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
# One group of the first and the last agent, so that places in groups and among agents differ.
AGENTS = [
    {
        "name": "left",
        "model": {"family": "llama", **SMALL},
        "tokenizer": {"kind": "bpe", "vocab_size": 260},
        "warm_start": {"steps": 30, "batch_size": 8, "learning_rate": 0.01},
    },
    {
        "name": "middle",
        "model": {"family": "qwen3", **SMALL},
        "tokenizer": {"kind": "characters"},
    },
    {
        "name": "right",
        "model": {"family": "llama", **SMALL},
        "tokenizer": {"kind": "bpe", "vocab_size": 260},
    },
]


@pytest.fixture(scope="package", autouse=True)
def compile_quickly(tmp_path_factory):
    """Compiling well would take several times as long as running badly."""
    before = {
        "jax_disable_most_optimizations": jax.config.read("jax_disable_most_optimizations"),
        "jax_compilation_cache_dir": jax.config.jax_compilation_cache_dir,
    }
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HACPO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # other tests do not write to the cache that commands use


@pytest.fixture(scope="package")
def tiny_config(tmp_path_factory) -> Path:
    """A config whose answers are one digit, so that a few updates teach to guess them."""
    folder = tmp_path_factory.mktemp("tiny")
    for name, count in (("train", 8), ("held_out", 4)):
        lines = [{"problem": f"{i}?", "answer": str(i % 2)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {
        "run_dir": str(folder / "run"),
        "task": {
            "train": {"kind": "jsonl", "path": str(folder / "train.jsonl")},
            "eval": {"parity": {"kind": "jsonl", "path": str(folder / "held_out.jsonl")}},
        },
        "agents": AGENTS,
        # Peers' longer answers would need a second program for another width.
        "algorithm": {"max_peer_tokens": 4},
        "sampling": {"max_new_tokens": 3},
        "training": {"steps": 2, "prompts_per_step": 4, "group_size": 2, "mini_batch_prompts": 4},
        "evaluation": {"samples": 2, "temperature": 1.0, "best_of": [1, 2]},
        "checkpoint": {"every": 1},
        "optimizer": {"learning_rate": 1e-3},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="package")
def tiny_run(tiny_config) -> Path:
    """The finished run directory of `tiny_config`; tests that change it work on a copy."""
    assert main(["train", "--config", str(tiny_config)]) == 0
    return tiny_config.parent / "run"


@pytest.fixture
def refused(capsys):
    """Runs a command that must be refused; returns its one line on standard error."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(list(words)) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in out + err
        return err

    return run
