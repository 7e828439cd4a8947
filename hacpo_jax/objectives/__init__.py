"""Pure objectives: capability, advantages, ratios and losses.

Imports jax and chex only, holds no state, and works under `jit`, `grad`, `vmap` and `shard_map`
with traced scalars for everything numeric. Values are computed in the dtype of the inputs, but in
float32 at least. Every loss returns `(loss, metrics)`, metrics a flat dict of scalars, and takes
a `normalizer` for mini-batches that are processed in parts.
"""

from hacpo_jax.objectives.advantages import (
    group_advantages,
    hacpo_advantages,
    pooled_advantages,
)
from hacpo_jax.objectives.capabilities import (
    capability,
    capability_baseline,
    capability_ratio,
    push_history,
)
from hacpo_jax.objectives.counts import (
    count_sequences,
    count_sequences_per_source,
    count_tokens,
    sum_weights,
)
from hacpo_jax.objectives.grpo import grpo_loss
from hacpo_jax.objectives.gspo import gspo_loss
from hacpo_jax.objectives.hacpo import hacpo_loss
from hacpo_jax.objectives.kl import kl_penalty
from hacpo_jax.objectives.ratios import mean_log_prob
from hacpo_jax.objectives.transfer import success_gate, transfer_loss

__all__ = [
    "capability",
    "capability_baseline",
    "capability_ratio",
    "count_sequences",
    "count_sequences_per_source",
    "count_tokens",
    "group_advantages",
    "grpo_loss",
    "gspo_loss",
    "hacpo_advantages",
    "hacpo_loss",
    "kl_penalty",
    "mean_log_prob",
    "pooled_advantages",
    "push_history",
    "success_gate",
    "sum_weights",
    "transfer_loss",
]
