"""How a step grows with chips and with agents: python benchmarks/scaling.py [--chips] [--agents].

With chips: from v5e:4x4 to v5e:16x16 the batch grows as they do, and what each device computes,
holds and sends in an update and in a decode should stay. Parameters are divided by 16 all along.

With agents on one slice: every agent answers every problem, so answering grows with their number
A; each learns from the answers of all, so learning grows with A². Agents of one shape are one
group, and one program serves them.

Programs are compiled for TPUs that are not there and their own figures are printed.
"""

import argparse
import os
from collections.abc import Sequence

os.environ["JAX_PLATFORMS"] = "cpu"

from hacpo_jax.config import Config, parse_config
from hacpo_jax.parallel.plan import Planned, plan
from hacpo_jax.parallel.topology import topology_devices

TOPOLOGIES = ("v5e:4x4", "v5e:8x8", "v5e:16x16")
AGENTS = (1, 2, 3, 4)
MODEL = {
    "family": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_layers": 28,
    "num_heads": 16,
    "num_kv_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
PROGRAMS = ("decode", "update")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", action="store_true", help="only the first table")
    parser.add_argument("--agents", action="store_true", help="only the second table")
    arguments = parser.parse_args()
    both = arguments.chips == arguments.agents
    if both or arguments.chips:
        print_chips()
    if both or arguments.agents:
        print_agents()


def settings(chips: int, agents: int) -> Config:
    """A run with Qwen3-0.6B's shape, whose batch is proportional to the chips."""
    names = [f"agent-{i}" for i in range(agents)]
    tokenizer = {"kind": "bpe", "vocab_size": 151936}
    data = {
        "run_dir": "never made",
        "task": {
            "train": {"kind": "jsonl", "path": "never read.jsonl"},
            "eval": {"test": {"kind": "jsonl", "path": "never read.jsonl"}},
            "template": "{prompt}",
            "verifier": {"name": "math"},
            "max_prompt_tokens": 512,
        },
        "agents": [{"name": name, "model": MODEL, "tokenizer": tokenizer} for name in names],
        "algorithm": {"name": "hacpo" if agents > 1 else "gspo"},
        "mesh": {"fsdp": 16},
        "sampling": {"max_new_tokens": 1536, "max_rows": 8 * chips},
        "training": {
            "steps": 1,
            # With up to 4 agents an update takes whole problems, as many of every host.
            "prompts_per_step": 3 * chips,
            "group_size": 8,
            "mini_batch_prompts": 3 * chips,
            "micro_batch_tokens": 2048 * chips,
            "remat": True,
        },
    }
    return parse_config(data)


def planned(topology: str, agents: int) -> dict[str, Planned]:
    """Decode and update of the only group, by name."""
    devices = topology_devices(topology)
    config = settings(len(devices), agents)
    group = "+".join(agent.name for agent in config.agents)
    found = plan(config, devices, only=[(group, name) for name in PROGRAMS])
    return {one.program: one for one in found.programs}


def print_chips() -> None:
    print("| chips | program | TFLOP | against 16 chips | GiB | against | GiB sent | against |")
    print("|---|---|---|---|---|---|---|---|")
    first: dict[str, Sequence[float]] = {}
    for topology in TOPOLOGIES:
        chips = len(topology_devices(topology))
        for name, one in planned(topology, 1).items():
            assert one.bytes is not None
            sent = sum(each.moved for each in one.collectives)
            row = (one.flops / 1e12, one.bytes.peak / 2**30, sent / 2**30)
            cells = [
                f"{value:.3g} | {value / start:.2f}"
                for value, start in zip(row, first.setdefault(name, row), strict=True)
            ]
            print(f"| {chips} | {name} | {' | '.join(cells)} |", flush=True)


def print_agents() -> None:
    print("| agents | answering, TFLOP | against 1 agent | learning, TFLOP | against 1 agent |")
    print("|---|---|---|---|---|")
    first: Sequence[float] = ()
    for agents in AGENTS:
        found = planned(TOPOLOGIES[0], agents)
        row = [found[name].flops * found[name].runs / 1e12 for name in PROGRAMS]
        first = first or row
        cells = [f"{v:.3g} | {v / start:.2f}" for v, start in zip(row, first, strict=True)]
        print(f"| {agents} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
