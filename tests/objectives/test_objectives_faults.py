"""Faults that users met: padding, empty rows, extreme ratios, micro-batches, transformations."""

import ast
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from hacpo_jax import objectives

AGENTS = 3
FLOATS = ("log_probs", "old", "reference", "behavior", "advantages", "weight")


def _batch(seed=0, rows=16, width=8):
    """Random rows of 1 to `width` tokens; two are empty. Both lengths 2 and 8 occur."""
    rng = np.random.default_rng(seed)
    lengths = np.array([2, 8, 0, 0, *rng.integers(1, width + 1, rows - 4)])
    log_probs = -rng.exponential(0.5, (rows, width)).astype(np.float32)
    noise = rng.normal(0, 0.1, (2, rows, width)).astype(np.float32)
    mask = np.arange(width) < lengths[:, None]
    means = (log_probs * mask).sum(1) / np.maximum(lengths, 1)
    return {
        "log_probs": log_probs,
        "mask": mask,
        "old": log_probs + noise[0],
        "reference": log_probs + noise[1],
        "behavior": (means + rng.choice([2e-4, 0.1, -0.1], rows)).astype(np.float32),
        "advantages": rng.normal(size=rows).astype(np.float32),
        "source": (np.arange(rows) % AGENTS).astype(np.int32),
        "weight": rng.integers(0, 3, rows).astype(np.float32),
    }


def _hacpo(b, normalizer, reduction):
    return objectives.hacpo_loss(
        b["log_probs"], b["mask"], b["behavior"], b["advantages"], b["source"], learner=1,
        num_agents=AGENTS, update_index=1, reduction=reduction, normalizer=normalizer,
    )  # fmt: skip


def _grpo(b, normalizer, reduction):
    return objectives.grpo_loss(
        b["log_probs"], b["mask"], b["old"], b["advantages"],
        reduction=reduction, normalizer=normalizer,
    )  # fmt: skip


def _tokens(b):
    return objectives.count_tokens(b["mask"])


def _sequences(b):
    return objectives.count_sequences(b["mask"])


def _per_source(b):
    return objectives.count_sequences_per_source(b["mask"], b["source"], num_agents=AGENTS)


def _weights(b):
    return objectives.sum_weights(b["mask"], b["weight"])


# name: (loss of a batch with a normalizer, that normalizer counted on a batch)
LOSSES = {
    "gspo": (
        lambda b, n: objectives.gspo_loss(
            b["log_probs"], b["mask"], b["behavior"], b["advantages"], normalizer=n
        ),
        _sequences,
    ),
    "grpo_tokens": (functools.partial(_grpo, reduction="tokens"), _tokens),
    "grpo_sequences": (functools.partial(_grpo, reduction="sequences"), _sequences),
    "hacpo_sources": (functools.partial(_hacpo, reduction="sources"), _per_source),
    "hacpo_sequences": (functools.partial(_hacpo, reduction="sequences"), _per_source),
    "transfer": (
        lambda b, n: objectives.transfer_loss(b["log_probs"], b["mask"], b["weight"], normalizer=n),
        _weights,
    ),
    "kl": (
        lambda b, n: objectives.kl_penalty(b["log_probs"], b["reference"], b["mask"], normalizer=n),
        _sequences,
    ),
}


@jax.jit
def _evaluate(batch, normalizers=None):
    """{name: ((loss, metrics), gradient with respect to the log-probs)} of all losses."""

    def evaluate(name, normalizer):
        def loss(log_probs):
            return LOSSES[name][0](batch | {"log_probs": log_probs}, normalizer)

        return jax.value_and_grad(loss, has_aux=True)(batch["log_probs"])

    return {name: evaluate(name, normalizers and normalizers[name]) for name in LOSSES}


@jax.jit
def _normalizers(batch):
    return {name: count(batch) for name, (_, count) in LOSSES.items()}


def _assert_trees_close(actual, expected, tolerance=1e-6):
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance),
        actual,
        expected,
    )


