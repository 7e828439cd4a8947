"""The objectives reproduce the golden pairs, and a pair worked out by hand, in both precisions.

All cases of a file are padded to one shape with invalid samples, empty rows and NaN, which must
change nothing, so that each precision compiles once.
"""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hacpo_jax import objectives

PRECISIONS = pytest.mark.parametrize(
    ("x64", "tolerance", "gradient_tolerance"), [(True, 1e-9, 1e-8), (False, 1e-5, 1e-5)]
)

Z = 0.5 + 1e-6  # the joint group below has deviation sqrt(3/4 / 3)
D = math.sqrt(0.5) + 1e-6


def _settings(values):
    """Advantages by (cross_baseline, discrepancy, capability_baseline)."""
    return {
        f"cross_baseline={c},discrepancy={d},capability_baseline={b}": v
        for (c, d, b), v in values.items()
    }


# Capabilities 0.3 and 0.6; baselines (1 + 0.5·2) / 4 = 0.5 and (2·1 + 2) / 4 = 1.
ADVANTAGE_CASE = {
    "history": [[0.3, 0.6]],
    "rewards": [[[1.0, 0.0]], [[1.0, 1.0]]],
    "valid": None,
    "capability_ratio": [[1.0, 0.5], [2.0, 1.0]],
    "baseline": [[0.5], [1.0]],
    "advantages": _settings(
        {
            ("learner", True, True): [
                [[[0.5 / Z, -0.5 / Z]], [[1 / Z, 1 / Z]]],
                [[[0.0, -0.5 / Z]], [[0.0, 0.0]]],
            ],
            ("learner", False, True): [
                [[[0.5 / Z, -0.5 / Z]], [[0.5 / Z, 0.5 / Z]]],
                [[[0.0, -1 / Z]], [[0.0, 0.0]]],
            ],
            ("source", True, True): [
                [[[0.5 / Z, -0.5 / Z]], [[0.0, 0.0]]],
                [[[0.25 / Z, -0.25 / Z]], [[0.0, 0.0]]],
            ],
            ("source", True, False): [
                [[[0.25 / Z, -0.75 / Z]], [[0.5 / Z, 0.5 / Z]]],
                [[[0.125 / Z, -0.375 / Z]], [[0.25 / Z, 0.25 / Z]]],
            ],
        }
    ),
    "group_std": [[[0.5 / D, -0.5 / D]], [[0.0, 0.0]]],
    "group_none": [[[0.5, -0.5]], [[0.0, 0.0]]],
    "pooled_std": [[[0.25 / Z, -0.75 / Z]], [[0.25 / Z, 0.25 / Z]]],
    "pooled_none": [[[0.25, -0.75]], [[0.25, 0.25]]],
    "sgt_gate": [[False], [False]],
}


def _hacpo(alpha, update_index, reduction, loss, own, cross):
    settings = {"alpha": alpha, "clip_low": 0.8, "clip_step": 0.025, "update_index": update_index}
    gradient = [[own, own], [cross, 0.0], [0.0, 0.0]]
    return settings | {"reduction": reduction, "loss": loss, "grad": gradient}


# Ratios 1 (own, two tokens) and 0.9 (cross, one token); the last row is empty.
LOSS_CASE = {
    "log_probs": [[-1.0, -1.0], [math.log(0.9) - 1, 7.0], [3.0, -2.0]],
    "mask": [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]],
    "old_log_probs": [[-1.0, -1.0], [-1.0, -9.0], [4.0, 4.0]],
    "behavior_mean_log_prob": [-1.0, -1.0, 0.5],
    "source": [0, 1, 1],
    "learner": 0,
    "advantages": [1.0, -2.0, 5.0],
    "mean_log_prob": [-1.0, math.log(0.9) - 1, 0.0],
    "gspo": {"loss": 0.4997, "grad": [[-0.25, -0.25], [0.0, 0.0], [0.0, 0.0]]},
    "grpo_token": {"loss": -0.2 / 3, "grad": [[-1 / 3, -1 / 3], [0.6, 0.0], [0.0, 0.0]]},
    "grpo_sequence": {"loss": 0.4, "grad": [[-0.25, -0.25], [0.9, 0.0], [0.0, 0.0]]},
    "hacpo": [
        _hacpo(1.0, 0, "sources", 0.62, -0.5, 1.62),
        _hacpo(0.0, 0, "sources", 0.8, -0.5, 1.8),
        _hacpo(1.0, 0, "sequences", 0.31, -0.25, 0.81),
        _hacpo(1.0, 40, "sources", 1.0, -0.5, 0.0),
    ],
    "sgt": {
        "weight": [0.0, 1.0, 1.0],
        "loss": 1 - math.log(0.9),
        "grad": [[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]],
    },
}


def _cases(shared_dir, name, built_in):
    path = shared_dir / "golden" / name
    return [built_in, *(json.loads(path.read_text()) if path.is_file() else [])]


def _padded(values, shape, fill):
    values = np.asarray(values, float)
    widths = [(0, size - have) for size, have in zip(shape, values.shape, strict=True)]
    return jnp.asarray(np.pad(values, widths, constant_values=fill))


