"""Estimators of accuracy from several answers to each problem."""

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k answers drawn from n is right, when c of the n are.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374, eq. 1).

    Args:
      n: answers to the problem.
      c: right ones among them, at most n.
      k: answers drawn without replacement, 1 to n.

    Raises:
      ValueError: an argument is out of its range.
    """
    if not 0 <= c <= n:
        raise ValueError(f"c = {c}: must be between 0 and n = {n}")
    if not 1 <= k <= n:
        raise ValueError(f"k = {k}: must be between 1 and n = {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
