"""Loss values and gradients against plain loops and hand arithmetic, and their metrics."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import objective_loops as loops
import pytest

from hacpo_jax import objectives

HACPO = {"learner": 0, "num_agents": 3}


# name: (objective, the same as loops, what of the batch they take)
LOSSES = {
    "gspo": (objectives.gspo_loss, loops.gspo, ("mask", "behavior", "advantages")),
    "grpo": (objectives.grpo_loss, loops.grpo, ("mask", "old", "advantages")),
    "hacpo": (
        functools.partial(objectives.hacpo_loss, **HACPO),
        functools.partial(loops.hacpo, **HACPO),
        ("mask", "behavior", "advantages", "source"),
    ),
    "transfer": (objectives.transfer_loss, loops.transfer, ("mask", "weight")),
    "kl": (objectives.kl_penalty, loops.kl, ("reference", "mask")),
}

# What no golden pair holds, beside the plain settings: active token clips, caps, peers' traces
# as denominators (PRP), undivided advantages (Dr. GRPO), normalizers, fractional weights.
CASES = [
    ("gspo", {}, {}),
    ("gspo", {"eps_low": 0.2, "eps_high": 0.25}, {}),
    ("gspo", {"normalizer": 20}, {"behavior": "behavior_far"}),
    *(
        ("grpo", {"reduction": reduction} | settings, fields)
        for reduction, count in (("tokens", 50), ("sequences", 20))
        for settings, fields in (
            ({}, {}),
            ({"eps_low": 0.05, "eps_high": 0.1, "normalizer": count}, {}),
            ({}, {"advantages": "advantages_undivided"}),
            ({"normalizer": count}, {"old": "trace", "advantages": "advantages_undivided"}),
            ({}, {"old": "trace"}),
        )
    ),
    ("hacpo", {"update_index": 0}, {}),
    ("hacpo", {"update_index": 2, "alpha": 3.0, "learner": 2}, {}),
    ("hacpo", {"update_index": 5, "reduction": "sequences"}, {}),
    ("hacpo", {"update_index": 1, "alpha": 2.0, "clip_low": 0.0, "clip_step": 0.0}, {}),
    ("hacpo", {"update_index": 0, "learner": 1, "eps_low": 0.2, "eps_high": 0.1}, {}),
    *(
        ("hacpo", {"update_index": 3, "reduction": reduction, "normalizer": (7, 5, 9)}, {})
        for reduction in ("sources", "sequences")
    ),
    *(
        ("hacpo", {"update_index": 1, "alpha": alpha, "clip_cross": False}, fields)
        for alpha, fields in ((0.0, {"behavior": "behavior_far"}), (1.0, {}), (2.5, {}))
    ),
    ("transfer", {}, {}),
    ("transfer", {"normalizer": 7.5}, {}),
    ("transfer", {}, {"weight": "weight_small"}),
    ("kl", {}, {}),
    ("kl", {"normalizer": 20}, {"reference": "trace"}),
]


@pytest.fixture(scope="module")
def batch():
    """8 rows of at most 5 tokens (row 3 has none), with ratios on all sides of all bounds.

    The learner's own rows have log-ratios near those of one update; `trace` is another policy.
    """
    rng = np.random.default_rng(3)
    log_probs = -rng.exponential(0.7, (8, 5))
    mask = (rng.random((8, 5)) < 0.7).astype(float)
    mask[:, 2], mask[3] = 1, 0
    means = np.array([np.mean(row) if row else 0.0 for row in loops.rows_of(log_probs, mask)])
    log_ratios = np.array([1e-4, -1e-3, 1e-3, 0, -0.1, -0.3, 0.2, -0.15])
    old = log_probs - rng.normal(0, 0.3, (8, 5))
    trace = old.copy()
    trace[3:] = log_probs[3:] - rng.normal(0, 1.5, (5, 5))
    trace[4, 2], trace[6, 2] = log_probs[4, 2] - 12, log_probs[6, 2] + 12
    rewards = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    return {
        "log_probs": log_probs,
        "mask": mask,
        "old": old,
        "reference": old,
        "trace": trace,
        "behavior": means - log_ratios,
        "behavior_far": means - log_ratios - 11 * (np.arange(8) == 4),
        "advantages": np.array([1.0, -1.0, 0.7, 3.0, -0.5, 1.2, 0.4, 2.0]),
        "advantages_undivided": rewards - rewards.mean(),
        "source": np.array([0, 0, 0, 1, 1, 1, 2, 2]),
        "weight": np.array([0.0, 1, 1, 1, 0, 1, 0, 0.5]),
        "weight_small": np.array([0.0, 0.25, 0, 0.5, 0.125, 0, 0.0625, 0]),
    }


@pytest.mark.parametrize(("name", "settings", "changes"), CASES)
def test_losses_and_gradients_match_loops_and_differences(batch, name, settings, changes):
    objective, loop, fields = LOSSES[name]
    fixed = [batch[changes.get(field, field)] for field in fields]
    held = {"frozen": batch["log_probs"]} if name == "hacpo" else {}
    traced = {"normalizer": np.array(settings["normalizer"])} if "normalizer" in settings else {}

    def loss(x):
        return objective(x, *fixed, **settings | traced)[0]

    def by_loops(x):
        return loop(x, *fixed, **settings, **held)

    with jax.enable_x64(True):
        value, gradient = jax.jit(jax.value_and_grad(loss))(batch["log_probs"])
    np.testing.assert_allclose(value, by_loops(batch["log_probs"]), rtol=1e-9, atol=1e-9)
    expected = loops.numeric_gradient(by_loops, batch["log_probs"])
    assert np.any(expected)
    # A difference over 2e-6 of values of size v is known to about 1e-10 v.
    rounding = 1e-9 * (1 + abs(float(value)))
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=rounding)


def test_kl_by_hand():
    """q = log 2 and -log 2: (2 - log 2 - 1 + 0.5 + log 2 - 1) / 2 = 1/4."""
    log_probs = np.array([[-1.0, -1.0]], np.float32)
    reference = log_probs + np.array([math.log(2), -math.log(2)], np.float32)
    penalty = jax.jit(jax.value_and_grad(objectives.kl_penalty, has_aux=True))
    (loss, metrics), gradient = penalty(log_probs, reference, np.ones((1, 2)))
    np.testing.assert_allclose([loss, metrics["kl"]], [0.25, 0.25], rtol=1e-6)
    # d/dx (exp(q) - q - 1) = 1 - exp(q), over 2 tokens.
    np.testing.assert_allclose(gradient, [[-0.5, 0.25]], rtol=1e-5)


def test_kl_near_the_reference_keeps_its_digits_in_float32():
    """q = 1e-3 gives 5.0017e-7; exp(q) - 1 - q in float32 would be off by a fifth."""
    one = np.ones((1, 1), np.float32)
    loss, _ = jax.jit(objectives.kl_penalty)(0 * one, np.float32(1e-3) * one, one)
    np.testing.assert_allclose(loss, 5.00167e-7, rtol=1e-3)


def test_first_update_on_policy_is_the_policy_gradient():
    """Lengths 2 and 8, ratio 1: -A / (2 · length) per token (sequences), -A / 10 (tokens)."""
    mask = np.arange(8) < np.array([[2], [8]])
    log_probs = np.full((2, 8), -0.5)
    advantages = np.array([1.0, -2.0])
    behavior = np.full(2, -0.5)
    per_sequence = np.where(mask, [[-1 / 4], [2 / 16]], 0)
    per_token = np.where(mask, [[-1 / 10], [2 / 10]], 0)

    def gradient(loss):
        return jax.jit(jax.grad(lambda x: loss(x)[0]))(log_probs)

    gspo = gradient(lambda x: objectives.gspo_loss(x, mask, behavior, advantages))
    np.testing.assert_allclose(gspo, per_sequence, rtol=1e-6)
    # The current log-probs stand for the old ones: the denominator is a constant all the same.
    grpo = gradient(lambda x: objectives.grpo_loss(x, mask, x, advantages, reduction="sequences"))
    np.testing.assert_allclose(grpo, per_sequence, rtol=1e-6)
    grpo = gradient(lambda x: objectives.grpo_loss(x, mask, x, advantages))
    np.testing.assert_allclose(grpo, per_token, rtol=1e-6)


@functools.partial(jax.jit, static_argnames="clip_cross")
def _one_cross(log_probs, advantages, clip_cross, settings):
    def loss(x):
        return objectives.hacpo_loss(
            x, jnp.ones((1, 1)), jnp.zeros(1), advantages, jnp.ones(1, int),
            num_agents=2, clip_cross=clip_cross, **settings,
        )  # fmt: skip

    return jax.value_and_grad(loss, has_aux=True)(log_probs)


def _cross(ratio, advantage=1.0, clip_cross=True, **changes):
    """Loss, gradient and metrics of one cross sample of one token with the given ratio."""
    settings = {"learner": 0, "update_index": 0, "alpha": 1.0, "clip_low": 0.8, "clip_step": 0.025}
    (value, metrics), gradient = _one_cross(
        np.array([[math.log(ratio)]]), np.array([advantage]), clip_cross, settings | changes
    )
    return float(value), gradient.item(), metrics


@pytest.mark.parametrize(
    ("ratio", "changes", "value"),
    [
        (0.9, {}, 0.81),  # c · sg[c]^1
        (0.9, {"alpha": 0.0}, 0.9),
        (0.9, {"alpha": 3.0}, 0.9**4),
        (0.9, {"alpha": 1.0, "advantage": -2.0}, -1.62),
        (0.3, {"clip_low": 0.0}, 0.09),
        (0.3, {"clip_cross": False, "alpha": 0.0}, 0.3),
        (2.0, {"clip_cross": False, "alpha": 1.0}, 4.0),
        (0.86, {"update_index": 2}, 0.86**2),  # low = 0.85
        (0.81, {"update_index": 40, "clip_step": 0.0}, 0.81**2),
    ],
)
def test_cross_sample_inside_the_interval(ratio, changes, value):
    loss, gradient, metrics = _cross(ratio, **changes)
    # c · sg[c]^alpha has the slope of its own value in log c.
    np.testing.assert_allclose([loss, gradient], [-value, -value], rtol=1e-5)
    assert metrics["clip_fraction/1"] == 0
    assert metrics["cross_gradient_fraction"] == 1
    np.testing.assert_allclose(metrics["ratio/1"], ratio, rtol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "changes", "bound"),
    [
        (0.79, {}, 0.8),
        (0.84, {"update_index": 2}, 0.85),
        (0.9, {"update_index": 40}, 1.0),  # the lower bound never passes 1
        (1.1, {}, 1.0),
        (1.1, {"clip_low": 0.0}, 1.0),
    ],
)
def test_cross_sample_outside_the_interval_is_dropped(ratio, changes, bound):
    """For either sign of the advantage: there is no min()."""
    for advantage in (1.0, -1.0):
        loss, gradient, metrics = _cross(ratio, advantage, **changes)
        np.testing.assert_allclose(loss, -advantage * bound**2, rtol=1e-6)
        assert gradient == 0
        assert metrics["clip_fraction/1"] == 1
        assert metrics["cross_gradient_fraction"] == 0


@pytest.mark.parametrize("update_index", [0, 40])
@pytest.mark.parametrize("offset", [1e-7, -1e-7, 5e-6, -5e-6])
def test_a_peer_with_the_learners_policy_keeps_its_gradient(offset, update_index):
    """The ratio is 1, the bound itself (both bounds on late updates), up to rounding."""
    loss, gradient, metrics = _cross(1 + offset, update_index=update_index)
    np.testing.assert_allclose([loss, gradient], [-1, -1], rtol=2e-5)
    assert metrics["cross_gradient_fraction"] == 1


@pytest.mark.parametrize("ratio", [1 + 3e-5, 0.8 - 3e-5])
def test_the_tolerance_of_the_bounds_is_narrow(ratio):
    assert _cross(ratio)[1] == 0


def test_own_bounds_keep_the_gradient_on_the_bound_itself():
    """A minimum of two equal terms would halve it."""
    loss = functools.partial(objectives.grpo_loss, eps_low=0.0, eps_high=0.0)
    zeros = np.zeros((1, 2), np.float32)
    gradient, _ = jax.jit(jax.grad(loss, has_aux=True))(zeros, zeros + 1, zeros, np.ones(1))
    assert gradient.tolist() == [[-0.5, -0.5]]


def test_gspo_and_grpo_metrics_by_hand():
    """Ratios 1, 2 and 0.5 against bounds 0.9 and 1.1; the last row is empty."""
    log_ratio = np.array([[0.0], [math.log(2)], [math.log(0.5)], [30.0], [0.0]])
    mask = np.array([[1], [1], [1], [1], [0]])
    advantages = np.array([1.0, -1.0, -1.0, -1.0, 1.0])
    bounds = {"eps_low": 0.1, "eps_high": 0.1}
    zeros = np.zeros((5, 1))
    for _, metrics in (
        jax.jit(objectives.gspo_loss)(log_ratio, mask, zeros[:, 0], advantages, **bounds),
        jax.jit(objectives.grpo_loss)(log_ratio, mask, zeros, advantages, **bounds),
    ):
        assert metrics.keys() == {"ratio", "clip_fraction", "capped_fraction"}
        np.testing.assert_allclose(metrics["ratio"], (3.5 + math.exp(10)) / 4, rtol=1e-5)
        # Only the third: above the upper bound a negative advantage is not clipped.
        assert metrics["clip_fraction"] == 0.25
        assert metrics["capped_fraction"] == 0.25


def test_hacpo_metrics_by_hand():
    ratios = np.array([1.0, math.exp(12), 0.9, 0.5, 0.9, 1.0])
    _, metrics = jax.jit(objectives.hacpo_loss, static_argnames="num_agents")(
        np.log(ratios)[:, None], np.array([[1], [1], [1], [1], [1], [0]]), np.zeros(6),
        np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1, 1, 2]),
        learner=0, num_agents=3, update_index=0,
    )  # fmt: skip
    expected = {
        "count/0": 2, "ratio/0": (1 + math.exp(10)) / 2, "clip_fraction/0": 0.5,
        "count/1": 3, "ratio/1": 2.3 / 3, "clip_fraction/1": 1 / 3, "capped_fraction/0": 0.5,
        "count/2": 0, "ratio/2": 0, "clip_fraction/2": 0, "capped_fraction/1": 0,
        "capped_fraction/2": 0, "cross_gradient_fraction": 1 / 3,  # row 4 has advantage 0
    }  # fmt: skip
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_hacpo_without_cross_samples_is_gspo(batch):
    own = np.zeros(8, int)
    fixed = batch["mask"], batch["behavior"], batch["advantages"]
    with jax.enable_x64(True):
        gspo, _ = jax.jit(objectives.gspo_loss)(batch["log_probs"], *fixed)
        hacpo, metrics = jax.jit(functools.partial(objectives.hacpo_loss, **HACPO))(
            batch["log_probs"], *fixed, own, update_index=3
        )
    np.testing.assert_allclose(hacpo, gspo, rtol=1e-12)
    assert metrics["cross_gradient_fraction"] == 0


def test_transferred_response_becomes_more_likely():
    """SGT's gradient on a gated prompt raises the peer response's log-prob; others stay.

    A response that is not chosen may even be impossible: 0 times infinity must not be NaN.
    """
    transfer = jax.jit(jax.value_and_grad(objectives.transfer_loss, has_aux=True))
    log_probs = np.array([[-1.0, -3.0], [-5.0, -np.inf]])
    (loss, metrics), gradient = transfer(log_probs, np.ones((2, 2)), np.array([1.0, 0.0]))
    assert float(loss) == float(metrics["nll"]) == 2.0
    assert gradient.tolist() == [[-0.5, -0.5], [0, 0]]


def test_unknown_choices_and_shapes_are_named():
    x, n = np.zeros((2, 3)), np.zeros(2)
    with pytest.raises(ValueError, match=r"reduction = 'mean': expected 'tokens' or 'sequences'"):
        objectives.grpo_loss(x, x, x, n, reduction="mean")
    with pytest.raises(ValueError, match=r"reduction = 'sum': expected 'sources' or 'sequences'"):
        objectives.hacpo_loss(x, x, n, n, n, **HACPO, update_index=0, reduction="sum")
    with pytest.raises(ValueError, match=r"estimator = 'k1': expected 'k3'"):
        objectives.kl_penalty(x, x, x, estimator="k1")
    with pytest.raises(ValueError, match=r"advantages has shape \(2, 1\): expected \(2\)"):
        objectives.gspo_loss(x, x, n, n[:, None])
    with pytest.raises(ValueError, match=r"old_log_probs has shape \(2,\): expected \(2, 3\)"):
        objectives.grpo_loss(x, x, n, n)
    with pytest.raises(ValueError, match=r"normalizer has shape \(\): expected \(3\)"):
        objectives.hacpo_loss(x, x, n, n, n, **HACPO, update_index=0, normalizer=np.ones(()))
    with pytest.raises(ValueError, match=r"weight has shape \(3,\): expected \(2\)"):
        objectives.transfer_loss(x, x, x[0])
    with pytest.raises(ValueError, match=r"mask has shape \(2,\): expected \(2, 3\)"):
        objectives.kl_penalty(x, x, n)