def test_objectives_import_jax_and_chex_only():
    """Another code base can import them without models, tokenizers or configuration."""
    imported = set()
    for path in Path(objectives.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    inside = {name for name in imported if name.startswith("hacpo_jax.objectives")}
    assert imported - inside == {"jax", "jax.numpy", "chex"}


def test_counts_by_hand():
    mask = jnp.array([[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
    assert objectives.count_tokens(mask) == 6
    assert objectives.count_sequences(mask) == 3
    per_source = objectives.count_sequences_per_source(mask, jnp.array([0, 0, 2, 2]), num_agents=4)
    assert per_source.tolist() == [1, 0, 2, 0]
    assert objectives.sum_weights(mask > 0, jnp.array([0.5, 7.0, 1.0, 0.0])) == 1.5


@pytest.mark.parametrize("rows", [1, 4])
def test_micro_batches_with_a_common_normalizer_sum_to_the_whole(rows):
    """Objectives: lengths 2 and 8; micro-batches of 1 and of 4 rows, against 16 at once."""
    batch = _batch()
    counts, whole = _normalizers(batch), _evaluate(batch)
    parts = [
        jax.tree.map(lambda x, i=i: x[i : i + rows], batch)
        for i in range(0, len(batch["mask"]), rows)
    ]
    results = [_evaluate(part, counts) for part in parts]
    for name, ((loss, _), gradient) in whole.items():
        _assert_trees_close(sum(result[name][0][0] for result in results), loss)
        _assert_trees_close(np.concatenate([result[name][1] for result in results]), gradient)
        assert np.any(gradient)
    summed = jax.tree.map(lambda *x: sum(x), *[_normalizers(part) for part in parts])
    _assert_trees_close(summed, counts)


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(FLOATS), st.floats(width=32)))
def test_what_lies_under_padding_changes_nothing(junk):
    """Objectives: change log-probs under padding, here to NaN and infinities as well."""
    batch = _batch()
    changed = dict(batch)
    for field, value in junk.items():
        inside = batch["mask"] if batch[field].ndim == 2 else batch["mask"].any(axis=1)
        changed[field] = np.where(inside, batch[field], np.float32(value))
    actual = _evaluate(changed)
    jax.tree.map(np.testing.assert_array_equal, actual, _evaluate(batch))
    assert not any(np.any(gradient[~batch["mask"]]) for _, gradient in actual.values())


@pytest.mark.parametrize("junk", [0.0, np.nan])
def test_a_batch_without_tokens_is_zero(junk):
    """Objectives: every answer cut off and masked; masks: a row with no valid token."""
    batch = _batch()
    empty = batch | {"mask": np.zeros_like(batch["mask"])}
    empty |= {field: np.full_like(batch[field], junk) for field in FLOATS}
    for normalizers in (None, _normalizers(empty), _normalizers(batch)):
        for (loss, metrics), gradient in _evaluate(empty, normalizers).values():
            assert loss == 0
            assert not np.any(gradient)
            assert all(value == 0 for value in metrics.values())


@pytest.mark.parametrize("log_ratio", [100.0, 1000.0, -100.0, -1000.0])
def test_extreme_log_ratios_are_finite(log_ratio):
    """Objectives: log-ratio of 100 or 1000; reference - new = 100 in k3."""
    batch = _batch()
    results = _evaluate(batch | {"log_probs": batch["log_probs"] + np.float32(log_ratio)})
    for name, ((loss, metrics), gradient) in results.items():
        assert np.isfinite(loss) and np.isfinite(gradient).all()
        # Beyond the cap or of a ratio of 0; but a likelihood has no ratio, and k3 is linear in the
        # log-ratio of a policy far above its reference.
        assert np.any(gradient) == (name == "transfer" or (name == "kl" and log_ratio > 0))
        capped = [value for key, value in metrics.items() if key.startswith("capped_fraction")]
        assert all(value == (log_ratio > 0) for value in capped)
    # A mean over random log-ratios within 0.5 of the given one.
    expected = np.exp(10) - 11 if log_ratio < 0 else log_ratio - 1
    np.testing.assert_allclose(results["kl"][0][0], expected, atol=0.5, rtol=1e-5)


def test_extreme_ratios_without_the_cross_clip_do_not_leak_into_own_samples():
    """The value not chosen for a row must be finite, or its zero gradient becomes NaN."""

    @jax.jit
    @jax.grad
    def gradient(log_probs):
        loss, _ = objectives.hacpo_loss(
            log_probs, jnp.ones((2, 1)), jnp.zeros(2), jnp.array([-1.0, 1.0]), jnp.array([0, 1]),
            learner=0, num_agents=2, update_index=0, alpha=10.0, clip_cross=False,
        )  # fmt: skip
        return loss

    # The own log-ratio is below the cap: -A · s. The cross one is log 1 = 0.
    actual = gradient(jnp.array([[9.5], [0.0]]))
    np.testing.assert_allclose(actual, [[np.exp(9.5)], [-1.0]], rtol=1e-5)


def test_half_precision_is_computed_in_single():
    batch = _batch()
    half = batch | {field: jnp.asarray(batch[field], jnp.bfloat16) for field in FLOATS}
    single = batch | {field: np.asarray(half[field], np.float32) for field in FLOATS}
    actual = _evaluate(half)
    for name, (expected, _) in _evaluate(single).items():
        (loss, metrics), gradient = actual[name]
        assert gradient.dtype == jnp.bfloat16
        assert all(value.dtype == jnp.float32 for value in (loss, *metrics.values()))
        _assert_trees_close((loss, metrics), expected)


def test_every_numeric_setting_may_be_traced():
    batch = _batch()
    x, mask = batch["log_probs"], batch["mask"]
    behavior, advantages = batch["behavior"], batch["advantages"]
    clip = {"eps_low": 0.01, "eps_high": 0.02}
    hacpo = clip | {"learner": 2, "update_index": 3, "alpha": 2.0, "clip_low": 0.7}
    hacpo |= {"clip_step": 0.03, "normalizer": jnp.array([3, 4, 5])}
    rewards = jax.nn.sigmoid(x.reshape(AGENTS + 1, 4, 8))[:AGENTS]
    history = rewards[..., 0].T
    calls = [
        (lambda **k: objectives.gspo_loss(x, mask, behavior, advantages, **k), clip),
        (lambda **k: objectives.grpo_loss(x, mask, batch["old"], advantages, **k), clip),
        (
            lambda **k: objectives.hacpo_loss(
                x, mask, behavior, advantages, batch["source"], num_agents=AGENTS, **k
            ),
            hacpo,
        ),
        (
            lambda ratio, **k: objectives.hacpo_advantages(rewards, ratio, **k),
            {"ratio": jnp.ones((3, 3)), "max_reward": 0.4, "eps": 0.1},
        ),
        (lambda **k: objectives.group_advantages(rewards, **k), {"eps": 0.1}),
        (
            lambda **k: objectives.capability_ratio(history, **k),
            {"floor": 0.3, "bounds": (0.5, 1.1)},
        ),
    ]
    for function, numbers in calls:
        fixed = jax.jit(functools.partial(function, **numbers))()
        _assert_trees_close(jax.jit(function)(**numbers), fixed)


def test_learners_may_be_vmapped():
    batches = [_batch(seed) for seed in range(AGENTS)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *batches)

    def loss(log_probs, batch, learner, update_index):
        return objectives.hacpo_loss(
            log_probs, batch["mask"], batch["behavior"], batch["advantages"], batch["source"],
            learner=learner, num_agents=AGENTS, update_index=update_index,
        )  # fmt: skip

    with_gradient = jax.value_and_grad(loss, has_aux=True)
    learners, updates = jnp.arange(AGENTS), jnp.array([0, 4, 2])
    actual = jax.jit(jax.vmap(with_gradient))(stacked["log_probs"], stacked, learners, updates)
    single = jax.jit(with_gradient)
    for k, batch in enumerate(batches):
        expected = single(batch["log_probs"], batch, k, updates[k])
        _assert_trees_close(jax.tree.map(lambda x, k=k: x[k], actual), expected)


def test_shards_with_a_summed_normalizer_give_the_loss_of_the_whole():
    """Over 8 devices, all losses at once; and the gradient through the collective."""
    mesh = jax.make_mesh((8,), ("data",))
    rows = PartitionSpec("data")
    batch = _batch()
    shards = jax.device_put(batch, NamedSharding(mesh, rows))

    def local(log_probs, batch):
        batch = batch | {"log_probs": log_probs}
        counts = jax.lax.psum(_normalizers(batch), "data")
        losses = {name: loss(batch, counts[name])[0] for name, (loss, _) in LOSSES.items()}
        return jax.lax.psum(losses, "data")

    def sharded(log_probs, batch):
        mapped = jax.shard_map(local, mesh=mesh, in_specs=rows, out_specs=PartitionSpec())
        losses = mapped(log_probs, batch)
        return sum(losses.values()), losses

    function = jax.jit(jax.value_and_grad(sharded, has_aux=True))
    (_, losses), gradient = function(shards["log_probs"], shards)
    expected = _evaluate(batch)
    _assert_trees_close(losses, {name: loss for name, ((loss, _), _) in expected.items()})
    _assert_trees_close(gradient, sum(gradient for _, gradient in expected.values()), 1e-5)
