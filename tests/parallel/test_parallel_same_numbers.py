"""Losses, gradients, samples and metrics on 8 devices against one."""

import functools

import jax
import numpy as np
import pytest
from tiny_runs import LLAMA, QWEN3, tiny_config

from hacpo_jax.agents import base_params, initial_params
from hacpo_jax.models.lora import trained
from hacpo_jax.training import places
from hacpo_jax.training.run import prepare
from hacpo_jax.training.step import Frozen, train_step
from hacpo_jax.training.trainer import fresh_run_state

BPE = {"kind": "bpe", "vocab_size": 304}
SHAPE = {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2}
AGENTS = (
    {"name": "one", "model": LLAMA | SHAPE, "tokenizer": BPE},
    {"name": "two", "model": QWEN3 | SHAPE | {"num_kv_heads": 1}, "tokenizer": BPE},
    {"name": "three", "model": LLAMA | SHAPE, "tokenizer": BPE},
)
LORA = {"rank": 2, "alpha": 4.0, "targets": ["q", "v", "down"]}


@functools.cache
def two_steps(
    count: int,
    mesh: tuple = (),
    placement: str = "colocated",
    algorithm: str = "hacpo",
    lora: bool = False,
    looks: bool = False,
):
    """Metrics, records and trained parameters after two steps on so many devices.

    Diagnostics, which change nothing else, are programs of their own: one mesh has them.
    """
    assert len(places.all_devices()) == count
    agents = [agent | {"lora": LORA} for agent in AGENTS[:1]] if lora else AGENTS
    agents = [agent if agent["name"] != "two" else _without_agent_axis(agent) for agent in agents]
    config = tiny_config(
        "unused",
        agents=agents,
        mesh=dict(mesh),
        placement=placement,
        algorithm={"name": algorithm, "kl_coef": 0.01, "entropy_coef": 0.001},
        sampling={"max_new_tokens": 4, "temperature": 0.8},
        training={
            "prompts_per_step": 6,
            "group_size": 2,
            "mini_batch_prompts": 6,
            "micro_batch_tokens": 60,
            "behavior_log_probs": "trainer",
        },
        diagnostics={"every": 2} if looks else {},
        optimizer={"learning_rate": 1e-3},
    )
    run = prepare(config)
    with run.verifier:
        params = [
            initial_params(group, 0, layout=layout)
            for group, layout in zip(run.groups, run.layouts, strict=True)
        ]
        state, frozen = fresh_run_state(run, [trained(p) for p in params]), []
        for group, layout, learner in zip(run.groups, run.layouts, state.learners, strict=True):
            base = base_params(group, 0, layout=layout)
            frozen.append(Frozen(base, jax.tree.map(lambda x: x.copy(), learner.params)))
        results = []
        for _ in range(2):  # the second draws with weights that the first has changed
            state, result = train_step(run, state, frozen)
            results.append(result)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state.learners)}
    return results, jax.device_get([learner.params for learner in state.learners]), kinds


def _without_agent_axis(agent: dict) -> dict:
    """It is alone in its group."""
    return agent | {"mesh": {"agent": 1}}


pytestmark = pytest.mark.usefixtures("compile_quickly")

MESHES = [  # fsdp alone is below, with agents that wait in host memory
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"agent": 2, "fsdp": 2, "tensor": 2},
]


def check_same(found, expected):
    (results, params, _), (plain, plain_params, _) = found, expected
    for result, one in zip(results, plain, strict=True):
        looked = (result.diagnostics, one.diagnostics) if result.diagnostics else ([], [])
        for mine, its in zip(result.records, one.records, strict=True):
            assert (mine.tokens, mine.reward, mine.source) == (its.tokens, its.reward, its.source)
            assert mine.behavior_mean_log_prob == pytest.approx(
                its.behavior_mean_log_prob, abs=1e-5
            )
        for rows, others in ((result.metrics, one.metrics), looked):
            for row, other in zip(rows, others, strict=True):
                assert set(measured(row)) == set(measured(other))
                for name, value in measured(other).items():
                    same(row[name], value, name)
    for mine, its in zip(jax.tree.leaves(params), jax.tree.leaves(plain_params), strict=True):
        np.testing.assert_allclose(mine, its, atol=3e-5)


def measured(row):
    """All that is no time, which no two runs have in common."""
    times = ("time/", "started/", "tokens_per")
    return {name: value for name, value in row.items() if not name.startswith(times)}


def same(value, expected, name):
    if isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-3, abs=1e-5), name
    else:
        assert value == expected, name


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_mesh_gives_the_numbers_of_one_device(mesh, use_devices):
    expected = two_steps(1, looks=True)
    use_devices(8)
    found = two_steps(8, tuple(mesh.items()), looks=mesh == MESHES[0])
    assert [bool(result.diagnostics) for result in found[0]] == [mesh == MESHES[0], False]
    check_same(found, expected)


def test_adapters_on_a_base_lie_on_the_mesh_too(use_devices):
    expected = two_steps(1, algorithm="gspo", lora=True)
    use_devices(8)
    found = two_steps(8, (("fsdp", 4), ("tensor", 2)), algorithm="gspo", lora=True)
    check_same(found, expected)


def test_groups_with_devices_of_their_own_work_at_the_same_time(use_devices):
    """Same numbers, disjoint devices, and phases that overlap by their times of start."""
    expected = two_steps(1, looks=True)
    use_devices(8)
    found = two_steps(8, (), "partitioned")
    check_same(found, expected)
    one, two, _ = found[0][1].metrics
    for phase in ("rollout", "update"):
        starts = [row[f"started/{phase}"] for row in (one, two)]
        ends = [row[f"started/{phase}"] + row[f"time/{phase}"] for row in (one, two)]
        assert max(starts) < min(ends)


def test_idle_agents_wait_in_host_memory(use_devices):
    """Same numbers, and between steps nothing of the state is on the devices."""
    expected = two_steps(1, looks=True)
    use_devices(8)
    found = two_steps(8, (("fsdp", 8), ("offload", True)))
    check_same(found, expected)
    assert found[2] == {"pinned_host"}
