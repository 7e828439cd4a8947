"""How good: avg@k, best@k, maj@k, and their tables."""

from hacpo_jax.evaluation.answer_file import AnswerFile, answer_rows, fingerprint
from hacpo_jax.evaluation.estimators import majority_at_k, pass_at_k, standard_error
from hacpo_jax.evaluation.evaluate import Graded, evaluate_group
from hacpo_jax.evaluation.tables import Row, figures_rows, results_table

__all__ = [
    "AnswerFile",
    "Graded",
    "Row",
    "answer_rows",
    "evaluate_group",
    "figures_rows",
    "fingerprint",
    "majority_at_k",
    "pass_at_k",
    "results_table",
    "standard_error",
]
