"""What the papers' theory predicts, measured on tabular policies and on Bernoulli rewards.

A tabular policy has one softmax per prefix of a response. Its probabilities are multiples of 1/16,
so a group that holds each response as often as its probability says, 4096 answers in all, is the
exact distribution: means over it are expectations, without sampling error.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hacpo_jax import objectives

VOCABULARY, LENGTH, UNITS = 3, 3, 16  # token 0 ends a response
PREFIXES = [
    prefix for n in range(LENGTH) for prefix in itertools.product((1, 2), repeat=n)
]  # where another token may follow
RESPONSES = [(*prefix, 0) for prefix in PREFIXES] + list(itertools.product((1, 2), repeat=LENGTH))
COUNT = len(RESPONSES)


def _padded(rows):
    return np.array([[*row, *[0] * (LENGTH - len(row))] for row in rows])


TOKENS = _padded(RESPONSES)
STATES = _padded([[PREFIXES.index(r[:t]) for t in range(len(r))] for r in RESPONSES])
MASK = np.arange(LENGTH) < np.array([[len(r)] for r in RESPONSES])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _units(rng, least=3):
    """Random next-token probabilities [prefix, token], in sixteenths."""
    free = UNITS - least * VOCABULARY
    return least + rng.multinomial(free, np.full(VOCABULARY, 1 / VOCABULARY), len(PREFIXES))


def _near(rng, units):
    """Another policy: one sixteenth moves from one token to another after every prefix."""
    moved = units.copy()
    for row in moved:
        loses, gains = rng.permutation(VOCABULARY)[:2]
        row[loses] -= 1
        row[gains] += 1
    return moved


def _logits(units):
    return np.log(units / UNITS)


def _population(units):
    """Response numbers, each as often as its probability times 4096."""
    times = np.where(MASK, units[STATES, TOKENS], 1).prod(axis=1)
    times *= UNITS ** (LENGTH - MASK.sum(axis=1))
    assert times.sum() == UNITS**LENGTH
    return np.repeat(np.arange(COUNT), times)


def _token_log_probs(logits, responses):
    """Log-probs [N, LENGTH] of responses given by number."""
    rows = jax.nn.log_softmax(logits)
    return rows[jnp.asarray(STATES)[responses], jnp.asarray(TOKENS)[responses]]


def _some_rewards(rng):
    """1 for a random 2 to 7 of the responses."""
    rewards = np.zeros(COUNT)
    rewards[rng.permutation(COUNT)[: rng.integers(2, 8)]] = 1
    return rewards


def test_the_population_of_a_policy_is_its_distribution():
    units = _units(np.random.default_rng(0))
    token_log_probs = np.asarray(_token_log_probs(_logits(units), np.arange(COUNT)))
    probability = np.exp(np.where(MASK, token_log_probs, 0).sum(axis=1))
    share = np.bincount(_population(units), minlength=COUNT) / UNITS**LENGTH
    np.testing.assert_allclose(share, probability, rtol=1e-12)


def test_baseline_is_an_unbiased_estimate_of_the_learners_expected_reward():
    """HACPO, theorem 4.1: on prompts of every difficulty; the plain joint mean is biased.

    The largest reward is infinite here: the theorem is about the estimate without the fallback.
    """
    p = np.array([0.2, 0.6, 0.8])
    agents, prompts, group = 3, 10_000, 4
    ratio = np.asarray(objectives.capability_ratio(p[None]))
    np.testing.assert_allclose(ratio, p[:, None] / p, rtol=1e-12)
    for seed, ease in enumerate((1.0, 0.7, 0.4)):
        solved = p * ease  # the ratio is the same on all prompts
        draws = np.random.default_rng(seed).random((agents, prompts, group))
        rewards = draws < solved[:, None, None]
        baseline = np.asarray(objectives.capability_baseline(rewards, ratio, max_reward=math.inf))
        # Each prompt's estimate is a mean over 12 responses, 4 with the variance of each source.
        variance = (ratio**2 * solved * (1 - solved)).sum(axis=1) * group / (agents * group) ** 2
        error = np.sqrt(variance / prompts)
        assert np.all(np.abs(baseline.mean(axis=1) - solved) < 4 * error)
        plain = np.asarray(objectives.capability_baseline(rewards, np.ones((3, 3))))
        error = math.sqrt((solved * (1 - solved)).sum() * group / (agents * group) ** 2 / prompts)
        assert np.all(np.abs(plain.mean(axis=1) - solved.mean()) < 4 * error)
        assert np.all(np.abs(plain.mean(axis=1) - solved) > 10 * error)


@functools.partial(jax.jit, static_argnames="clip_cross")
def _cosines(units, populations, solved, clip_cross):
    """Cosine of the exact own and cross gradients of two agents, for each as the learner.

    Returns the cosines [2] and the agents' expected rewards [2].
    """
    responses, source = populations.reshape(-1), jnp.repeat(jnp.arange(2), UNITS**LENGTH)
    mask = jnp.asarray(MASK)[responses]
    rewards = solved[populations][:, None]  # [2, 1, 4096]
    mean_rewards = rewards.mean(axis=(1, 2))
    advantages = objectives.hacpo_advantages(
        rewards, objectives.capability_ratio(mean_rewards[None])
    )
    logits = jnp.log(units / UNITS)
    by_agent = [objectives.mean_log_prob(_token_log_probs(x, responses), mask) for x in logits]
    behavior = jnp.where(source == 0, *by_agent)

    def gradient(learner, kept):
        def loss(x):
            return objectives.hacpo_loss(
                _token_log_probs(x, responses), mask, behavior, advantages[learner].reshape(-1),
                jnp.where(source == kept, source, -1),
                learner=learner, num_agents=2, update_index=0, clip_cross=clip_cross,
            )[0]  # fmt: skip

        return jax.grad(loss)(logits[learner]).reshape(-1)

    def cosine(learner):
        own, cross = gradient(learner, learner), gradient(learner, 1 - learner)
        return own @ cross / jnp.linalg.norm(own) / jnp.linalg.norm(cross)

    return jnp.stack([cosine(0), cosine(1)]), mean_rewards


def _cosines_of_near_agents(clip_cross, seeds=30):
    """Cosines [seeds, 2], and whether each one's peer is the stronger [seeds, 2]."""
    cosines, stronger_peer = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        own = _units(rng)
        units = np.stack([own, _near(rng, own)])
        populations = np.stack([_population(u) for u in units])
        found, mean_rewards = _cosines(units, populations, _some_rewards(rng), clip_cross)
        cosines.append(found)
        stronger_peer.append(mean_rewards[::-1] > mean_rewards)
    return np.array(cosines), np.array(stronger_peer)


