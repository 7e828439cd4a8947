"""Advantages from rewards: per group, pooled over agents, and capability-aware.

In all of them invalid samples leave every count, mean and deviation and get advantage 0, and a
group whose valid rewards are all equal gets advantage 0 throughout.
"""

import chex
import jax
import jax.numpy as jnp

from hacpo_jax.objectives import capabilities
from hacpo_jax.objectives._checks import as_float, check_choice, check_shape
from hacpo_jax.objectives._masked import all_equal, masked_mean, masked_std


def group_advantages(
    rewards: jax.Array,
    *,
    scale: str = "std",
    eps: chex.Numeric = 1e-6,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Group-relative advantages (R - mean) / (std + eps) of GRPO (arXiv 2402.03300).

    Args:
      rewards: [..., G], the last axis being a group of responses to one prompt.
      scale: "std" divides by the sample standard deviation (ddof = 1) plus `eps`; "none" does
        not divide (Dr. GRPO, arXiv 2503.20783).
      eps: added to the deviation.
      valid: [..., G], nonzero where the sample counts; None: everywhere.

    Returns:
      [..., G].

    Raises:
      ValueError: `scale` or a shape is none of the above.
    """
    check_choice("scale", scale, ("std", "none"))
    mask = capabilities.validity(rewards, valid)
    rewards = as_float(rewards)
    centered = rewards - masked_mean(rewards, mask, axis=-1)[..., None]
    if scale == "std":
        centered = centered / (masked_std(rewards, mask, axis=-1)[..., None] + eps)
    informative = mask & ~all_equal(rewards, mask, axis=-1)[..., None]
    return jnp.where(informative, centered, 0)


def pooled_advantages(
    rewards: jax.Array,
    *,
    scale: str = "std",
    eps: chex.Numeric = 1e-6,
    valid: jax.Array | None = None,
) -> jax.Array:
    """`group_advantages` over the responses of all agents to a prompt as one group.

    The advantages of naive sharing, and of XGRPO and PRP (Mutual RL, arXiv 2605.07244).

    Args:
      rewards: [A, P, G].
      scale: "std" or "none", as in `group_advantages`.
      eps: added to the deviation.
      valid: [A, P, G], nonzero where the sample counts; None: everywhere.

    Returns:
      [A, P, G].

    Raises:
      ValueError: `scale` or a shape is none of the above.
    """
    check_shape("rewards", rewards, (None, None, None))
    mask = capabilities.validity(rewards, valid)
    pooled = group_advantages(_joint(rewards), scale=scale, eps=eps, valid=_joint(mask))
    agents, prompts, group = rewards.shape
    return pooled.reshape(prompts, agents, group).swapaxes(0, 1)


def hacpo_advantages(
    rewards: jax.Array,
    ratio: jax.Array,
    *,
    cross_baseline: str = "learner",
    discrepancy: bool = True,
    capability_baseline: bool = True,
    max_reward: chex.Numeric = 1.0,
    eps: chex.Numeric = 1e-6,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Advantage of every agent's samples for every learner (HACPO, eq. 6, 7, 10).

    (R - μ̂) / (std_joint + eps), with std_joint the sample standard deviation (ddof = 1) of the raw
    rewards of all agents' responses to the prompt. A cross sample's advantage is multiplied by
    ω^(j,k) = P̂^(j) / P̂^(k): it counts for more when its source j is the stronger.

    Args:
      rewards: [A, P, G].
      ratio: [A, A], from `capability_ratio`; all ones during a warm-up.
      cross_baseline: whose μ̂ a cross sample is compared with: the "learner" (eq. 50 and the
        authors' code) or the "source" (eq. 10 read literally).
      discrepancy: whether cross samples are multiplied by ω^(j,k). Static.
      capability_baseline: whether μ̂ weighs sources by capability (`capability_baseline`);
        otherwise it is the plain joint mean. Static.
      max_reward: the largest reward a task can give, for `capability_baseline`.
      eps: added to the deviation.
      valid: [A, P, G], nonzero where the sample counts; None: everywhere.

    Returns:
      [A learner, A source, P, G].

    Raises:
      ValueError: `cross_baseline` or a shape is none of the above.
    """
    check_choice("cross_baseline", cross_baseline, ("learner", "source"))
    check_shape("rewards", rewards, (None, None, None))
    check_shape("ratio", ratio, (rewards.shape[0], rewards.shape[0]))
    mask = capabilities.validity(rewards, valid)
    rewards, ratio = as_float(rewards), as_float(ratio)
    joint, joint_mask = _joint(rewards), _joint(mask)  # [P, A * G]
    if capability_baseline:
        baseline = capabilities.capability_baseline(
            rewards, ratio, max_reward=max_reward, valid=mask
        )
    else:
        baseline = jnp.broadcast_to(masked_mean(joint, joint_mask, axis=-1), rewards.shape[:2])
    # [A learner, A source, P, G]; on the diagonal learner and source are the same agent.
    compared = baseline[:, None] if cross_baseline == "learner" else baseline[None, :]
    deviation = masked_std(joint, joint_mask, axis=-1)[:, None]  # [P, 1]
    advantages = (rewards - compared[..., None]) / (deviation + eps)
    if discrepancy:
        advantages = advantages * ratio.T[:, :, None, None]
    informative = mask & ~all_equal(joint, joint_mask, axis=-1)[:, None]  # [A, P, G]
    advantages = jnp.where(informative, advantages, 0)
    return jnp.broadcast_to(advantages, (rewards.shape[0], *rewards.shape))


def _joint(values: jax.Array) -> jax.Array:
    """All agents' samples of a prompt as one group: [A, P, G] to [P, A * G]."""
    agents, prompts, group = values.shape
    return values.swapaxes(0, 1).reshape(prompts, agents * group)
