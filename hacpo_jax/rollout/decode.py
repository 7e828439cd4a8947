"""One jitted loop that answers prompts: prefill once per prompt, then token by token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from hacpo_jax.models import AttentionKind, Decoder, KeyValues, ModelConfig, bind, gathered
from hacpo_jax.models.lora import agent_axes
from hacpo_jax.parallel.rules import constrain, over_agents
from hacpo_jax.rollout.sampling import Sampler, draw, known_ids

CACHE_AXES = (None, "agents", "rows", None, "kv_heads")
"""Of keys and values of generated tokens, `[L, A, P, G, kv_heads, C, D]`.

Agents come second: a scan over layers would else move them there, and copy the whole cache in every
step."""


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

    axes, cache_axis = agent_axes(params), 1
    states, prompt_cache = over_agents(prefill, (axes, 0), (0, cache_axis))(params, keys)

    def advance(params, prompt_cache, cache, keys, state: _State, step) -> tuple[_State, KeyValues]:
        model, generated = bind(spec.model, params), step - 1  # the newest token is not cached yet
        positions = prompt_lengths[:, None] + generated
        hidden, new = model.decode(
            state.newest, positions, prompt_cache, valid, cache, generated, dtype=spec.dtype
        )
        return _draw_next(model, hidden, state, keys, step, spec), new

    def body(carry: tuple[jax.Array, _State, KeyValues]) -> tuple[jax.Array, _State, KeyValues]:
        step, states, cache = carry
        in_axes = (axes, cache_axis, cache_axis, 0, 0, None)
        advanced = over_agents(advance, in_axes, (0, cache_axis))
        states, new = advanced(params, prompt_cache, cache, keys, states, step)
        write = functools.partial(_write, at=step - 1)
        return step + 1, states, jax.tree.map(write, cache, new)

    def unfinished(carry: tuple[jax.Array, _State, KeyValues]) -> jax.Array:
        step, states, _ = carry
        return (step < spec.max_new_tokens) & ~states.responses.stopped.all()

    start = (jnp.ones((), jnp.int32), states, _empty_cache(spec, keys.shape))
    _, states, _ = jax.lax.while_loop(unfinished, body, start)
    answers = states.responses
    return dataclasses.replace(answers, stopped=answers.stopped & active[:, None])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
    """One agent's answers so far; filler rows count as stopped."""

    newest: jax.Array  # [P, G]
    responses: Responses  # without the agent axis


def _empty_cache(spec: DecodeSpec, shape: tuple[int, ...]) -> KeyValues:
    """For answers `[A, P, G]`."""
    c = spec.model
    # The last token is drawn but never attended to, hence C - 1 positions.
    room = (c.num_layers, *shape, c.num_kv_heads, max(spec.max_new_tokens - 1, 1), c.head_dim)
    empty = constrain(jnp.zeros(room, spec.dtype), *CACHE_AXES)
    return KeyValues(empty, empty)


def _start(spec: DecodeSpec, shape: tuple[int, ...], active: jax.Array) -> _State:
    return _State(
        newest=jnp.zeros(shape, jnp.int32),
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
    """Put one position `[L, A, P, G, kv_heads, D]` into the cache at position `at`."""
    update = constrain(new[..., None, :].astype(cache.dtype), *CACHE_AXES)
    return jax.lax.dynamic_update_slice_in_dim(cache, update, at, axis=5)
