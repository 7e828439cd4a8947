"""The definitions of the objectives as plain loops over Python floats, written apart from them.

Nothing here uses jax. Gradients are central differences; the factor under a stop-gradient is
evaluated at the `frozen` log-probs, which the differences leave alone.
"""

import math
import statistics

import numpy as np


def rows_of(log_probs, mask):
    """For each row the list of its response tokens' log-probs."""
    return [
        [float(x) for x, m in zip(row, row_mask, strict=True) if m]
        for row, row_mask in zip(log_probs, mask, strict=True)
    ]


def ratio(new, old):
    return math.exp(min(new - old, 10.0))


def surrogate(r, advantage, eps_low, eps_high):
    return min(r * advantage, min(max(r, 1 - eps_low), 1 + eps_high) * advantage)


def gspo(log_probs, mask, behavior, advantages, eps_low=3e-4, eps_high=4e-4, normalizer=None):
    terms = [
        surrogate(ratio(statistics.fmean(row), b), a, eps_low, eps_high)
        for row, b, a in zip(rows_of(log_probs, mask), behavior, advantages, strict=True)
        if row
    ]
    return -sum(terms) / (normalizer or len(terms))


def grpo(
    log_probs, mask, old, advantages, reduction="tokens", eps_low=0.2, eps_high=0.28,
    normalizer=None,
):  # fmt: skip
    rows = [
        [surrogate(ratio(x, y), a, eps_low, eps_high) for x, y in zip(new, behind, strict=True)]
        for new, behind, a in zip(
            rows_of(log_probs, mask), rows_of(old, mask), advantages, strict=True
        )
        if new
    ]
    terms = [term for row in rows for term in row]
    if reduction == "sequences":
        terms = [statistics.fmean(row) for row in rows]
    return -sum(terms) / (normalizer or len(terms))


def hacpo(
    log_probs, mask, behavior, advantages, source, *, learner, num_agents, update_index, alpha=1.0,
    clip_low=0.8, clip_step=0.025, eps_low=3e-4, eps_high=4e-4, reduction="sources",
    clip_cross=True, normalizer=None, frozen=None,
):  # fmt: skip
    terms = [[] for _ in range(num_agents)]
    frozen_rows = rows_of(log_probs if frozen is None else frozen, mask)
    for n, row in enumerate(rows_of(log_probs, mask)):
        if not row:
            continue
        s = ratio(statistics.fmean(row), behavior[n])
        if source[n] == learner:
            term = surrogate(s, advantages[n], eps_low, eps_high)
        else:
            held = ratio(statistics.fmean(frozen_rows[n]), behavior[n])
            if clip_cross:
                low = min(clip_low + update_index * clip_step, 1.0)
                s, held = min(max(s, low), 1.0), min(max(held, low), 1.0)
            term = s * held**alpha * advantages[n]
        terms[source[n]].append(term)
    counts = [len(group) for group in terms] if normalizer is None else normalizer
    if reduction == "sources":
        return -sum(sum(group) / n for group, n in zip(terms, counts, strict=True) if group)
    return -sum(sum(group) for group in terms) / sum(counts)


def transfer(log_probs, mask, weight, normalizer=None):
    pairs = [
        (w, -statistics.fmean(row))
        for row, w in zip(rows_of(log_probs, mask), weight, strict=True)
        if row
    ]
    return sum(w * nll for w, nll in pairs) / (normalizer or sum(w for w, _ in pairs))


def kl(log_probs, reference, mask, normalizer=None):
    means = []
    for row, ref in zip(rows_of(log_probs, mask), rows_of(reference, mask), strict=True):
        qs = [min(r - x, 10.0) for x, r in zip(row, ref, strict=True)]
        if qs:
            means.append(statistics.fmean([math.exp(q) - q - 1 for q in qs]))
    return sum(means) / (normalizer or len(means))


def numeric_gradient(function, log_probs, step=1e-6):
    """Central differences of `function` at `log_probs` [N, T]."""
    gradient = np.zeros_like(log_probs)
    for index in np.ndindex(log_probs.shape):
        high, low = log_probs.copy(), log_probs.copy()
        high[index] += step
        low[index] -= step
        gradient[index] = (function(high) - function(low)) / (2 * step)
    return gradient


def group_advantages(rewards, valid, scale, eps=1e-6):
    """One group: lists of length G."""
    kept = [r for r, v in zip(rewards, valid, strict=True) if v]
    if len(set(kept)) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(kept)
    divisor = statistics.stdev(kept) + eps if scale == "std" else 1.0
    return [(r - mean) / divisor if v else 0.0 for r, v in zip(rewards, valid, strict=True)]


def capability_baseline(rewards, ratio_matrix, valid, learner, prompt, max_reward=1.0):
    def kept(agent):
        samples = zip(rewards[agent][prompt], valid[agent][prompt], strict=True)
        return [float(r) for r, v in samples if v]

    agents = range(len(rewards))
    everything = [r for j in agents for r in kept(j)]
    if not everything:
        return 0.0
    weighted = sum(ratio_matrix[learner][j] * r for j in agents for r in kept(j))
    mean = weighted / len(everything)
    if mean > max_reward:
        return statistics.fmean(kept(learner) or everything)
    return mean


def hacpo_advantages(
    rewards, ratio_matrix, valid, *, cross_baseline, discrepancy, capability, max_reward=1.0
):
    agents, prompts, group = np.shape(rewards)
    result = np.zeros((agents, agents, prompts, group))
    for k, j, p in np.ndindex(agents, agents, prompts):
        joint = [rewards[a][p][g] for a in range(agents) for g in range(group) if valid[a][p][g]]
        if len(set(joint)) < 2:
            continue
        whose = k if cross_baseline == "learner" else j
        baseline = statistics.fmean(joint)
        if capability:
            baseline = capability_baseline(rewards, ratio_matrix, valid, whose, p, max_reward)
        factor = ratio_matrix[j][k] if discrepancy and j != k else 1.0
        for g in range(group):
            if valid[j][p][g]:
                deviation = statistics.stdev(joint) + 1e-6
                result[k, j, p, g] = factor * (rewards[j][p][g] - baseline) / deviation
    return result
