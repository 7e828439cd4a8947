"""Cached decoding against full forward passes."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import (
    DECODE,
    LLAMA,
    PROMPTS,
    VOCAB,
    full_log_probs,
    full_logits,
    llama_params,
    log_softmax,
    random_params,
    stacked,
)

from hacpo_jax.models import Decoder, bind, load_model
from hacpo_jax.parallel.layout import one_device
from hacpo_jax.rollout import Sampler, answer, answer_keys, pad_left
from hacpo_jax.rollout.decode import decode, prefill
from hacpo_jax.rollout.ring import empty_ring, ring_shape

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def run(spec=DECODE, prompts=PROMPTS, samples=4, agents=(0,), weights=None, seed=0, step=0):
    keys = answer_keys(seed, agents, step, range(len(prompts)), samples)
    return answer(weights or stacked(llama_params()), prompts, keys, spec, max_rows=64)


def rows(rollouts, agent=0):
    """Every answer as (prompt number, ids, log-probs, stopped)."""
    for p, g in np.ndindex(*rollouts.lengths.shape[1:]):
        n = rollouts.lengths[agent, p, g]
        ids = rollouts.tokens[agent, p, g, :n].tolist()
        yield p, ids, rollouts.log_probs[agent, p, g, :n], bool(rollouts.stopped[agent, p, g])


def test_greedy_answers_are_those_of_transformers():
    """Cached decoding against full forward passes, as transformers computes them; 3 left pads."""
    name = "qwen3"
    config, weights = load_model(FIXTURES / name, name)
    held = load_file(FIXTURES / name / "reference.safetensors")
    prompt, expected = held["tokens"][1, 3:].tolist(), held["greedy"].tolist()
    stop = expected[40]
    end = expected.index(stop) + 1
    spec = dataclasses.replace(
        DECODE,
        model=config,
        sampler=Sampler(0.0),
        max_new_tokens=64,
        num_tokens=48,
        stop_ids=(stop,),
    )
    rollouts = run(spec, [prompt, prompt[:7]], samples=1, weights=stacked(weights))
    first, _ = rows(rollouts)
    assert first[1] == expected[:end]
    assert first[3]
    assert not rollouts.tokens[0, 0, 0, end:].any()
    assert not rollouts.log_probs[0, 0, 0, end:].any()


@pytest.mark.parametrize(
    ("temperature", "num_tokens", "missing_ids"),
    [(1.0, VOCAB, ()), (0.7, 25, ()), (0.7, 25, tuple(range(0, 20, 2)))],
)
def test_log_probs_are_those_of_one_full_forward_pass(temperature, num_tokens, missing_ids):
    """Sampler against a full pass, tempered; prompts that hold the end token, pad id or both.

    Ids that the tokenizer does not know are never drawn and have no mass.
    """
    known = {"num_tokens": num_tokens, "missing_ids": missing_ids}
    spec = dataclasses.replace(DECODE, sampler=Sampler(temperature), **known)
    weights = llama_params()
    seen = set()
    for p, ids, log_probs, _ in rows(run(spec)):
        expected = full_log_probs(LLAMA, weights, PROMPTS[p], ids, temperature=temperature, **known)
        np.testing.assert_allclose(log_probs, expected, atol=1e-4)
        seen |= set(ids)
    assert num_tokens * 3 // 4 <= max(seen) < num_tokens
    assert seen.isdisjoint(missing_ids)
    # Drawn from often enough that leaving out half of them is no accident.
    assert missing_ids or len(seen & set(range(0, 20, 2))) >= 5


def test_every_draw_is_the_inverse_distribution_at_its_own_uniform_number():
    """A row's draws follow from its key and position alone: recomputed here one by one."""
    keys = answer_keys(0, (0,), 0, range(3), 4)
    for i, (p, ids, _, _) in enumerate(rows(run())):
        logits = full_logits(LLAMA, llama_params(), [*PROMPTS[p], *ids])
        probs = np.exp(log_softmax(logits[len(PROMPTS[p]) - 1 : -1]))
        key = keys.reshape(-1)[i]
        uniform = [float(jax.random.uniform(jax.random.fold_in(key, t))) for t in range(len(ids))]
        drawn = [
            int(np.searchsorted(np.cumsum(p), u, "right"))
            for p, u in zip(probs, uniform, strict=True)
        ]
        assert ids == drawn


def test_an_answer_ends_at_the_first_stop_id_and_a_cut_off_one_keeps_its_tokens():
    """Several stop ids, the filler 0 among them; finish reason `length` adds no end token."""
    longest, reasons = DECODE.max_new_tokens, set()
    endless = rows(run(dataclasses.replace(DECODE, stop_ids=())))
    for (_, whole, _, never), (_, ids, _, stopped) in zip(endless, rows(run()), strict=True):
        assert not never
        assert len(whole) == longest
        end = next((i + 1 for i, token in enumerate(whole) if token in DECODE.stop_ids), longest)
        assert ids == whole[:end]
        assert stopped == (ids[-1] in DECODE.stop_ids)
        reasons.add((stopped, len(ids) == longest))
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
    """max new tokens = 1; the draws follow the model's distribution (chi-square)."""
    steps = counted(monkeypatch)
    rollouts = run(dataclasses.replace(DECODE, max_new_tokens=1), samples=2000)
    jax.effects_barrier()
    assert steps == []
    assert (rollouts.lengths == 1).all()
    np.testing.assert_array_equal(
        rollouts.stopped, np.isin(rollouts.tokens[..., 0], DECODE.stop_ids)
    )
    for p, prompt in enumerate(PROMPTS):
        expected = log_softmax(full_logits(LLAMA, llama_params(), prompt)[-1])
        tokens = rollouts.tokens[0, p, :, 0]
        np.testing.assert_allclose(rollouts.log_probs[0, p, :, 0], expected[tokens], atol=1e-4)
        assert_drawn_from(np.exp(expected), tokens)


