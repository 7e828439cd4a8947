"""What is told of compiled programs."""

import inspect
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hacpo_jax.agents import build
from hacpo_jax.cli import compiles
from hacpo_jax.parallel import layout
from hacpo_jax.parallel.hosts import ALONE
from hacpo_jax.rollout import decode, engine, ring
from hacpo_jax.training import diagnostics, scoring, update, warm_start
from hacpo_jax.training.run import Run
from hacpo_jax.training.whose import whose, work_of


def test_programs_are_told_of_by_name(monkeypatch):
    monkeypatch.setattr(compiles, "LEAST_SECONDS", 0.0)
    lines: list[str] = []

    def accumulate(x):
        return 2 * x

    def apply(x):
        return 3 * x

    def helper(x):
        return 4 * x

    ones = jnp.ones(3)
    with compiles.told(lines.append):
        with work_of("left+right"):
            jax.jit(accumulate)(ones)
            with work_of("left"):
                jax.jit(apply)(ones)
        jax.jit(helper)(ones)
    *each, together = lines
    assert each == [
        "compiled update of left+right in 0 s",
        "compiled optimizer of left in 0 s",
        "compiled a part of a step in 0 s",
    ]
    assert together == f"{len(each)} programs compiled or read in 0 s together"
    jax.jit(lambda x: x + 1)(jnp.ones(3))
    count = len(lines)
    jax.jit(lambda x: x + 2)(jnp.ones(3))
    assert len(lines) == count  # nobody listens any more


@pytest.mark.parametrize("partitioned", [False, True])
def test_work_of_each_group_is_known_as_its_own(partitioned):
    groups = [types.SimpleNamespace(name=name) for name in ("left", "middle+right")]
    run: Any = types.SimpleNamespace(groups=groups, partitioned=partitioned, hosts=ALONE)
    assert Run.each_group(run, lambda g, _: (g, whose())) == [(0, "left"), (1, "middle+right")]
    assert whose() is None


def test_every_word_is_of_a_function_that_there_is():
    homes = (build, layout, update, warm_start, decode, engine, ring, scoring, diagnostics)
    sources = "".join(inspect.getsource(home) for home in homes)
    assert [name for name in compiles.PROGRAMS if f"def {name}(" not in sources] == []


def test_small_programs_are_not(monkeypatch):
    monkeypatch.setattr(compiles, "LEAST_SECONDS", 1000.0)
    lines: list[str] = []
    with compiles.told(lines.append):
        jax.jit(lambda x: x * 3)(jnp.ones(3))
    (line,) = lines
    assert line.endswith(" programs compiled or read in 0 s together")
