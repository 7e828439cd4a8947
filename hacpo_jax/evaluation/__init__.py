"""How good: avg@k, best@k."""

from hacpo_jax.evaluation.estimators import pass_at_k
from hacpo_jax.evaluation.evaluate import Graded, evaluate_group

__all__ = ["Graded", "evaluate_group", "pass_at_k"]
