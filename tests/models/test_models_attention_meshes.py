"""Fused attention on meshes of 8 devices: the same numbers, and nothing sent about."""

import dataclasses
import functools

import jax
import pytest
from attention_cases import (
    MODEL,
    Case,
    assert_close,
    hidden_and_gradients,
    make_case,
    model_batch,
    model_params,
    plain_hidden_and_gradients,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hacpo_jax.models.flash_attention import layer_attention
from hacpo_jax.parallel.rules import AXES

ROWS = ("data", "fsdp")


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 4)


def placed(case: Case, mesh: jax.sharding.Mesh, kv_axis: str | None) -> Case:
    """The case with its rows and heads spread over the mesh."""

    def put(x: jax.Array, *names) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*names)))

    by_row = ROWS if len(case.q) % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0 else None
    return Case(
        put(case.q, by_row, None, "tensor"),
        *(put(x, by_row, None, kv_axis) for x in (case.k, case.v)),
        put(case.cotangent, by_row, None, "tensor"),
        *(put(x, by_row) for x in (case.positions, case.valid)),
    )


@pytest.mark.parametrize(
    ("sizes", "batch", "heads", "kv_heads"),
    [
        ((1, 2, 2, 2), 4, 4, 1),
        ((1, 2, 2, 2), 4, 4, 2),
        ((2, 1, 2, 2), 4, 4, 4),
        ((1, 1, 2, 4), 2, 8, 2),  # each key's head on two devices
        ((1, 2, 1, 4), 2, 12, 3),  # three query heads a device, four to a key's head
        ((1, 2, 2, 2), 3, 4, 2),  # rows that nothing divides
    ],
)
def test_splash_on_a_mesh(sizes, batch, heads, kv_heads, interpreted):
    case, mesh = make_case(20, heads, kv_heads, 16, batch=batch), mesh_of(*sizes)
    kv_axis = "tensor" if kv_heads % mesh.shape["tensor"] == 0 else None
    spread = placed(case, mesh, kv_axis)
    with jax.set_mesh(mesh):
        _, attend = layer_attention("splash", (9,), spread.positions, spread.valid)
        got = spread.outcomes(lambda q, k, v: attend(q, k, v, None))
    assert_close(got, case.plain(9), 5e-6)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_kernels_send_nothing_about(kv_heads, interpreted):
    mesh = mesh_of(1, 2, 2, 2)
    case = placed(
        make_case(20, 4, kv_heads, 16, batch=4), mesh, None if kv_heads == 1 else "tensor"
    )

    def attend(q, k, v, valid):
        return layer_attention("splash", (), case.positions, valid)[1](q, k, v, None)

    with jax.set_mesh(mesh):
        program = jax.jit(attend).lower(case.q, case.k, case.v, case.valid).compile()
    (out,) = jax.tree.leaves(program.output_shardings)
    assert out.is_equivalent_to(case.q.sharding, 4)
    text = program.as_text()
    for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert word not in text


@pytest.mark.parametrize("attention", ["splash", "cudnn"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_agents_side_by_side_on_halves_of_a_mesh(attention, kv_heads, interpreted, by_xla):
    """vmap over agents, remat, scan, a switch between windows and a mesh, all at once."""
    config = dataclasses.replace(MODEL, num_kv_heads=kv_heads, windows=(6, None))
    mesh = mesh_of(2, 1, 2, 2)
    by_agent = functools.partial(NamedSharding, mesh)
    params = jax.device_put(model_params(config, 0, 1), by_agent(PartitionSpec("agent")))
    batch = jax.device_put(model_batch(21, 2), by_agent(PartitionSpec("agent", ROWS)))
    with jax.set_mesh(mesh):
        got = hidden_and_gradients(config, params, batch, attention, remat=True)
    assert_close(got, plain_hidden_and_gradients(config, 21, 2), 2e-5)
