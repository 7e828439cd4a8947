"""Real weights against transformers' own models, or, where those are not at hand, a tiny model.

The environment variable HACPO_ASSETS names a directory with `smollm2-135m`, made by
`AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct").save_pretrained(...)`;
`shared/models/stories260k` beside the checkout holds a trained model of 260 thousand parameters.
"""

import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models_reference import FIXTURES, SOURCES, positions_of, stored

from hacpo_jax.models import bind, load_model
from hacpo_jax.rollout import DecodeSpec, Sampler, answer, answer_keys

STORIES = Path(__file__).resolve().parents[3] / "shared" / "models" / "stories260k"
SMOLLM2 = Path(os.environ.get("HACPO_ASSETS", "absent")) / "smollm2-135m"
TINY = FIXTURES / "llama"


def at_hand(*directories: Path) -> list[Path]:
    """Those that exist, if there is a torch to compare with; else the tiny model."""
    return [d for d in directories if "live" in SOURCES and d.is_dir()] or [TINY]


@functools.cache
def theirs(directory: Path, dtype: str):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def prompt_of(directory: Path, vocab_size: int) -> np.ndarray:
    if directory == TINY:
        return stored("llama")["tokens"][1, 3:]
    return np.random.default_rng(1).integers(3, vocab_size, 40)


def their_logits(directory: Path, tokens: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Logits `[T, V]` as transformers has them."""
    if directory == TINY:
        return stored("llama")["logits_alone"]
    import torch

    with torch.no_grad():
        return theirs(directory, dtype)(torch.tensor(tokens)[None]).logits[0].float().numpy()


def their_greedy(directory: Path, tokens: np.ndarray, count: int) -> list[int]:
    if directory == TINY:
        return stored("llama")["greedy"][:count].tolist()
    import torch

    model = theirs(directory, "float32")
    model.generation_config.eos_token_id = None
    ids = torch.tensor(tokens)[None]
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
    return out[0, len(tokens) :].tolist()


def our_logits(config, params, tokens: np.ndarray, dtype: str = "float32") -> np.ndarray:
    valid = np.ones((1, len(tokens)), bool)

    @jax.jit
    def run(params):
        model = bind(config, params)
        hidden = model(tokens[None], positions_of(valid), valid, dtype=jnp.dtype(dtype))
        table = model.unembedding().astype(dtype)
        return jnp.einsum("th,vh->tv", hidden[0], table, preferred_element_type=jnp.float32)

    return np.asarray(run(params))


@pytest.mark.parametrize("directory", at_hand(STORIES, SMOLLM2), ids=lambda d: d.name)
def test_logits_equal_transformers(directory):
    config, params = load_model(directory, "m")
    tokens = prompt_of(directory, config.vocab_size)
    expected = their_logits(directory, tokens)
    # Both are as far from float64: of 30 layers and logits up to 31, some 2e-4.
    bound = max(1e-4, 2e-5 * np.abs(expected).max())
    np.testing.assert_allclose(our_logits(config, params, tokens), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("directory", at_hand(STORIES, SMOLLM2), ids=lambda d: d.name)
def test_bfloat16_is_as_exact_as_theirs(directory):
    """Weights and activations in bfloat16, beside transformers' error in bfloat16."""
    config, params = load_model(directory, "m", dtype=jnp.bfloat16)
    tokens = prompt_of(directory, config.vocab_size)
    exact = their_logits(directory, tokens)
    error = np.abs(our_logits(config, params, tokens, "bfloat16") - exact)
    if directory == TINY:  # 8 bits, logits up to 8, 2 layers
        assert error.mean() < 8 * 2**-8
    else:
        assert (
            error.mean() < 1.25 * np.abs(their_logits(directory, tokens, "bfloat16") - exact).mean()
        )


@pytest.mark.parametrize("directory", at_hand(STORIES), ids=lambda d: d.name)
def test_greedy_answer_equals_transformers(directory):
    """200 tokens by cached decoding, from the token that begins a story."""
    config, params = load_model(directory, "m")
    prompt = prompt_of(directory, config.vocab_size) if directory == TINY else np.array([1])
    count = 64 if directory == TINY else 200
    spec = DecodeSpec(config, Sampler(0.0), count, (), config.vocab_size, jnp.dtype("float32"))
    stacked = jax.tree.map(lambda x: x[None], params)
    keys = answer_keys(0, [0], 0, [0], 1)
    got = answer(stacked, [prompt.tolist()], keys, spec, max_rows=1).tokens[0, 0, 0]
    assert got.tolist() == their_greedy(directory, prompt, count)
