"""A policy's log-probs of given answers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from hacpo_jax.models import AttentionKind, ModelConfig, bind
from hacpo_jax.models.lora import agent_axes
from hacpo_jax.parallel.rules import over_agents
from hacpo_jax.training.log_probs import token_log_probs


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """Everything static about how a policy is evaluated; hashable, so it can be a jit constant.

    Args:
      model: shape of the model.
      temperature: divides the logits, as in sampling.
      num_tokens: ids from here on are unknown to the tokenizer and have no probability.
      dtype: dtype of activations.
      remat: recompute layers in the backward pass instead of storing them.
      missing_ids: further ids that the tokenizer does not know.
      attention: implementation of attention over whole sequences.
    """

    model: ModelConfig
    temperature: float
    num_tokens: int
    dtype: jnp.dtype
    remat: bool = False
    missing_ids: tuple[int, ...] = ()
    attention: AttentionKind = "xla"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Answers:
    """Prompts with one answer each, in one policy's tokens.

    Args:
      prompts: `[N, S]` int32, padded on the left.
      prompt_lengths: `[N]` int32, at least 1.
      responses: `[N, T]` int32, padded on the right.
      response_lengths: `[N]` int32; 0 for an answer that must not count.
    """

    prompts: jax.Array
    prompt_lengths: jax.Array
    responses: jax.Array
    response_lengths: jax.Array

    @property
    def mask(self) -> jax.Array:
        """`[N, T]` bool, True at response tokens, from the lengths alone."""
        return jnp.arange(self.responses.shape[-1]) < self.response_lengths[..., None]


def answer_log_probs(params, answers: Answers, spec: PolicySpec) -> tuple[jax.Array, jax.Array]:
    """Log-probs and entropies of every response token.

    Args:
      params: parameters of one agent.
      answers: N prompts with answers.
      spec: what is static.

    Returns:
      Two `[N, T]` float32 arrays in nats, finite but meaningless outside `answers.mask`.
    """
    model = bind(spec.model, params)
    width = answers.prompts.shape[1]
    tokens = jnp.concatenate([answers.prompts, answers.responses], axis=1)  # [N, S + T]
    starts = (width - answers.prompt_lengths)[:, None]
    ends = (width + answers.response_lengths)[:, None]
    places = jnp.arange(tokens.shape[1])
    valid = (places >= starts) & (places < ends)
    positions = jnp.maximum(places - starts, 0)
    hidden = model(
        tokens, positions, valid, dtype=spec.dtype, remat=spec.remat, attention=spec.attention
    )
    before = hidden[:, width - 1 : -1]  # [N, T, H], the state that predicts each response token
    log_probs, entropy = token_log_probs(
        before.reshape(-1, before.shape[-1]),
        model.unembedding(),
        answers.responses.reshape(-1),
        spec.temperature,
        spec.num_tokens,
        missing_ids=spec.missing_ids,
    )
    return log_probs.reshape(answers.responses.shape), entropy.reshape(answers.responses.shape)


@functools.partial(jax.jit, static_argnames="spec")
def score(params, answers: Answers, *, spec: PolicySpec) -> jax.Array:
    """Log-probs without gradients, micro-batch by micro-batch, for every agent of a group.

    Args:
      params: parameters of the agents, `[A, ...]` each, or adapters on a base of all.
      answers: `[A, M, R, ...]`, M micro-batches of R rows.
      spec: what is static.

    Returns:
      `[A, M, R, T]` float32.
    """

    def one_agent(params, answers):
        return jax.lax.map(lambda rows: answer_log_probs(params, rows, spec)[0], answers)

    return over_agents(one_agent, (agent_axes(params), 0))(params, answers)
