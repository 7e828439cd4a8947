"""Answers from slots, over a ring that grows and shrinks, against full passes without a cache."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from tiny import LLAMA, VOCAB, full_logits, log_softmax, random_params, stacked

from hacpo_jax.models import logical_axes
from hacpo_jax.parallel.hlo import parse
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.mesh import MeshSizes, make_mesh
from hacpo_jax.rollout import Chunk, DecodeSpec, Sampler, answer, answer_keys
from hacpo_jax.rollout import decode as programs
from hacpo_jax.rollout.ring import resize_ring
from hacpo_jax.rollout.shapes import SlotShapes

pytestmark = pytest.mark.usefixtures("compile_quickly")

LONGEST, SAMPLES, AGENTS = 24, 2, (0, 3)
SPEC = DecodeSpec(
    model=dataclasses.replace(LLAMA, windows=(None, 9)),
    sampler=Sampler(0.9),
    max_new_tokens=LONGEST,
    stop_ids=(0, 2, 17, 21, 33),
    num_tokens=VOCAB,
    dtype=np.dtype("float32"),
)
POOL = [np.random.default_rng(i).integers(0, VOCAB, 1 + i % 7).tolist() for i in range(14)]


@pytest.fixture(autouse=True)
def narrow_rings(monkeypatch):
    """Rings of 6, 12 and 23 places; segments end where one is full."""
    monkeypatch.setattr("hacpo_jax.rollout.buckets.NARROWEST_RING", 8)


@functools.cache
def weights():
    return [random_params(SPEC.model, seed) for seed in (1, 2)]


def plain_answer(params, prompt: list[int], key, sampler: Sampler):
    """One answer, by a full forward pass for each of its tokens."""
    ids, log_probs = [], []
    while len(ids) < LONGEST and not (ids and ids[-1] in SPEC.stop_ids):
        logits = full_logits(SPEC.model, params, [*prompt, *ids])[-1]
        if sampler.temperature == 0:
            token, scores = int(logits.argmax()), log_softmax(logits)
        else:
            scores = log_softmax(logits / sampler.temperature)
            uniform = float(jax.random.uniform(jax.random.fold_in(key, len(ids))))
            token = int(np.searchsorted(np.cumsum(np.exp(scores)), uniform, "right"))
        ids.append(token)
        log_probs.append(scores[token])
    return ids, log_probs


@functools.cache
def plain(temperature: float):
    """Answers `[A, P, G]` to all of `POOL`."""
    keys = answer_keys(0, AGENTS, 0, range(len(POOL)), SAMPLES)
    found = np.empty(keys.shape, object)
    for a, p, g in np.ndindex(keys.shape):
        sampler = Sampler(temperature)
        found[a, p, g] = plain_answer(weights()[a], POOL[p], keys[a, p, g], sampler)
    return found


def drawn(
    max_rows: int, layout: Layout | None = None, temperature: float = 0.9, for_cpu: bool = False
):
    keys = answer_keys(0, AGENTS, 0, range(len(POOL)), SAMPLES)
    params = stacked(*weights())
    if layout is not None:
        params = layout.make(lambda x: x, logical_axes(SPEC.model), lead=("agents",))(params)
    spec = dataclasses.replace(SPEC, sampler=Sampler(temperature), for_cpu=for_cpu)
    return answer(params, POOL, keys, spec, max_rows=max_rows, layout=layout)


def check(rollouts, temperature: float = 0.9):
    expected = plain(temperature)
    assert rollouts.lengths.shape == expected.shape
    for place in np.ndindex(expected.shape):
        ids, log_probs = expected[place]
        length = rollouts.lengths[place]
        assert rollouts.tokens[place][:length].tolist() == ids
        assert not rollouts.tokens[place][length:].any()
        assert not rollouts.log_probs[place][length:].any()
        np.testing.assert_allclose(
            rollouts.log_probs[place][:length], log_probs, rtol=1e-5, atol=2e-5
        )
        assert rollouts.stopped[place] == (ids[-1] in SPEC.stop_ids)


def test_the_cases_end_at_many_places():
    """Else the slots would be taken in turn, and rings would not shrink."""
    lengths = np.array([max(len(ids) for ids, _ in p.flat) for p in np.swapaxes(plain(0.9), 0, 1)])
    assert (lengths <= 12).any() and (lengths == LONGEST).any()
    assert len(set(lengths.tolist())) >= 5


@pytest.mark.parametrize("max_rows", [1, 6, 1000])
def test_slots_and_rings_change_no_sample(max_rows):
    """One answer at a time, 3 slots for 14 prompts, and all at once; one layer with a window."""
    check(drawn(max_rows))


@pytest.mark.parametrize("for_cpu", [False, True])
def test_greedy_answers_are_the_likeliest(for_cpu):
    check(drawn(6, temperature=0.0, for_cpu=for_cpu), temperature=0.0)


def test_layers_apart_change_no_sample():
    """Weights and keys turned, two agents mapped."""
    check(drawn(6, for_cpu=True))


@pytest.mark.parametrize("mesh", [{"data": 2, "tensor": 2}, {"agent": 2, "fsdp": 4}], ids=str)
def test_meshes_change_no_sample(mesh):
    """Slots over several devices, each of which takes prompts as its own slots become empty."""
    sizes = MeshSizes(**mesh)
    layout = Layout(make_mesh(sizes, jax.devices()[: sizes.devices]))
    before = programs.decode._cache_size()
    check(drawn(8, layout))
    # One program for each width of the ring, whichever prompts came when.
    assert programs.decode._cache_size() - before <= 3


def test_a_device_of_its_own_does_all_the_work():
    """Not the first one, where arrays lie that nobody has placed."""
    layout = Layout(make_mesh(MeshSizes(), jax.devices()[3:4]))
    check(drawn(6, layout))


def test_prompts_that_enter_do_not_move_between_devices():
    layout = Layout(make_mesh(MeshSizes(fsdp=4, tensor=2), jax.devices()))
    slots, new = (
        SlotShapes(layout, SPEC, len(AGENTS), Chunk(prompts, SAMPLES)) for prompts in (16, 4)
    )
    with layout.use():
        lowered = programs.enter.lower(
            slots.prompts(8),
            slots.rows(),
            (new.prompts(8), new.rows()),
            layout.abstract_array((4,), np.int32, "rows"),
        )
        text = lowered.compile().as_text()
    assert parse(text).collectives() == []


@pytest.mark.parametrize(("before", "after"), [(4, 7), (7, 4), (7, 3)])
def test_a_resized_ring_keeps_the_newest_in_order(before, after):
    ring = np.arange(before, dtype=np.float32).reshape(1, 1, 1, 1, before, 1)
    for at in range(before):  # what lies there is the oldest
        found = resize_ring(ring, at, width=after, axis=-2)
        turned = resize_ring(ring[0].swapaxes(-1, -2), at, width=after, axis=-1)
        order = [(at + i) % before for i in range(before)][-min(before, after) :]
        assert found[0, 0, 0, 0, : len(order), 0].tolist() == order
        assert turned[0, 0, 0, 0, : len(order)].tolist() == order
