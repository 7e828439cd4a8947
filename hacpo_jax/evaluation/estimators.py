"""Estimators of accuracy from several answers to each problem."""

import math
from collections.abc import Sequence

import numpy as np


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


def majority_at_k(sizes: Sequence[int], right: Sequence[float], k: int, silent: int = 0) -> float:
    """Chance that a majority vote over k of the answers to a problem is right (maj@k).

    The exact mean over all ways to draw k answers without replacement. Answers that agree are a
    class, and the class with most votes wins; classes with equally many share the chance evenly.
    Without any vote the answer is wrong.

    Args:
      sizes: answers of each class.
      right: share of each class's answers that are right: 0 or 1, unless the verifier looks at
        more than what the vote is about.
      k: answers drawn, 1 to all of them.
      silent: answers without a vote, which are drawn like all others.

    Raises:
      ValueError: an argument is out of its range.
    """
    n = sum(sizes) + silent
    if not 1 <= k <= n:
        raise ValueError(f"k = {k}: must be between 1 and n = {n}")
    total = 0.0
    for c, share in enumerate(right):
        if share:
            others = [size for i, size in enumerate(sizes) if i != c]
            wins = (_wins(sizes[c], others, silent, votes, k) for votes in range(1, k + 1))
            total += share * sum(wins)
    return total / math.comb(n, k)


def _wins(size: int, others: Sequence[int], silent: int, votes: int, k: int) -> float:
    """Draws of k answers, a tie among t counted as 1 / t, in which a class wins with `votes`."""
    rest = k - votes
    if votes > size or rest < 0:
        return 0.0
    # ways[t][m]: draws of m answers of the others, of which t classes have as many votes.
    ways = [[math.comb(silent, m) for m in range(rest + 1)]]
    for other in others:
        fewer = [math.comb(other, m) for m in range(min(votes - 1, rest) + 1)]
        equal = math.comb(other, votes)
        grown = [[0] * (rest + 1) for _ in range(len(ways) + 1)]
        for t, row in enumerate(ways):
            for m, count in enumerate(row):
                if not count:
                    continue
                for drawn, choices in enumerate(fewer[: rest - m + 1]):
                    grown[t][m + drawn] += count * choices
                if equal and m + votes <= rest:
                    grown[t + 1][m + votes] += count * equal
        ways = grown if any(grown[-1]) else grown[:-1]
    return math.comb(size, votes) * sum(row[rest] / (t + 1) for t, row in enumerate(ways))


def standard_error(values: np.ndarray, *, seed: int = 0, resamples: int = 1000) -> np.ndarray:
    """Standard error of means over problems, by the bootstrap (Efron, 1979).

    Problems, not answers, are drawn again with replacement: answers to one problem are alike.

    Args:
      values: `[N, M]`, M figures of each of N problems.
      seed: of the resampling.
      resamples: how many times.

    Returns:
      `[M]`: the standard deviation, over resamples, of the mean of each column.
    """
    count = len(values)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), resamples)
    return (weights @ values / count).std(axis=0, ddof=1)