def assert_drawn_from(probs: np.ndarray, tokens: np.ndarray) -> None:
    """Chi-square test, tokens expected fewer than 5 times taken together."""
    expected, counts = probs * len(tokens), np.bincount(tokens, minlength=len(probs))
    often = expected >= 5
    expected = np.append(expected[often], expected[~often].sum())
    counts = np.append(counts[often], counts[~often].sum())
    freedom = often.sum()
    assert freedom > 10
    statistic = ((counts - expected) ** 2 / expected).sum()
    # A chi-square variable has mean f and standard deviation sqrt(2 f).
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def test_a_model_that_stops_at_once_takes_no_decode_step(monkeypatch):
    steps = counted(monkeypatch)
    rollouts = run(dataclasses.replace(DECODE, num_tokens=1, stop_ids=(0,)))
    jax.effects_barrier()
    assert steps == []
    assert (rollouts.lengths == 1).all()
    assert rollouts.stopped.all()
    np.testing.assert_array_equal(rollouts.log_probs, 0)


def test_filler_rows_end_at_once_with_no_tokens():
    padded, weights = pad_left([PROMPTS[0], [0], PROMPTS[1]], 6), stacked(llama_params())
    keys = jax.random.key_data(answer_keys(0, (0,), 0, [0, 7, 1], 4))
    lengths, active = np.array([5, 1, 2]), np.array([True, False, True])
    prompts, rows, first = prefill(weights, padded, lengths, keys, active, spec=DECODE)
    shape = ring_shape(DECODE.model, (1, 3, 4), 6)
    ring = empty_ring(shape, DECODE.dtype, one_device(), DECODE.for_cpu)
    _, _, further, told = decode(weights, None, prompts, rows, ring, 0, 6, 3, spec=DECODE)
    for drawn in (first, further):
        assert not drawn.counts[0, 1].any()
        assert not drawn.stopped[0, 1].any()
        assert not drawn.tokens[0, 1].any()
        np.testing.assert_array_equal(drawn.log_probs[0, 1], 0)
    assert told.steps == 6 and not told.running.any()
    plain = run().tokens[0, :2]
    np.testing.assert_array_equal(first.tokens[0, [0, 2], :, 0], plain[..., 0])
    np.testing.assert_array_equal(further.tokens[0, [0, 2], :, :6], plain[..., 1:])


def test_two_agents_in_one_program_are_two_agents_alone():
    first, second = (random_params(LLAMA, seed) for seed in (1, 2))
    together = run(agents=(0, 3), weights=stacked(first, second))
    for member, (agent, weights) in enumerate(((0, first), (3, second))):
        alone = run(agents=(agent,), weights=stacked(weights))
        for name in ("tokens", "lengths", "stopped"):
            np.testing.assert_array_equal(getattr(together, name)[member], getattr(alone, name)[0])
        np.testing.assert_allclose(together.log_probs[member], alone.log_probs[0], atol=1e-5)
    assert not np.array_equal(together.tokens[0], together.tokens[1])


BFLOAT16 = dataclasses.replace(DECODE, dtype=jnp.dtype("bfloat16"))


@jax.jit
def last_hidden(weights, tokens, positions, valid):
    return bind(LLAMA, weights)(tokens, positions, valid, dtype=jnp.bfloat16)[:, -1]


def test_bfloat16_logits_keep_a_float32_log_softmax():
    """bf16 logits spread over 60; parameters of another dtype than the cache."""
    weights = dict(llama_params())
    weights["head"] = weights["head"] * 12
    tokens, lengths = pad_left(PROMPTS, 6), np.array([len(p) for p in PROMPTS])
    valid = np.arange(6) >= 6 - lengths[:, None]
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0)
    hidden = last_hidden(weights, tokens, positions, valid)
    head = weights["head"].astype(jnp.bfloat16)
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
    assert np.ptp(logits, axis=1).max() > 60
    expected = log_softmax(logits)
    for p, ids, log_probs, _ in rows(run(BFLOAT16, weights=stacked(weights))):
        # A log-softmax in bfloat16 would be off by up to 0.25 here.
        assert log_probs[0] == pytest.approx(expected[p, ids[0]], abs=2e-3)


def test_bfloat16_decoding_stays_near_a_float32_full_pass():
    """The stated tolerance of bf16: 0.15 nats a token on these weights, 0.03 on average."""
    gaps = np.concatenate(
        [
            np.abs(log_probs - full_log_probs(LLAMA, llama_params(), PROMPTS[p], ids))
            for p, ids, log_probs, _ in rows(run(BFLOAT16))
        ]
    )
    assert gaps.max() < 0.15
    assert gaps.mean() < 0.03
    assert gaps.max() > 1e-4  # it is bfloat16 indeed
