"""`plan` from the command line, in a process of its own as JAX has to start for it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import yaml

from hacpo_jax.errors import UserError
from hacpo_jax.launch import main
from hacpo_jax.parallel.topology import topology_devices

CONFIG = {
    "run_dir": "never made",
    "task": {
        "train": {"kind": "jsonl", "path": "not there.jsonl"},
        "eval": {"test": {"kind": "jsonl", "path": "not there.jsonl"}},
        "template": "{prompt}",
        "verifier": {"name": "exact"},
        "max_prompt_tokens": 8,
    },
    "agents": [
        {
            "name": "only",
            "model": {
                "family": "llama",
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_layers": 1,
                "num_heads": 2,
                "num_kv_heads": 1,
                "head_dim": 8,
                "max_position_embeddings": 32,
            },
            "tokenizer": {"kind": "bytes"},
        }
    ],
    "algorithm": {"name": "gspo"},
    "sampling": {"max_new_tokens": 4},
    "training": {
        "steps": 1,
        "prompts_per_step": 8,
        "group_size": 2,
        "mini_batch_prompts": 8,
        "behavior_log_probs": "sampler",
    },
}
PARAMETERS = 257 * 16 + 16 + 2 * 16 + 16 * (2 * 16 + 2 * 8 + 3 * 24)


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    return path


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hacpo_jax.launch", "plan", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )


def test_a_plan_of_fake_devices(config, tmp_path):
    found = command(
        *("--config", str(config), "--topology", "cpu:4", f"json={tmp_path / 'plan.json'}"),
        # What the process is told of devices gives way to the topology.
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert found.returncode == 0, found.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["topology"] == "cpu:4"
    assert (plan["devices"], plan["processes"], plan["fits"]) == (4, 1, True)
    assert plan["agents"]["only"]["mesh"] == {"agent": 1, "data": 1, "fsdp": 4, "tensor": 1}
    assert plan["agents"]["only"]["params"] == 4 * PARAMETERS // 4
    assert plan["resident"] == 3 * 4 * PARAMETERS // 4 + 16
    programs = {row["program"]: row for row in plan["programs"]}
    rollout = ["gather", "prefill", "decode", "evaluate_prefill", "evaluate"]
    assert list(programs) == [*rollout, "update", "optimizer"]  # float32 has no need of scoring
    for row in programs.values():
        assert row["fits"]
        memory = row["bytes"]
        assert row["needed"] == row["beside"] + memory["peak"]
        assert row["needed"] >= plan["resident"]
        assert (row["flops"] > 0) == (row["program"] not in ("gather", "optimizer"))
        assert row["program"] in found.stdout
    for name in ("gather", "update"):
        assert programs[name]["collectives"]["all-gather"]["count"] > 0
    assert "fits" in found.stdout.splitlines()[-1]


def test_a_plan_of_a_tpu_is_quiet_and_may_not_fit(config):
    found = command(
        *("--config", str(config), "--topology", "v5e:2x2"),
        *("agents.0.model.hidden_size=131072", "agents.0.model.intermediate_size=65536"),
    )
    assert found.returncode == 1, found.stderr
    assert "does not fit" in found.stdout.splitlines()[-1]
    # Nothing but our own lines, one of each program.
    assert all(line.startswith("compiling ") for line in found.stderr.splitlines()), found.stderr


@pytest.mark.parametrize(
    ("topology", "words", "told"),
    [
        ("v5e:3x3", (), "--topology = 'v5e:3x3': no such topology ("),
        ("v9:2x2", (), "--topology = 'v9:2x2': no such topology ("),
        ("v5e:64x64", (), "--topology = 'v5e:64x64': v5e has at most 16 chips along an axis"),
        ("a100:8", (), "--topology = 'a100:8': must name a kind of TPU and chips"),
        ("cpu:0", (), "--topology = 'cpu:0': "),
        ("v5e:2x2", ("mesh.data=8",), "mesh of only.data = 8: must divide the devices that"),
        ("v5e:2x2", ("mesh.tensor=3",), "mesh of only.tensor = 3: must divide the query heads, 2"),
        ("v5e:2x2", ("agents.0.model=Nobody/Nothing",), "agents.0.model = 'Nobody/Nothing': no "),
        (
            "cpu:2",
            ("json=/not/there/plan.json",),
            "json = '/not/there/plan.json': must name a file",
        ),
    ],
)
def test_bad_input_is_one_line(config, topology, words, told):
    found = command("--config", str(config), "--topology", topology, *words)
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {told}"), found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_topology_must_be_named(capsys):
    assert main(["plan"]) == 2
    assert "--topology: is required" in capsys.readouterr().err
    assert main(["plan", "--topology"]) == 2
    assert "--topology: name devices" in capsys.readouterr().err


def test_other_verbs_take_no_topology(capsys):
    assert main(["train", "--topology", "v5e:4x4"]) == 2
    assert "--topology = 'v5e:4x4': train runs on the devices there are" in capsys.readouterr().err


def test_a_missing_compiler_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'hacpo-jax\[tpu\]'"):
        topology_devices("v5e:2x2")


def test_more_cpus_than_there_are():
    count = len(jax.local_devices(backend="cpu")) + 1
    with pytest.raises(UserError, match=f"cpu:{count}"):
        topology_devices(f"cpu:{count}")
