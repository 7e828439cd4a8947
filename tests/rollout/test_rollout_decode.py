"""Cached decoding against full forward passes."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import LLAMA, QWEN2, VOCAB, full_log_probs, full_logits, log_softmax, random_params, stacked

from hacpo_jax.models import Decoder, bind, load_model
from hacpo_jax.rollout import DecodeSpec, Sampler, answer, answer_keys, decode, pad_left

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
PROMPTS = [[5, 9, 3, 30, 7], [11, 2], [2, 8, 0, 4, 2, 2]]
SPEC = DecodeSpec(
    model=LLAMA,
    sampler=Sampler(1.0),
    max_new_tokens=7,
    stop_ids=(2,),
    num_tokens=VOCAB,
    dtype=jnp.dtype("float32"),
)


@functools.cache
def params():
    return stacked(random_params(LLAMA, 0))


def run(spec=SPEC, prompts=PROMPTS, samples=4, agents=(0,), weights=None, seed=0, step=0):
    keys = answer_keys(seed, agents, step, range(len(prompts)), samples)
    return answer(weights or params(), prompts, keys, spec, max_rows=64)


def rows(rollouts, agent=0):
    """Every answer as (prompt number, ids, log-probs, stopped)."""
    for p, g in np.ndindex(*rollouts.lengths.shape[1:]):
        n = rollouts.lengths[agent, p, g]
        ids = rollouts.tokens[agent, p, g, :n].tolist()
        yield p, ids, rollouts.log_probs[agent, p, g, :n], bool(rollouts.stopped[agent, p, g])


@pytest.mark.parametrize("name", ["llama3-rope", "qwen2", "qwen3"])
def test_greedy_answers_are_those_of_transformers(name):
    """Cached decoding against one full forward pass, as transformers computes it; 3 left pads."""
    config, weights = load_model(FIXTURES / name, name)
    held = load_file(FIXTURES / name / "reference.safetensors")
    prompt, expected = held["tokens"][1, 3:].tolist(), held["greedy"].tolist()
    stop = expected[40]
    end = expected.index(stop) + 1
    spec = dataclasses.replace(
        SPEC, model=config, sampler=Sampler(0.0), max_new_tokens=64, num_tokens=48, stop_ids=(stop,)
    )
    rollouts = run(spec, [prompt, prompt[:7]], samples=1, weights=stacked(weights))
    first, _ = rows(rollouts)
    assert first[1] == expected[:end]
    assert first[3]
    assert not rollouts.tokens[0, 0, 0, end:].any()
    assert not rollouts.log_probs[0, 0, 0, end:].any()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_one_full_forward_pass(temperature):
    """Sampler against a full pass, tempered; prompts that hold the end token, pad id or both."""
    spec = dataclasses.replace(SPEC, sampler=Sampler(temperature))
    for p, ids, log_probs, _ in rows(run(spec)):
        expected = full_log_probs(
            LLAMA, random_params(LLAMA, 0), PROMPTS[p], ids, temperature=temperature
        )
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)


def test_every_draw_is_the_inverse_distribution_at_its_own_uniform_number():
    """A row's draws follow from its key and position alone: recomputed here one by one."""
    keys = answer_keys(0, (0,), 0, range(3), 4)
    for i, (p, ids, _, _) in enumerate(rows(run())):
        logits = full_logits(LLAMA, random_params(LLAMA, 0), [*PROMPTS[p], *ids])
        probs = np.exp(log_softmax(logits[len(PROMPTS[p]) - 1 : -1]))
        key = keys.reshape(-1)[i]
        uniform = [float(jax.random.uniform(jax.random.fold_in(key, t))) for t in range(len(ids))]
        drawn = [int(np.searchsorted(np.cumsum(p), u, "right")) for p, u in zip(probs, uniform, strict=True)]
        assert ids == drawn


def test_an_answer_ends_at_the_first_stop_id_and_a_cut_off_one_keeps_its_tokens():
    """Several stop ids; finish reason `length` adds no end token; pad id (0) among the stop ids."""
    endless = list(rows(run(dataclasses.replace(SPEC, stop_ids=(), max_new_tokens=12), samples=16)))
    stops = (0, 2, 17, 21, 33)
    ended = rows(run(dataclasses.replace(SPEC, stop_ids=stops, max_new_tokens=12), samples=16))
    reasons = set()
    for (_, whole, _, never), (_, ids, _, stopped) in zip(endless, ended, strict=True):
        assert not never
        assert len(whole) == 12
        end = next((i + 1 for i, token in enumerate(whole) if token in stops), 12)
        assert ids == whole[:end]
        assert stopped == (ids[-1] in stops)
        reasons.add((stopped, len(ids) == 12))
    assert {(True, False), (False, True)} <= reasons


def counted(monkeypatch) -> list[int]:
    """A list that grows by one at each run of the decoder's one-token step."""
    steps, original = [], Decoder.decode

    def decode_and_count(self, *args, **kwargs):
        jax.debug.callback(lambda: steps.append(1))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Decoder, "decode", decode_and_count)
    # A program that is compiled already would not count, nor should this one be kept.
    monkeypatch.setattr(
        "hacpo_jax.rollout.engine.decode", jax.jit(decode.__wrapped__, static_argnames="spec")
    )
    return steps


