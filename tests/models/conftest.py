"""Kernels of platforms that are not here, made to run on CPU."""

import functools

import jax
import pytest

from hacpo_jax.models import flash_attention


@pytest.fixture
def interpreted(monkeypatch):
    """Splash attention runs here, its kernels' operations one by one."""
    kernel = functools.partial(flash_attention.splash_attention, interpret=True)
    monkeypatch.setattr(flash_attention, "splash_attention", kernel)


@pytest.fixture
def by_xla(monkeypatch):
    """JAX's plain attention stands in for cuDNN's, with the very arguments that cuDNN's gets."""
    real = jax.nn.dot_product_attention

    def stand_in(*args, implementation=None, mask=None, bias=None, **kwargs):
        if implementation == "cudnn":
            assert mask is None and bias is None, "would be held as [B, heads, T, T]"
        return real(*args, mask=mask, bias=bias, implementation="xla", **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
