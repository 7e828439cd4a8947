"""How able each agent is, and the baseline that follows from it (HACPO, eq. 6, 7)."""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives._checks import as_float, check_shape
from hacpo_jax.objectives._masked import masked_mean, masked_sum, safe_divide


def validity(rewards: jax.Array, valid: jax.Array | None) -> jax.Array:
    """bool, shaped as `rewards`: `valid`, or everything when it is None."""
    if valid is None:
        return jnp.ones(rewards.shape, bool)
    check_shape("valid", valid, rewards.shape)
    return jnp.asarray(valid) != 0


def capability(
    rewards: jax.Array, *, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Capability P_t of each agent in one step: the mean reward of its valid samples.

    For the share of positive rewards instead, pass `rewards > 0`.

    Args:
      rewards: [A, P, G], or bool.
      valid: [A, P, G], nonzero where the sample counts; None: everywhere.

    Returns:
      The capabilities [A], and bool [A]: whether the agent had a valid sample. Without one its
      capability is unknown (the value given is 0), and `push_history` records it as such.
    """
    check_shape("rewards", rewards, (None, None, None))
    rewards, mask = as_float(rewards), validity(rewards, valid)
    return masked_mean(rewards, mask, axis=(1, 2)), jnp.any(mask, axis=(1, 2))


def push_history(history: jax.Array, values: jax.Array, known: jax.Array) -> jax.Array:
    """Moves the capability window on by one step.

    The window has a fixed shape, so that it can live in a training state: its entries are NaN
    where no step was recorded yet or the agent's capability was unknown, which makes
    `jnp.full((K, A), jnp.nan)` the window before the first step.

    Args:
      history: [K, A], oldest step first.
      values: [A], capabilities of the new step, as returned by `capability`.
      known: bool [A], the second result of `capability`.

    Returns:
      [K, A], the oldest row dropped and the new one appended.
    """
    check_shape("history", history, (None, None))
    check_shape("values", values, history.shape[1:])
    check_shape("known", known, history.shape[1:])
    newest = jnp.where(known, values, jnp.nan).astype(history.dtype)
    return jnp.concatenate([history[1:], newest[None]])


def capability_ratio(
    history: jax.Array,
    *,
    floor: chex.Numeric = 1e-8,
    bounds: tuple[chex.Numeric, chex.Numeric] = (0.1, 10.0),
) -> jax.Array:
    """Capability ratio ω^(k,j) = P̂^(k) / P̂^(j) of every pair of agents (HACPO, section 4).

    Args:
      history: [K, A], capabilities of the last K steps; NaN entries (see `push_history`) are left
        out of the mean P̂ over the window.
      floor: least P̂, which keeps the ratio finite for an agent that solved nothing.
      bounds: least and largest ratio.

    Returns:
      [A, A], `[k, j]` = ω^(k,j). An agent without any entry is taken as everyone's equal.
    """
    check_shape("history", history, (None, None))
    history = as_float(history)
    recorded = ~jnp.isnan(history)
    mean = jnp.maximum(masked_mean(history, recorded, axis=0), floor)
    known = jnp.any(recorded, axis=0)
    ratio = jnp.clip(mean[:, None] / mean[None, :], bounds[0], bounds[1])
    return jnp.where(known[:, None] & known[None, :], ratio, 1)


def capability_baseline(
    rewards: jax.Array,
    ratio: jax.Array,
    *,
    max_reward: chex.Numeric = 1.0,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Capability-aware baseline μ̂^(k) of each learner and prompt (HACPO, eq. 6).

    The mean over all agents' valid responses to the prompt of ω^(k,j)·R. Where that exceeds
    `max_reward` every advantage would be negative, and the learner's own group mean is used, or
    the plain joint mean if the learner has no valid sample on the prompt.

    Args:
      rewards: [A, P, G].
      ratio: [A, A], from `capability_ratio`; all ones during a warm-up.
      max_reward: the largest reward a task can give.
      valid: [A, P, G], nonzero where the sample counts; None: everywhere.

    Returns:
      [A, P]; 0 for a prompt without a valid response.
    """
    check_shape("rewards", rewards, (None, None, None))
    check_shape("ratio", ratio, (rewards.shape[0], rewards.shape[0]))
    rewards, mask = as_float(rewards), validity(rewards, valid)
    sums = masked_sum(rewards, mask, axis=-1)  # [A source, P]
    own_count = jnp.sum(mask, axis=-1)  # [A, P]
    count = jnp.sum(own_count, axis=0)  # [P]
    # A sum of products, not a matmul: accelerators may multiply matrices in bfloat16.
    baseline = safe_divide(jnp.sum(as_float(ratio)[:, :, None] * sums, axis=1), count)
    own = safe_divide(sums, own_count)
    joint = safe_divide(jnp.sum(sums, axis=0), count)
    fallback = jnp.where(own_count > 0, own, joint)
    return jnp.where(baseline > max_reward, fallback, baseline)
