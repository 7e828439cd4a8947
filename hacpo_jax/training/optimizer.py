"""AdamW as the config describes it."""

import jax
import optax

from hacpo_jax.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, total_updates: int) -> optax.GradientTransformation:
    """AdamW behind global-norm clipping; decay on matrices only."""
    decay_steps = max(total_updates - config.warmup_updates, 1)
    after = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, 0.0, decay_steps),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, decay_steps),
    }[config.schedule]
    # The first update of a warm-up already moves: its step size is 1 / (warmup_updates + 1).
    rise = optax.linear_schedule(
        config.learning_rate / (config.warmup_updates + 1),
        config.learning_rate,
        max(config.warmup_updates, 1),
    )
    schedule = optax.join_schedules([rise, after], [config.warmup_updates])
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            schedule,
            config.beta1,
            config.beta2,
            config.eps,
            weight_decay=config.weight_decay,
            mask=_is_matrix,
        ),
    )


def _is_matrix(params):
    """Norms and biases are left out of weight decay; paths tell, since layers are stacked."""
    small = ("norm", "bias")
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not str(path[-1].key).endswith(small), params
    )
