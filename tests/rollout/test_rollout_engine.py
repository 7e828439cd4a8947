"""A sample depends on (seed, step, prompt, index, agent) and nothing else."""

import functools
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DECODE, llama_params, stacked

from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.mesh import MeshSizes, make_mesh
from hacpo_jax.rollout import Chunk, answer, answer_keys, chunk_of, pad_left

pytestmark = pytest.mark.usefixtures("compile_quickly")

POOL = [[5, 9, 3], [11], [2, 8, 0, 4, 2], [7, 7], [1, 30, 12, 5, 5, 6], [39], [3, 3, 3, 3]]
SAMPLES = 4


def drawn(prompt_ids, *, seed=0, step=0, agent=0, samples=SAMPLES, max_rows=64):
    keys = answer_keys(seed, [agent], step, prompt_ids, samples)
    prompts = [POOL[i] for i in prompt_ids]
    return answer(stacked(llama_params()), prompts, keys, DECODE, max_rows=max_rows)


@functools.cache
def everything():
    return drawn(list(range(len(POOL))))


@settings(max_examples=12, deadline=None)
@given(
    prompt_ids=st.permutations(range(len(POOL))),
    max_rows=st.sampled_from([3, 4, 12, 1000]),
)
def test_samples_do_not_depend_on_order_or_chunk_size(prompt_ids, max_rows):
    """Slots for 1, 3 and all prompts, or for one prompt with 2 of its answers."""
    found, expected = drawn(prompt_ids, max_rows=max_rows), everything()
    assert found.tokens.shape == (1, len(POOL), SAMPLES, DECODE.max_new_tokens)
    for name in ("tokens", "lengths", "stopped"):
        np.testing.assert_array_equal(
            getattr(found, name), getattr(expected, name)[:, prompt_ids], err_msg=name
        )
    np.testing.assert_allclose(found.log_probs, expected.log_probs[:, prompt_ids], atol=1e-5)


@pytest.mark.parametrize(
    ("devices", "share", "samples", "max_rows", "expected"),
    [
        (1, 100, 8, 64, Chunk(8, 8)),
        (1, 3, 8, 64, Chunk(3, 8)),
        (1, 100, 30, 64, Chunk(2, 30)),
        (1, 100, 30, 20, Chunk(1, 15)),  # two passes, alike
        (8, 100, 8, 64, Chunk(8, 8)),
        (8, 100, 8, 200, Chunk(24, 8)),  # 25 prompts would be 32 on 8 devices
        (8, 9, 8, 200, Chunk(16, 8)),
        (8, 100, 8, 63, Chunk(8, 4)),  # 7 answers to each prompt are two passes as well
        (8, 100, 8, 8, Chunk(8, 1)),
        (8, 100, 8, 1, Chunk(8, 1)),
    ],
)
def test_what_is_decoded_at_a_time(devices, share, samples, max_rows, expected):
    layout = Layout(make_mesh(MeshSizes(fsdp=devices), jax.devices()[:devices]))
    assert chunk_of(layout, share, samples, max_rows) == expected


@pytest.mark.parametrize("prompt_ids", [[2], [1, 4, 0]])
def test_samples_do_not_depend_on_the_rest_of_the_batch(prompt_ids):
    found, expected = drawn(prompt_ids), everything()
    np.testing.assert_array_equal(found.tokens, expected.tokens[:, prompt_ids])


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}, {"agent": 1}])
def test_every_part_of_the_key_counts(other):
    found = drawn(list(range(len(POOL))), **other)
    differ = (found.tokens != everything().tokens).any(axis=-1)
    assert differ.mean() > 0.9


def test_no_two_answers_share_a_key():
    seeds_and_steps = itertools.product((0, 1), (0, 1, 2**31 - 1))
    keys = [answer_keys(seed, [0, 1, 5], step, range(4), 3) for seed, step in seeds_and_steps]
    words = np.concatenate([jax.random.key_data(k).reshape(-1, 2) for k in keys])
    assert len({tuple(word) for word in words.tolist()}) == 6 * 3 * 4 * 3


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=5), min_size=1, max_size=4))
def test_prompts_are_padded_on_the_left(prompts):
    padded = pad_left(prompts, 6)
    for row, prompt in zip(padded.tolist(), prompts, strict=True):
        assert row == [0] * (6 - len(prompt)) + prompt
