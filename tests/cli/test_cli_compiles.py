"""What is told of compiled programs."""

import jax
import jax.numpy as jnp

from hacpo_jax.cli import compiles


def test_programs_are_told_of_by_name(monkeypatch):
    monkeypatch.setattr(compiles, "LEAST_SECONDS", 0.0)
    lines: list[str] = []

    def double_it(x):
        return 2 * x

    with compiles.told(lines.append):
        jax.jit(double_it)(jnp.ones(3))
    *each, together = lines
    assert "compiled double_it in 0 s" in each
    assert together == f"{len(each)} programs compiled or read in 0 s together"
    jax.jit(lambda x: x + 1)(jnp.ones(3))
    count = len(lines)
    jax.jit(lambda x: x + 2)(jnp.ones(3))
    assert len(lines) == count  # nobody listens any more


def test_small_programs_are_not(monkeypatch):
    monkeypatch.setattr(compiles, "LEAST_SECONDS", 1000.0)
    lines: list[str] = []
    with compiles.told(lines.append):
        jax.jit(lambda x: x * 3)(jnp.ones(3))
    (line,) = lines
    assert line.endswith(" programs compiled or read in 0 s together")
