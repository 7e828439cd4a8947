"""One jitted loop that answers prompts: prefill once per prompt, then token by token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from hacpo_jax.models import AttentionKind, Decoder, KeyValues, ModelConfig, bind, gathered
from hacpo_jax.models.lora import agent_axes
from hacpo_jax.parallel.rules import constrain, over_agents
from hacpo_jax.rollout.sampling import Sampler, draw, known_ids

CACHE_AXES = (None, "rows", None, "kv_heads")
"""Of keys and values of generated tokens, `[L, P, G, kv_heads, C, D]`."""


@dataclasses.dataclass(frozen=True)
class DecodeSpec:
    """Everything static about a decode; hashable, so it can be a jit constant.

    Args:
      model: shape of the model.
      sampler: temperature and truncation.
      max_new_tokens: C, longest answer.
      stop_ids: tokens that end an answer.
      num_tokens: ids from here on are unknown to the tokenizer and never drawn.
      dtype: dtype of activations and cache.
      missing_ids: further ids that the tokenizer does not know.
      attention: implementation of attention within prompts.
    """

    model: ModelConfig
    sampler: Sampler
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    num_tokens: int
    dtype: jnp.dtype
    missing_ids: tuple[int, ...] = ()
    attention: AttentionKind = "xla"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Responses:
    """G answers of each of A agents to each of P prompts.

    Args:
      tokens: `[A, P, G, C]` int32, the end token included; 0 after the end.
      log_probs: `[A, P, G, C]` float32 under the tempered policy; 0 after the end.
      lengths: `[A, P, G]` int32, tokens of each answer, the end token included.
      stopped: `[A, P, G]` bool, True for finish reason `stop`, False for `length`.
    """

    tokens: jax.Array
    log_probs: jax.Array
    lengths: jax.Array
    stopped: jax.Array


@functools.partial(jax.jit, static_argnames="spec")
def decode(
    params,
    prompts: jax.Array,
    prompt_lengths: jax.Array,
    keys: jax.Array,
    active: jax.Array,
    *,
    spec: DecodeSpec,
) -> Responses:
    """Answer every prompt G times with every agent of a group.

    The loop runs once per token of the longest answer and stops when all rows have ended. A row's
    draws come from its own key and its own position, never from its place in the batch. The loop
    stands outside the `vmap` over agents: a vmapped loop would copy the whole cache every step to
    hold back the agents that are done.

    Args:
      params: parameters of the agents, `[A, ...]` each, or adapters on a base of all.
      prompts: `[P, S]` int32, padded on the left; any id in range at padding.
      prompt_lengths: `[P]`, real tokens of each prompt, at least 1.
      keys: `[A, P, G]` typed PRNG keys, one per answer.
      active: `[P]`, False for filler rows, which end at once with length 0.
      spec: what is static.

    Returns:
      The answers.
    """
    params = gathered(spec.model, params, spec.dtype)
    valid = jnp.arange(prompts.shape[1]) >= prompts.shape[1] - prompt_lengths[:, None]  # [P, S]

    def prefill(params, keys):
        model = bind(spec.model, params)
        positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
        hidden, prompt_cache = model.prefill(
            prompts, positions, valid, dtype=spec.dtype, attention=spec.attention
        )
        last = jnp.broadcast_to(hidden[:, -1:], (*keys.shape, hidden.shape[-1]))
        state = _start(spec, keys.shape, active)
        return _draw_next(model, last, state, keys, jnp.zeros((), jnp.int32), spec), prompt_cache

    axes = agent_axes(params)
    states, prompt_cache = over_agents(prefill, (axes, 0))(params, keys)

    def advance(params, prompt_cache, keys, state: _State, step) -> _State:
        model, generated = bind(spec.model, params), step - 1  # the newest token is not cached yet
        positions = prompt_lengths[:, None] + generated
        hidden, new = model.decode(
            state.newest, positions, prompt_cache, valid, state.cache, generated, dtype=spec.dtype
        )
        cache = jax.tree.map(functools.partial(_write, at=generated), state.cache, new)
        return _draw_next(model, hidden, dataclasses.replace(state, cache=cache), keys, step, spec)

    def body(carry: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
        step, states = carry
        advanced = over_agents(advance, (axes, 0, 0, 0, None))
        return step + 1, advanced(params, prompt_cache, keys, states, step)

    def unfinished(carry: tuple[jax.Array, _State]) -> jax.Array:
        step, states = carry
        return (step < spec.max_new_tokens) & ~states.responses.stopped.all()

    _, states = jax.lax.while_loop(unfinished, body, (jnp.ones((), jnp.int32), states))
    answers = states.responses
    return dataclasses.replace(answers, stopped=answers.stopped & active[:, None])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
    """One agent's answers so far; filler rows count as stopped."""

    newest: jax.Array  # [P, G]
    cache: KeyValues  # [L, P, G, kv_heads, C - 1, D]
    responses: Responses  # without the agent axis


def _start(spec: DecodeSpec, shape: tuple[int, ...], active: jax.Array) -> _State:
    c = spec.model
    # The last token is drawn but never attended to, hence C - 1 positions.
    room = (c.num_layers, *shape, c.num_kv_heads, max(spec.max_new_tokens - 1, 1), c.head_dim)
    empty = constrain(jnp.zeros(room, spec.dtype), *CACHE_AXES)
    return _State(
        newest=jnp.zeros(shape, jnp.int32),
        cache=KeyValues(empty, empty),
        responses=Responses(
            tokens=jnp.zeros((*shape, spec.max_new_tokens), jnp.int32),
            log_probs=jnp.zeros((*shape, spec.max_new_tokens), jnp.float32),
            lengths=jnp.zeros(shape, jnp.int32),
            stopped=jnp.broadcast_to(~active[:, None], shape),
        ),
    )


def _draw_next(
    model: Decoder,
    hidden: jax.Array,
    state: _State,
    keys: jax.Array,
    step: jax.Array,
    spec: DecodeSpec,
) -> _State:
    """Draw token number `step` of every answer from `hidden` `[P, G, H]` and record it."""
    table = model.unembedding().astype(spec.dtype)
    logits = jnp.einsum("pgh,vh->pgv", hidden, table, preferred_element_type=jnp.float32)
    logits = constrain(logits, "rows", None, "vocab")
    known = known_ids(logits.shape[-1], spec.num_tokens, spec.missing_ids)
    logits = jnp.where(known, logits, -jnp.inf)
    token_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys.reshape(-1), step)
    uniform = jax.vmap(jax.random.uniform)(token_keys)
    tokens, log_probs = draw(logits.reshape(-1, logits.shape[-1]), uniform, spec.sampler)
    tokens, log_probs = tokens.reshape(keys.shape), log_probs.reshape(keys.shape)

    old = state.responses
    running = ~old.stopped
    responses = Responses(
        tokens=old.tokens.at[..., step].set(jnp.where(running, tokens, 0)),
        log_probs=old.log_probs.at[..., step].set(jnp.where(running, log_probs, 0.0)),
        lengths=old.lengths + running,
        stopped=old.stopped | jnp.isin(tokens, jnp.asarray(spec.stop_ids, jnp.int32)),
    )
    return dataclasses.replace(state, newest=tokens, responses=responses)


def _write(cache: jax.Array, new: jax.Array, *, at: jax.Array) -> jax.Array:
    """Put one position `[L, P, G, kv_heads, D]` into the cache at position `at`."""
    update = constrain(new[..., None, :].astype(cache.dtype), *CACHE_AXES)
    return jax.lax.dynamic_update_slice_in_dim(cache, update, at, axis=4)
