"""HACPO in a bare JAX loop: two different policies learn to count, each from both one's answers.

    python notebooks/bare_jax.py

No Flax, no optimizer library, no trainer: all that is borrowed is `hacpo_jax.objectives`. A policy
is a function of its parameters and of the last two digits; put your own model in its place.
"""

import functools

import jax
import jax.numpy as jnp

from hacpo_jax import objectives

DIGITS, LENGTH = 10, 4  # size of the vocabulary, tokens in an answer
PROMPTS, GROUP = 16, 8  # prompts in a step, answers of each agent to each prompt
STEPS, WINDOW = 80, 5  # steps, and how many of them the capability looks back
Params = dict[str, jax.Array]


# 1. Two policies. Both give logits [..., DIGITS] after a context [..., 2], each in its own way.
def table_policy(params: Params, context: jax.Array) -> jax.Array:
    """A bigram table: it sees the last digit only."""
    return params["table"][context[..., 1]]


def network_policy(params: Params, context: jax.Array) -> jax.Array:
    """An MLP over the embeddings of the last two digits."""
    embedded = params["embedding"][context].reshape(*context.shape[:-1], -1)
    return jnp.tanh(embedded @ params["inner"]) @ params["outer"]


POLICIES, LEARNING_RATES = (table_policy, network_policy), (8.0, 1.0)
AGENTS = len(POLICIES)


def initial_params(key: jax.Array) -> list[Params]:
    """The parameters of each policy."""
    shapes = {"embedding": (DIGITS, 8), "inner": (16, 32), "outer": (32, DIGITS)}
    keys = jax.random.split(key, len(shapes))
    network = {n: 0.3 * jax.random.normal(k, shapes[n]) for n, k in zip(shapes, keys, strict=True)}
    return [{"table": jnp.zeros((DIGITS, DIGITS))}, network]


@functools.partial(jax.jit, static_argnums=0)
def token_log_probs(policy, params: Params, prompts: jax.Array, answers: jax.Array) -> jax.Array:
    """Log-prob in nats of each token of `answers` [N, LENGTH] to `prompts` [N, 2]."""
    text = jnp.concatenate([prompts, answers], axis=1)
    context = jnp.stack([text[:, :-2], text[:, 1:-1]], axis=-1)  # [N, LENGTH, 2]
    log_probs = jax.nn.log_softmax(policy(params, context))
    return jnp.take_along_axis(log_probs, answers[..., None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=0)
def sample(policy, params: Params, prompts: jax.Array, key: jax.Array):
    """One answer [N, LENGTH] to each of `prompts` [N, 2], and the mean log-prob of each, [N]."""

    def next_digit(context, token_key):
        digit = jax.random.categorical(token_key, policy(params, context))
        return jnp.stack([context[:, 1], digit], axis=1), digit

    _, digits = jax.lax.scan(next_digit, prompts, jax.random.split(key, LENGTH))
    answers = digits.T
    log_probs = token_log_probs(policy, params, prompts, answers)
    return answers, objectives.mean_log_prob(log_probs, jnp.ones(answers.shape, bool))


# 2. A reward that a program can check. It may be any Python: it runs outside of jit.
def reward(prompt: list[int], answer: list[int]) -> float:
    """Share of the digits that go on counting where the prompt stops, 9 being followed by 0."""
    return sum(d == (prompt[-1] + 1 + i) % DIGITS for i, d in enumerate(answer)) / len(answer)


# 3. The loss of one learner on the answers of all agents.
def policy_loss(params, learner, prompts, answers, behavior, advantages):
    """`hacpo_loss` and its metrics.

    Args:
      params: of the learner, whose index in `POLICIES` is `learner`.
      prompts: [A * N, 2], those of all agents' answers, one agent after another.
      answers: [A * N, LENGTH], in the learner's tokens.
      behavior: [A * N], mean log-prob of an answer for the agent that gave it, in its own tokens.
      advantages: [A * N].
    """
    log_probs = token_log_probs(POLICIES[learner], params, prompts, answers)
    return objectives.hacpo_loss(
        log_probs,
        jnp.ones(log_probs.shape, bool),  # every token belongs to the answer
        behavior,
        advantages,
        jnp.repeat(jnp.arange(AGENTS), len(answers) // AGENTS),  # who gave the answer
        learner=learner,
        num_agents=AGENTS,
        update_index=0,  # one update a step; later ones of the same step clip closer
        clip_low=0.5,  # models this small disagree more than the paper's, which takes 0.8
    )


policy_gradient = jax.jit(jax.grad(policy_loss, has_aux=True), static_argnums=1)


# 4. One step of the paper's algorithm 1: everybody answers, then everybody learns.
@jax.jit
def credit(rewards: jax.Array, history: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Advantages [A learner, A source, P, G] of `rewards` [A, P, G], and the window moved on."""
    history = objectives.push_history(history, *objectives.capability(rewards))
    return objectives.hacpo_advantages(rewards, objectives.capability_ratio(history)), history


def collect(params: list[Params], key: jax.Array):
    """All agents answer the same prompts: what `policy_loss` takes before the advantages, and the
    rewards [A, P, G]."""
    prompt_key, *keys = jax.random.split(key, 1 + AGENTS)
    start = jax.random.randint(prompt_key, (PROMPTS, 1), 0, DIGITS)
    prompts = jnp.repeat((start + jnp.arange(2)) % DIGITS, GROUP, axis=0)  # [P * G, 2]
    answers, behavior = zip(*map(sample, POLICIES, params, [prompts] * AGENTS, keys), strict=True)
    rewards = [list(map(reward, prompts.tolist(), own.tolist())) for own in answers]
    everyone = jnp.tile(prompts, (AGENTS, 1)), jnp.concatenate(answers), jnp.concatenate(behavior)
    return everyone, jnp.array(rewards).reshape(AGENTS, PROMPTS, GROUP)


def train(seed: int = 0) -> list[list[dict[str, float]]]:
    """Trains both policies; returns what was measured, [step][agent]."""
    key, init_key = jax.random.split(jax.random.key(seed))
    params, measured = initial_params(init_key), []
    history = jnp.full((WINDOW, AGENTS), jnp.nan)  # nothing known yet
    for step in range(STEPS):
        batch, rewards = collect(params, jax.random.fold_in(key, step))
        advantages, history = credit(rewards, history)
        measured.append([])
        for k, rate in enumerate(LEARNING_RATES):
            gradient, metrics = policy_gradient(params[k], k, *batch, advantages[k].ravel())
            params[k] = jax.tree.map(lambda p, g, lr=rate: p - lr * g, params[k], gradient)
            numbers = metrics | {"reward": rewards[k].mean()}
            measured[-1].append({name: float(x) for name, x in numbers.items()})
    return measured


if __name__ == "__main__":
    print("step    reward      ratio of peer's answers, share that teaches    (table, network)")
    for step, (table, network) in enumerate(train()):
        if step % 10 == 0 or step == STEPS - 1:
            ratios = f"{table['ratio/1']:.2f} {network['ratio/0']:.2f}"
            teach = "{cross_gradient_fraction:4.0%}".format
            print(f"{step:4}    {table['reward']:.2f} {network['reward']:.2f}", end="   ")
            print(f"{ratios}   {teach(**table)} {teach(**network)}")
