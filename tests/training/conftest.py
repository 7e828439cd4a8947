"""Fixtures of tests that run whole steps."""

import jax
import pytest


@pytest.fixture(scope="module")
def compile_quickly():
    """Compiling well would take several times as long as running badly."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
