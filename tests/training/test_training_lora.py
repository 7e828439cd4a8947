"""Runs whose agents train adapters: what moves, what is saved, what is exported."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import AGENTS, tiny_config

from hacpo_jax.agents import base_params, export_agent, initial_params, save_agent
from hacpo_jax.errors import UserError
from hacpo_jax.models import Adapted, bind, load_model
from hacpo_jax.models.lora import member
from hacpo_jax.training import trainer
from hacpo_jax.training.checkpoint import Checkpoints
from hacpo_jax.training.console import Console
from hacpo_jax.training.run import prepare
from hacpo_jax.training.saved_run import saved_params

pytestmark = pytest.mark.usefixtures("compile_quickly")

LORA = {"rank": 2, "alpha": 8.0, "targets": ["q", "v", "down"]}
SECTIONS = [
    AGENTS["one"] | {"lora": LORA, "warm_start": {"steps": 3, "batch_size": 4}},
    AGENTS["two"] | {"lora": LORA},
]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of a finished run with a KL penalty, whose verifier makes some answers right by chance."""
    config = tiny_config(
        tmp_path_factory.mktemp("lora") / "run",
        agents=SECTIONS,
        task={"verifier": {"name": "lucky_verifier:grade", "workers": 1}},
        algorithm={"name": "sgt", "kl_coef": 0.1, "max_peer_tokens": 4},
        training={"group_size": 3},
    )
    trainer.train(config, Console())
    return config


@pytest.fixture(scope="module")
def run(config):
    run = prepare(config)
    yield run
    run.verifier.close()


def test_only_adapters_are_saved_and_the_base_is_as_it_was(config, run):
    for group, params in zip(
        run.groups, saved_params(_path(config), run.groups, 2, config.seed), strict=True
    ):
        assert isinstance(params, Adapted)
        names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(params.adapters)}
        assert names == {f"{w}_lora_{end}" for w in ("q", "v", "down") for end in ("down", "up")}
        fresh = base_params(group, config.seed)
        jax.tree.map(np.testing.assert_array_equal, params.base, fresh)
        # Fresh adapters change nothing; those of a run that learned do.
        assert any(
            np.asarray(x).any()
            for path, x in jax.tree_util.tree_leaves_with_path(params.adapters)
            if path[-1].key.endswith("_lora_up")
        )


def test_the_reference_is_the_start_without_a_second_copy(config, run):
    """KL is 0 before the first update and the reference holds adapters alone."""
    rows = [json.loads(line) for line in (_path(config) / "metrics.jsonl").read_text().splitlines()]
    assert all(abs(row["kl"]) < 1e-6 for row in rows if row["step"] == 1)
    assert any(row["kl"] > 1e-6 for row in rows if row["step"] == 2)
    checkpoints = Checkpoints(_path(config) / "checkpoints", 2)
    try:
        _, frozen = trainer.start_or_resume(run, checkpoints, Console())
    finally:
        checkpoints.close()
    for still in frozen:
        policy = still.reference_policy()
        assert policy.base is still.base
        size = sum(x.size for x in jax.tree.leaves(still.reference))
        assert size * 4 < sum(x.size for x in jax.tree.leaves(still.base))


def test_an_export_computes_what_the_adapted_agent_computes(config, run, tmp_path):
    for group, params in zip(
        run.groups, saved_params(_path(config), run.groups, 2, config.seed), strict=True
    ):
        (agent,) = group.agents
        export_agent(agent, member(params, 0), tmp_path / agent.name, dtype=jnp.float32)
        shape, merged = load_model(tmp_path / agent.name, agent.name)
        tokens = np.arange(1, 13).reshape(2, 6)
        positions, valid = np.broadcast_to(np.arange(6), (2, 6)), np.ones((2, 6), bool)

        def hidden(model, params, tokens=tokens, positions=positions, valid=valid):
            return bind(model, params)(tokens, positions, valid, dtype=jnp.float32)

        expected = hidden(agent.model, member(params, 0))
        np.testing.assert_allclose(hidden(shape, merged), expected, atol=1e-4)


def test_agents_that_adapt_one_directory_share_its_weights(config, run, tmp_path):
    """Two agents on one exported model are one group with one base; another model is another."""
    (params, _), agent = saved_params(_path(config), run.groups, 0, config.seed), run.agents[0]
    export_agent(agent, member(params, 0), tmp_path / "model", dtype=jnp.float32)
    export_agent(agent, member(params, 0), tmp_path / "other", dtype=jnp.float32)
    sections = [
        {"name": name, "model": str(tmp_path / directory), "lora": LORA}
        for name, directory in (("a", "model"), ("b", "model"), ("c", "other"))
    ]
    shared = prepare(tiny_config("unused", agents=sections, algorithm={"name": "grpo"}))
    assert [group.indices for group in shared.groups] == [[0, 1], [2]]
    first = initial_params(shared.groups[0], 0)
    assert isinstance(first, Adapted)
    table = first.base["embedding"]
    assert table.ndim == 2  # no agent axis
    downs = first.adapters["layers"]["attention"]["q_lora_down"]
    assert downs.shape[0] == 2 and not np.array_equal(downs[0], downs[1])


def _path(config) -> Path:
    return Path(config.run_dir)


def test_adapters_are_not_put_on_other_weights(config, run, tmp_path):
    """Weights that changed since the run began: resuming and exporting would go on in silence."""
    (params, _), agent = saved_params(_path(config), run.groups, 0, config.seed), run.agents[0]
    base = tmp_path / "model"
    export_agent(agent, member(params, 0), base, dtype=jnp.float32)
    section = {"name": "a", "model": str(base), "lora": LORA}
    adapted = tiny_config(tmp_path / "run", agents=[section], algorithm={"name": "grpo"})
    first = prepare(adapted)
    save_agent(first.agents[0], tmp_path / "agents" / "a")
    prepare(adapted, tmp_path / "agents").verifier.close()
    weights = base / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # one bit of one weight
    weights.write_bytes(content)
    with pytest.raises(UserError, match="other weights") as caught:
        prepare(adapted, tmp_path / "agents")
    assert caught.value.field == "agents.0.model" and caught.value.value == str(base)
