"""A policy's log-probs of given answers."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from hacpo_jax.models import Answers, AttentionKind, ModelConfig, bind
from hacpo_jax.models.lora import Params, agent_axes
from hacpo_jax.parallel.rules import constrain, over_agents
from hacpo_jax.training.log_probs import Entropy, token_log_probs


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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["answers", "prompts", "prompt_of"],
    meta_fields=["width"],
)
@dataclasses.dataclass(frozen=True)
class Cut:
    """A micro-batch: which answers of `Answers` are looked at together, as places in its arrays.

    Args:
      answers: `[..., R, n]` int32 places among each row's N answers; N is filler.
      prompts: `[..., R, p]` int32 places among its P prompts, all those of these answers.
      prompt_of: `[..., R, n]` int32, which of the p prompts each answer is to.
      width: tokens of the longest of these answers, or more.
    """

    answers: jax.Array
    prompts: jax.Array
    prompt_of: jax.Array
    width: int

    def take(self, values: jax.Array) -> jax.Array:
        """`[R, N, ...]` as `[R, n, ...]`; anything at filler."""
        return jax.vmap(lambda x, places: x.at[places].get(mode="clip"))(values, self.answers)

    def put(self, total: jax.Array, values: jax.Array) -> jax.Array:
        """`[R, N, T]` with `[R, n, width]` written to where it was taken from."""

        def one(total: jax.Array, values: jax.Array, places: jax.Array) -> jax.Array:
            return total.at[places, : self.width].set(values, mode="drop")

        return jax.vmap(one)(total, values, self.answers)

    def of(self, whole: Answers) -> Answers:
        """These answers with their prompts."""

        def of_prompts(values: jax.Array) -> jax.Array:
            return jax.vmap(lambda x, places: x[places])(values, self.prompts)

        filler = self.answers >= whole.responses.shape[1]
        return Answers(
            prompts=of_prompts(whole.prompts),
            prompt_lengths=of_prompts(whole.prompt_lengths),
            responses=self.take(whole.responses[..., : self.width]),
            response_lengths=jnp.where(filler, 0, self.take(whole.response_lengths)),
            prompt_of=self.prompt_of,
        )


def answer_log_probs(
    params, answers: Answers, spec: PolicySpec, entropy: Entropy = "gradient"
) -> tuple[jax.Array, jax.Array]:
    """Log-probs and entropies of every response token.

    Args:
      params: parameters of one agent.
      answers: R rows of N answers.
      spec: what is static.
      entropy: whether it is computed (`none` gives zeros) and whether it has a gradient.

    Returns:
      Two `[R, N, T]` float32 arrays in nats, finite but meaningless outside `answers.mask`.
    """
    return log_probs_into({}, params, answers, spec, entropy)[0]


def log_probs_into(
    totals: Params, params, answers: Answers, spec: PolicySpec, entropy: Entropy
) -> tuple[tuple[jax.Array, jax.Array], Params]:
    """As `answer_log_probs`, with gradients of tables that are added to sums that are there.

    Args:
      totals: sums of the gradients of `embedding` and `head`, or of those that have one; see
        `hacpo_jax.models.embedding.embed_into`.
      params, answers, spec, entropy: as in `answer_log_probs`.

    Returns:
      What that returns, and `totals`.
    """
    model, totals = bind(spec.model, params), dict(totals)
    head = "embedding" if spec.model.tie_word_embeddings else "head"
    before, total = model.before_answers(
        answers,
        dtype=spec.dtype,
        remat=spec.remat,
        attention=spec.attention,
        total=totals.get("embedding"),
    )  # [R, N, T, H]
    if total is not None:
        totals["embedding"] = total
    rows = len(before)
    *found, total = token_log_probs(
        before.reshape(rows, -1, before.shape[-1]),
        model.unembedding(),
        answers.responses.reshape(rows, -1),
        spec.temperature,
        spec.num_tokens,
        missing_ids=spec.missing_ids,
        entropy=entropy,
        total=totals.get(head),
    )
    if total is not None:
        totals[head] = total
    log_probs, entropies = (x.reshape(answers.responses.shape) for x in found)
    return (log_probs, entropies), totals


def score(params, answers: Answers, cuts: Sequence[Cut], *, spec: PolicySpec) -> jax.Array:
    """Log-probs without gradients, micro-batch by micro-batch, for every agent of a group.

    Args:
      params: parameters of the agents, `[A, ...]` each, or adapters on a base of all.
      answers: `[A, R, N, ...]`.
      cuts: `[A, R, ...]` each, with every answer that has a token in one of them.
      spec: what is static.

    Returns:
      `[A, R, N, T]` float32; 0 where no cut has been.
    """
    total = no_log_probs(answers)
    for cut in cuts:
        total = score_cut(total, params, answers, cut, spec=spec)
    return total


@jax.jit
def no_log_probs(answers: Answers) -> jax.Array:
    """Zeros `[A, R, N, T]`."""
    zeros = jnp.zeros(answers.responses.shape, jnp.float32)
    return over_agents(lambda x: constrain(x, "rows"))(zeros)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="total")
def score_cut(total, params, answers: Answers, cut: Cut, *, spec: PolicySpec) -> jax.Array:
    """`total` `[A, R, N, T]`, which is donated, with the log-probs of one micro-batch in it."""

    def one_agent(total, params, answers, cut):
        return cut.put(total, answer_log_probs(params, cut.of(answers), spec, "none")[0])

    return over_agents(one_agent, (0, agent_axes(params), 0, 0))(total, params, answers, cut)