def test_one_new_token_is_one_draw_and_no_decode_step(monkeypatch):
    """max new tokens = 1."""
    steps = counted(monkeypatch)
    rollouts = run(dataclasses.replace(SPEC, max_new_tokens=1))
    jax.effects_barrier()
    assert steps == []
    assert rollouts.lengths.tolist() == np.ones((1, 3, 4)).tolist()
    for p, ids, log_probs, stopped in rows(rollouts):
        expected = full_log_probs(LLAMA, random_params(LLAMA, 0), PROMPTS[p], ids)
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)
        assert stopped == (ids == [2])


def test_the_loop_ends_with_the_longest_answer(monkeypatch):
    steps = counted(monkeypatch)
    spec = dataclasses.replace(SPEC, max_new_tokens=24, stop_ids=tuple(range(0, VOCAB, 2)))
    rollouts = run(spec)
    jax.effects_barrier()
    assert len(steps) == rollouts.lengths.max() - 1
    assert rollouts.lengths.max() < 24


def test_a_model_that_stops_at_once_takes_no_decode_step(monkeypatch):
    steps = counted(monkeypatch)
    rollouts = run(dataclasses.replace(SPEC, num_tokens=1, stop_ids=(0,)))
    jax.effects_barrier()
    assert steps == []
    assert (rollouts.lengths == 1).all()
    assert rollouts.stopped.all()
    np.testing.assert_array_equal(rollouts.log_probs, 0)


def test_filler_rows_end_at_once_with_no_tokens():
    padded = pad_left([PROMPTS[0], [0], PROMPTS[1]], 6)
    keys = answer_keys(0, (0,), 0, [0, 7, 1], 4)
    lengths, active = np.array([5, 1, 2]), np.array([True, False, True])
    found = decode(params(), padded, lengths, keys, active, spec=SPEC)
    assert not found.lengths[0, 1].any()
    assert not found.stopped[0, 1].any()
    assert not found.tokens[0, 1].any()
    np.testing.assert_array_equal(found.log_probs[0, 1], 0)
    plain = run()
    np.testing.assert_array_equal(found.tokens[0, [0, 2]], plain.tokens[0, :2])


def test_ids_the_tokenizer_does_not_know_are_never_drawn_and_have_no_mass():
    spec = dataclasses.replace(SPEC, num_tokens=11, stop_ids=(2,))
    seen = set()
    for p, ids, log_probs, _ in rows(run(spec, samples=16)):
        seen |= set(ids)
        expected = full_log_probs(
            LLAMA, random_params(LLAMA, 0), PROMPTS[p], ids, num_tokens=11
        )
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)
    assert seen <= set(range(11))
    assert len(seen) > 5


def test_first_tokens_follow_the_model_distribution():
    """A chi-square test of 6000 draws."""
    spec = dataclasses.replace(SPEC, max_new_tokens=1)
    rollouts = run(spec, [PROMPTS[0]], samples=6000, seed=3)
    counts = np.bincount(rollouts.tokens.reshape(-1), minlength=VOCAB)
    logits = full_logits(LLAMA, random_params(LLAMA, 0), PROMPTS[0])[-1]
    expected = 6000 * np.exp(log_softmax(logits))
    often = expected >= 5
    counts = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    statistic = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = often.sum()
    assert freedom > 15
    # Mean and standard deviation of a chi-square are f and sqrt(2 f).
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def test_two_agents_in_one_program_are_two_agents_alone():
    first, second = (random_params(QWEN2, seed) for seed in (1, 2))
    spec = dataclasses.replace(SPEC, model=QWEN2)
    together = run(spec, agents=(0, 3), weights=stacked(first, second))
    for member, (agent, weights) in enumerate(((0, first), (3, second))):
        alone = run(spec, agents=(agent,), weights=stacked(weights))
        for name in ("tokens", "lengths", "stopped"):
            np.testing.assert_array_equal(getattr(together, name)[member], getattr(alone, name)[0])
        np.testing.assert_allclose(together.log_probs[member], alone.log_probs[0], atol=1e-5)
    assert not np.array_equal(together.tokens[0], together.tokens[1])


def test_bfloat16_logits_keep_a_float32_log_softmax():
    """bf16 logits spread over 60; a cache of another dtype than the parameters."""
    weights = dict(random_params(LLAMA, 0))
    weights["head"] = weights["head"] * 12
    spec = dataclasses.replace(SPEC, dtype=jnp.dtype("bfloat16"), max_new_tokens=1)
    rollouts = run(spec, PROMPTS, samples=8, weights=stacked(weights))
    tokens, lengths = pad_left(PROMPTS, 6), np.array([len(p) for p in PROMPTS])
    valid = np.arange(6) >= 6 - lengths[:, None]
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0)
    hidden = bind(LLAMA, weights)(tokens, positions, valid, dtype=jnp.bfloat16)[:, -1]
    head = weights["head"].astype(jnp.bfloat16)
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
    assert np.ptp(logits, axis=1).max() > 60
    expected = log_softmax(logits)
    for p, ids, log_probs, _ in rows(rollouts):
        assert log_probs[0] == pytest.approx(expected[p, ids[0]], abs=2e-3)


def test_bfloat16_decoding_stays_near_a_float32_full_pass():
    """The stated tolerance of bf16: 0.15 nats a token on these weights, 0.03 on average."""
    spec = dataclasses.replace(SPEC, dtype=jnp.dtype("bfloat16"))
    gaps = np.concatenate(
        [
            np.abs(log_probs - full_log_probs(LLAMA, random_params(LLAMA, 0), PROMPTS[p], ids))
            for p, ids, log_probs, _ in rows(run(spec, samples=8))
        ]
    )
    assert gaps.max() < 0.15
    assert gaps.mean() < 0.03
    assert gaps.max() > 1e-4  # it is bfloat16 indeed