def test_cross_and_own_gradients_of_near_agents_agree():
    """HACPO, theorem 4.3: their inner product is positive; here nearly that of parallel ones."""
    cosines, _ = _cosines_of_near_agents(clip_cross=False)
    assert cosines.min() > 0.9


def test_clipped_cross_gradients_agree_with_own_ones_if_the_peer_is_stronger():
    """The bound of 1 keeps what the peer likes better than the learner: a choice with a bias.

    However near the agents are, a few cosines of learners with weaker peers are negative.
    """
    cosines, stronger_peer = _cosines_of_near_agents(clip_cross=True)
    assert stronger_peer.any()
    assert cosines[stronger_peer].min() > 0
    assert (cosines > 0).mean() > 0.9
    assert cosines.mean() > 0.5


@jax.jit
def _group_step(logits, responses, old, advantages, rate=0.1):
    """Gradients of `grpo_loss` in the log-probs and logits, and the logits one SGD step later."""

    def loss(log_probs):
        return objectives.grpo_loss(log_probs, jnp.asarray(MASK)[responses], old, advantages)[0]

    log_probs, pull_back = jax.vjp(lambda x: _token_log_probs(x, responses), logits)
    by_token = jax.grad(loss)(log_probs)
    (gradient,) = pull_back(by_token)
    return by_token, gradient, logits - rate * gradient


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("seed", range(5))
def test_xgrpo_has_no_positive_direction_where_only_peers_succeed(seed, scale):
    """Every own answer pushes its own tokens down; nothing pulls towards the peer's solution.

    What rises does so by the softmax alone: the mass that is taken away goes to all other tokens
    in proportion to their probability. PRP, which has the peer's answer, does pull.
    """
    rng = np.random.default_rng(seed)
    units, solution = _units(rng), rng.integers(COUNT)
    own = rng.choice(np.delete(np.arange(COUNT), solution), 4)
    peers = np.append(rng.choice(np.delete(np.arange(COUNT), solution), 3), solution)
    rewards = (np.stack([own, peers]) == solution)[:, None]
    advantages = np.asarray(objectives.pooled_advantages(rewards, scale=scale))[:, 0]
    assert np.all(advantages[0] < 0)

    logits = _logits(units)
    old = np.asarray(_token_log_probs(logits, np.arange(COUNT)))
    by_token, gradient, after = _group_step(logits, own, old[own], advantages[0])
    assert np.all(np.asarray(by_token)[MASK[own]] > 0)
    expected = np.zeros_like(logits)
    for response, advantage in zip(own, advantages[0], strict=True):
        for state, token in zip(STATES[response], RESPONSES[response], strict=False):
            # d log p(token) / d logits = 1 for the token itself - p, and the loss has -A of it.
            expected[state] += advantage * units[state] / UNITS
            expected[state, token] -= advantage
    np.testing.assert_allclose(gradient, expected / MASK[own].sum(), rtol=1e-9, atol=1e-12)
    moved = np.where(MASK[own], _token_log_probs(after, own) - old[own], 0).sum(axis=1)
    assert advantages[0] @ moved > 0

    pool = np.concatenate([own, peers])
    by_token, _, _ = _group_step(logits, pool, old[pool], advantages.reshape(-1))
    assert np.all(np.asarray(by_token)[-1][MASK[solution]] < 0)