def _assert_close(actual, expected, tolerance, what):
    expected = np.asarray(expected, float)
    actual = np.asarray(actual, float)[tuple(slice(size) for size in expected.shape)]
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, err_msg=what)


@jax.jit
def _advantages(history, rewards, valid):
    ratio = objectives.capability_ratio(history)
    settings = {
        f"cross_baseline={c},discrepancy={d},capability_baseline={b}": objectives.hacpo_advantages(
            rewards, ratio, cross_baseline=c, discrepancy=d, capability_baseline=b, valid=valid
        )
        for c in ("learner", "source")
        for d in (True, False)
        for b in (True, False)
    }
    group, pooled = objectives.group_advantages, objectives.pooled_advantages
    return {
        "capability_ratio": ratio,
        "baseline": objectives.capability_baseline(rewards, ratio, valid=valid),
        "advantages": settings,
        "group_std": group(rewards, valid=valid),
        "group_none": group(rewards, scale="none", valid=valid),
        "pooled_std": pooled(rewards, valid=valid),
        "pooled_none": pooled(rewards, scale="none", valid=valid),
        "sgt_gate": objectives.success_gate(rewards > 0.5, valid=valid),
    }


@PRECISIONS
def test_advantages_match_golden_pairs(shared_dir, x64, tolerance, gradient_tolerance):
    del gradient_tolerance
    shape = (4, 4, 8)
    with jax.enable_x64(x64):
        for number, case in enumerate(_cases(shared_dir, "advantages.json", ADVANTAGE_CASE)):
            valid = np.ones_like(case["rewards"]) if case["valid"] is None else case["valid"]
            actual = _advantages(
                _padded(case["history"], (5, 4), np.nan),
                _padded(case["rewards"], shape, np.nan),
                _padded(valid, shape, 0),
            )
            assert actual["baseline"].dtype == (jnp.float64 if x64 else jnp.float32)
            for name, expected in case["advantages"].items():
                _assert_close(actual["advantages"][name], expected, tolerance, f"{number} {name}")
            for name in actual.keys() - {"advantages"}:
                _assert_close(actual[name], case[name], tolerance, f"case {number} {name}")


def _with_gradient(loss, log_probs):
    (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(log_probs)
    return {"loss": value, "grad": gradient}


@functools.partial(jax.jit, static_argnames="reductions")
def _losses(x, mask, old, behavior, advantages, source, weight, settings, reductions):
    def grpo(reduction):
        return lambda y: objectives.grpo_loss(y, mask, old, advantages, reduction=reduction)

    def hacpo(setting, reduction):
        return lambda y: objectives.hacpo_loss(
            y, mask, behavior, advantages, source, num_agents=4, reduction=reduction, **setting
        )

    return {
        "gspo": _with_gradient(lambda y: objectives.gspo_loss(y, mask, behavior, advantages), x),
        "grpo_token": _with_gradient(grpo("tokens"), x),
        "grpo_sequence": _with_gradient(grpo("sequences"), x),
        "hacpo": [
            _with_gradient(hacpo(s, r), x) for s, r in zip(settings, reductions, strict=True)
        ],
        "sgt": _with_gradient(lambda y: objectives.transfer_loss(y, mask, weight), x),
    }


def _run_losses(case):
    rows = {"old_log_probs": (16, 33), "behavior_mean_log_prob": (16,), "advantages": (16,)}
    numbers = ("alpha", "clip_low", "clip_step", "update_index")
    log_probs = _padded(case["log_probs"], (16, 33), np.nan)
    mask = _padded(case["mask"], (16, 33), 0)
    actual = _losses(
        log_probs,
        mask,
        *(_padded(case[name], shape, np.nan) for name, shape in rows.items()),
        _padded(case["source"], (16,), 0).astype(int),
        _padded(case["sgt"]["weight"], (16,), np.nan),
        [{n: s[n] for n in numbers} | {"learner": case["learner"]} for s in case["hacpo"]],
        reductions=tuple(setting["reduction"] for setting in case["hacpo"]),
    )
    return actual, objectives.mean_log_prob(log_probs, mask)


@PRECISIONS
def test_losses_and_gradients_match_golden_pairs(shared_dir, x64, tolerance, gradient_tolerance):
    with jax.enable_x64(x64):
        for number, case in enumerate(_cases(shared_dir, "losses.json", LOSS_CASE)):
            actual, means = _run_losses(case)
            assert means.dtype == (jnp.float64 if x64 else jnp.float32)
            _assert_close(means, case["mean_log_prob"], tolerance, f"case {number} mean")
            for key, bound in (("loss", tolerance), ("grad", gradient_tolerance)):
                for name in ("gspo", "grpo_token", "grpo_sequence", "sgt"):
                    _assert_close(actual[name][key], case[name][key], bound, f"{number} {name}")
                for got, want in zip(actual["hacpo"], case["hacpo"], strict=True):
                    _assert_close(got[key], want[key], bound, f"{number} hacpo {want}")