@pytest.mark.parametrize(
    ("own_success", "peer_success", "gated"),
    [
        ([0, 0, 0], [0, 1, 1], True),
        ([0, 0, 1], [0, 1, 1], False),
        ([0, 0, 0], [0, 0, 0], False),
        ([1, 1, 1], [0, 0, 0], False),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_sgt_raises_the_peers_solution_on_gated_prompts_only(
    seed, own_success, peer_success, gated
):
    rng = np.random.default_rng(seed)
    logits, responses = _logits(_units(rng)), rng.permutation(COUNT)[:6]
    success = np.array([own_success, peer_success])
    gate = np.asarray(objectives.success_gate(success[:, None]))[0, 0]
    assert gate == gated
    weight = np.zeros(6)
    chosen = 3 + np.argmax(success[1])  # the peer's first verified response, if it has one
    weight[chosen] = gate

    def loss(x):
        log_probs = _token_log_probs(x, responses)
        return objectives.transfer_loss(log_probs, MASK[responses], weight)[0]

    value, gradient = jax.value_and_grad(loss)(logits)
    if gated:
        before, after = (
            np.where(MASK, _token_log_probs(x, np.arange(COUNT)), 0).sum(axis=1)[responses[chosen]]
            for x in (logits, logits - 0.5 * gradient)
        )
        assert after > before
    else:
        assert value == 0
        assert not np.any(gradient)


def _ratio_variance(logits, responses, old):
    log_ratio = np.asarray(_token_log_probs(logits, responses)) - old
    return np.exp(log_ratio[MASK[responses]]).var()


def _variances(own_units, peer_units, rewards):
    """Exact variance of the token ratios one update later: XGRPO's, PRP's by denominator."""
    own, peer = _population(own_units), _population(peer_units)
    pool, logits = np.concatenate([own, peer]), _logits(own_units)
    advantages = objectives.pooled_advantages(rewards[np.stack([own, peer])][:, None])
    snapshot = np.asarray(_token_log_probs(logits, pool))
    trace = np.where(
        np.arange(len(pool))[:, None] < len(own),
        snapshot,
        _token_log_probs(_logits(peer_units), pool),
    )
    cases = {
        "xgrpo": (own, snapshot[: len(own)], advantages[0].reshape(-1)),
        "learner_snapshot": (pool, snapshot, advantages.reshape(-1)),
        "thl_peer": (pool, trace, advantages.reshape(-1)),
    }
    return {
        name: _ratio_variance(_group_step(logits, responses, old, a)[2], responses, old)
        for name, (responses, old, a) in cases.items()
    }


@pytest.mark.parametrize("seed", range(5))
def test_prp_ratios_vary_more_than_xgrpos_with_the_peers_trace(seed):
    """Whoever the peer is: its policy in the denominator is another one from the start."""
    rng = np.random.default_rng(seed)
    own = _units(rng)
    for peer in (_near(rng, own), _units(rng)):
        variance = _variances(own, peer, _some_rewards(rng))
        assert variance["thl_peer"] > 10 * variance["xgrpo"] > 0


@pytest.mark.parametrize("seed", range(5))
def test_prp_ratios_vary_more_than_xgrpos_for_a_learner_weaker_than_its_peer(seed):
    """Also with the learner's snapshot: the peer's solutions use tokens it seldom takes.

    Between equals no such order holds, so there is no test of it.
    """
    rng = np.random.default_rng(seed)
    own, solution = _units(rng), rng.choice(np.flatnonzero(MASK.sum(axis=1) == LENGTH))
    peer = own.copy()
    for units, share in ((own, 4), (peer, 8)):
        for state, token in zip(STATES[solution], TOKENS[solution], strict=True):
            first = rng.integers(3, UNITS - share - 2)
            units[state] = UNITS - share - first
            units[state, token - 1] = first
            units[state, token] = share
    variance = _variances(own, peer, (np.arange(COUNT) == solution).astype(float))
    assert variance["learner_snapshot"] > 2 * variance["xgrpo"] > 0
    assert variance["thl_peer"] > variance["learner_snapshot"]
