"""The programs that answer prompts: prefill once per prompt, then token by token in segments.

Prompts lie in N slots, each with its G answers. Between two segments the host may put waiting
prompts into slots whose answers have ended (see `hacpo_jax.rollout.engine`).

Generated tokens' keys and values lie in a ring: in every step all rows write to one place, that of
the oldest token, so a step writes as cheaply as if all had begun together. What a row sees is told
by age: of the W places of the ring the newest, as many as its answer has tokens. The ring is
widened, from a few widths in turn, when the longest running answer fills it.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from hacpo_jax.models import AttentionKind, Decoder, ModelConfig, bind, gathered
from hacpo_jax.models.by_layer import for_loop, layers_apart
from hacpo_jax.models.lora import agent_axes
from hacpo_jax.parallel.rules import Axes, constrain, num_shards, over_agents
from hacpo_jax.rollout.ring import Cache, apart, as_read, axes_of, width_of, write
from hacpo_jax.rollout.sampling import Sampler, draw, known_ids

SEGMENT = 64
"""Tokens of an answer that one run of `decode` draws at most."""

ROW_AXES: Axes = ("agents", "rows")
"""Of what there is of every answer, `[A, N, G, ...]`."""


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
      for_cpu: compute further tokens as a CPU does fastest, see `hacpo_jax.rollout.ring`;
        compiling takes longer then the more layers there are.
    """

    model: ModelConfig
    sampler: Sampler
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    num_tokens: int
    dtype: jnp.dtype
    missing_ids: tuple[int, ...] = ()
    attention: AttentionKind = "xla"
    for_cpu: bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prompts:
    """What N slots hold of their prompts; an answer's end changes nothing of it.

    Args:
      cache: of N rows, once for the G answers to a prompt.
      lengths: `[N]` int32, real tokens of each prompt, at the right end of S.
      key_data: `[A, N, G, 2]` uint32, one PRNG key per answer.
    """

    cache: Cache
    lengths: jax.Array
    key_data: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Where the answers in N slots are; those in one slot began together.

    Args:
      newest: `[A, N, G]` int32, the token drawn last, which is not in the ring yet.
      stopped: `[A, N, G]` bool, whether that token ended the answer; True in an empty slot.
      drawn: `[N]` int32, tokens of the longest answer in the slot.
    """

    newest: jax.Array
    stopped: jax.Array
    drawn: jax.Array

    def running(self, spec: DecodeSpec) -> jax.Array:
        """bool `[A, N, G]`, the answers that another token is drawn for."""
        return ~self.stopped & (self.drawn < spec.max_new_tokens)[:, None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drawn:
    """Tokens added to the answers in N slots, at most T to each.

    Args:
      tokens: `[A, N, G, T]` int32, the end token included; 0 after the end.
      log_probs: `[A, N, G, T]` float32 under the tempered policy; 0 after the end.
      counts: `[A, N, G]` int32, how many.
      stopped: `[A, N, G]` bool, answers that have come to their end token.
    """

    tokens: jax.Array
    log_probs: jax.Array
    counts: jax.Array
    stopped: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Progress:
    """What the host decides by; whole on every device, so that all processes decide alike.

    Args:
      steps: int32, how many steps a segment has taken.
      drawn: `[N]`, see `Rows`.
      running: bool `[N]`, slots with an answer that has not ended.
    """

    steps: jax.Array
    drawn: jax.Array
    running: jax.Array


@functools.partial(jax.jit, static_argnames="spec")
def gather_weights(params, *, spec: DecodeSpec):
    """Parameters `[A, ...]` as the other programs want them; see `hacpo_jax.models.gathered`."""
    return gathered(spec.model, params, spec.dtype)


@functools.partial(jax.jit, static_argnames="spec")
def weights_apart(weights, *, spec: DecodeSpec):
    """Weights of each layer as `decode` wants them for a CPU; see `hacpo_jax.models.by_layer`."""
    return layers_apart(spec.model, weights)


@functools.partial(jax.jit, static_argnames="spec")
def prefill(
    weights,
    prompts: jax.Array,
    lengths: jax.Array,
    key_data: jax.Array,
    active: jax.Array,
    *,
    spec: DecodeSpec,
) -> tuple[Prompts, Rows, Drawn]:
    """Read N prompts and draw the first token of every answer.

    Args:
      weights: of the agents, `[A, ...]` each, from `gather_weights`.
      prompts: `[N, S]` int32, padded on the left; any id in range at padding.
      lengths: `[N]` int32, real tokens of each prompt, at least 1.
      key_data: `[A, N, G, 2]`, see `Prompts`.
      active: `[N]`, False for fillers, whose answers end at once with length 0.
      spec: what is static.
    """
    valid = _valid(prompts.shape[1], lengths)
    positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)

    def one_agent(weights, key_data):
        model = bind(spec.model, weights)
        hidden, cache = model.prefill(
            prompts, positions, valid, dtype=spec.dtype, attention=spec.attention
        )
        first = jnp.zeros(lengths.shape, jnp.int32)
        return *_draw_next(model, hidden[:, -1:], key_data, first, spec), cache

    axes = agent_axes(weights)
    tokens, log_probs, cache = over_agents(one_agent, (axes, 0), (0, 0, 1))(weights, key_data)
    cache = jax.tree.map(lambda x: constrain(x, *axes_of(x)), cache)
    real = jnp.broadcast_to(active[:, None], tokens.shape)
    stopped = real & _stops(tokens, spec)
    drawn = Drawn(
        tokens=jnp.where(real, tokens, 0)[..., None],
        log_probs=jnp.where(real, log_probs, 0.0)[..., None],
        counts=real.astype(jnp.int32),
        stopped=stopped,
    )
    rows = Rows(tokens, stopped | ~real, jnp.ones_like(lengths))
    laid_cache = apart(cache) if spec.for_cpu else cache
    return Prompts(laid_cache, lengths, key_data), _laid_rows(rows), _laid(drawn)


@functools.partial(jax.jit, donate_argnames=("prompts", "rows"))
def enter(
    prompts: Prompts, rows: Rows, new: tuple[Prompts, Rows], slots: jax.Array
) -> tuple[Prompts, Rows]:
    """Put n prompts that `prefill` has read into slots of others, whose answers have ended.

    Both N slots and n prompts are divided over the mesh, as all rows are; each part of the mesh
    takes its own prompts into its own slots, so nothing moves.

    Args:
      prompts: of N slots.
      rows: of N slots.
      new: the same of n.
      slots: `[n]` int32, number of the slot within its part of the mesh; N for none.
    """
    parts = num_shards("rows", rows.drawn.shape[0])
    slots = slots.reshape(parts, -1)

    def put(old: jax.Array, new: jax.Array, axes: Axes) -> jax.Array:
        at = axes.index("rows")

        def split(x: jax.Array) -> jax.Array:
            x = x.reshape(*x.shape[:at], parts, -1, *x.shape[at + 1 :])
            return constrain(x, *axes[: at + 1], None, *axes[at + 1 :])

        def one_part(old: jax.Array, new: jax.Array, slots: jax.Array) -> jax.Array:
            places = (*[slice(None)] * at, slots)
            return old.at[places].set(new, mode="drop", unique_indices=True)

        over_parts = jax.vmap(one_part, in_axes=(at, at, 0), out_axes=at)
        return constrain(over_parts(split(old), split(new), slots).reshape(old.shape), *axes)

    def put_cached(old: jax.Array, new: jax.Array) -> jax.Array:
        return put(old, new, axes_of(old))

    new_prompts, new_rows = new
    entered = Prompts(
        cache=jax.tree.map(put_cached, prompts.cache, new_prompts.cache),
        lengths=put(prompts.lengths, new_prompts.lengths, ("rows",)),
        key_data=put(prompts.key_data, new_prompts.key_data, ROW_AXES),
    )
    return entered, Rows(
        newest=put(rows.newest, new_rows.newest, ROW_AXES),
        stopped=put(rows.stopped, new_rows.stopped, ROW_AXES),
        drawn=put(rows.drawn, new_rows.drawn, ("rows",)),
    )


@functools.partial(jax.jit, static_argnames="spec", donate_argnames=("rows", "ring"))
def decode(
    weights,
    layers: list | None,
    prompts: Prompts,
    rows: Rows,
    ring: Cache,
    at: jax.Array,
    steps: jax.Array,
    enough: jax.Array,
    *,
    spec: DecodeSpec,
) -> tuple[Rows, Cache, Drawn, Progress]:
    """Draw further tokens of every answer that has not ended.

    The loop runs once per token, until the answers have ended in all slots, or in `enough` of them
    for others to enter. A row's draws come from its own key and its own position, never from its
    place in the batch. The loop stands outside the `vmap` over agents: a vmapped loop would copy
    the whole ring every step to hold back the agents that are done.

    Args:
      weights: of the agents, `[A, ...]` each, from `gather_weights`.
      layers: those of each layer where `spec` is for a CPU, from `weights_apart`; else None.
      prompts: of N slots.
      rows: of N slots.
      ring: keys and values of W generated tokens of N · G rows.
      at: the place in the ring where the first new token is written.
      steps: at most so many tokens, at most `SEGMENT` and what the ring has room for.
      enough: return when the answers in so many slots have ended.
      spec: what is static.
    """
    width, valid = width_of(ring), _valid(width_of(prompts.cache), prompts.lengths)
    weights, weight_axes = for_loop(weights, layers)
    cache_axis = 1 if layers is None else 0
    in_axes = (*weight_axes, cache_axis, cache_axis, 0, 0, None, None)
    out_axes = (0, 0, cache_axis)

    def one_agent(weights, layers, prompt_cache, ring, key_data, newest, drawn, ages):
        model, generated = bind(spec.model, weights), drawn - 1  # the newest is not in the ring
        positions = jnp.broadcast_to((prompts.lengths + generated)[:, None], newest.shape)
        caches = (as_read(prompt_cache), valid, as_read(ring), ages, generated)
        hidden, new = model.decode(newest, positions, *caches, dtype=spec.dtype, layers=layers)
        return *_draw_next(model, hidden, key_data, drawn, spec), new

    def slots(rows: Rows) -> jax.Array:
        return rows.running(spec).any(axis=(0, 2))  # [N]

    begun = slots(rows)

    def unfinished(carry: tuple[jax.Array, Rows, Cache, Drawn]) -> jax.Array:
        step, rows, _, _ = carry
        running = slots(rows)
        return (step < steps) & running.any() & ((begun & ~running).sum() < enough)

    def body(carry: tuple[jax.Array, Rows, Cache, Drawn]):
        step, rows, ring, old = carry
        ages = (at + step - 1 - jnp.arange(width)) % width
        tokens, log_probs, new = over_agents(one_agent, in_axes, out_axes)(
            weights, layers, prompts.cache, ring, prompts.key_data, rows.newest, rows.drawn, ages
        )
        ring = write(ring, new, (at + step) % width, tokens)
        running = rows.running(spec)
        stopped = rows.stopped | (running & _stops(tokens, spec))
        drawn = Drawn(
            tokens=old.tokens.at[..., step].set(jnp.where(running, tokens, 0)),
            log_probs=old.log_probs.at[..., step].set(jnp.where(running, log_probs, 0.0)),
            counts=old.counts + running,
            stopped=old.stopped | (running & stopped),
        )
        return step + 1, Rows(tokens, stopped, rows.drawn + slots(rows)), ring, drawn

    room = (*rows.newest.shape, SEGMENT)
    nothing = Drawn(
        tokens=jnp.zeros(room, jnp.int32),
        log_probs=jnp.zeros(room, jnp.float32),
        counts=jnp.zeros(room[:-1], jnp.int32),
        stopped=jnp.zeros(room[:-1], bool),
    )
    start = (jnp.zeros((), jnp.int32), rows, ring, _laid(nothing))
    step, rows, ring, drawn = jax.lax.while_loop(unfinished, body, start)
    told = Progress(step, constrain(rows.drawn), constrain(slots(rows)))
    return _laid_rows(rows), ring, _laid(drawn), told


def _valid(width: int, lengths: jax.Array) -> jax.Array:
    """bool `[N, width]`, False at the padding on the left."""
    return jnp.arange(width) >= width - lengths[:, None]


def _laid(tree):
    """Arrays `[A, N, ...]` as rows lie on the mesh, so that every segment is given them alike."""
    return jax.tree.map(lambda x: constrain(x, *ROW_AXES), tree)


def _laid_rows(rows: Rows) -> Rows:
    return Rows(_laid(rows.newest), _laid(rows.stopped), constrain(rows.drawn, "rows"))


def _stops(tokens: jax.Array, spec: DecodeSpec) -> jax.Array:
    return jnp.isin(tokens, jnp.asarray(spec.stop_ids, jnp.int32))


def _draw_next(
    model: Decoder, hidden: jax.Array, key_data: jax.Array, places: jax.Array, spec: DecodeSpec
) -> tuple[jax.Array, jax.Array]:
    """The next token of every answer and its log-prob, `[N, G]` each.

    Args:
      model: of one agent.
      hidden: `[N, G, H]`, or `[N, 1, H]` where the answers to a prompt have it in common.
      key_data: `[N, G, 2]`.
      places: `[N]`, the token's number in its answer.
      spec: what is static.
    """
    table, shape = model.unembedding().astype(spec.dtype), key_data.shape[:-1]
    known = known_ids(table.shape[0], spec.num_tokens, spec.missing_ids)
    if spec.for_cpu:  # the table on the left, as a CPU is fastest
        axis, rows = 0, hidden.reshape(-1, hidden.shape[-1])
        logits = jnp.einsum("vh,nh->vn", table, rows, preferred_element_type=jnp.float32)
        logits = jnp.where(known[:, None], constrain(logits, "vocab", "rows"), -jnp.inf)
        logits = jnp.repeat(logits, shape[1] // hidden.shape[1], axis=1)
    else:
        axis = 1
        logits = jnp.einsum("ngh,vh->ngv", hidden, table, preferred_element_type=jnp.float32)
        logits = jnp.where(known, constrain(logits, "rows", None, "vocab"), -jnp.inf)
        logits = jnp.broadcast_to(logits, (*shape, len(known))).reshape(-1, len(known))

    def uniform(key_data: jax.Array, place: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(key_data), place))

    numbers = jax.vmap(jax.vmap(uniform, in_axes=(0, None)))(key_data, places)
    tokens, log_probs = draw(logits, numbers.ravel(), spec.sampler, axis)
    return tokens.reshape(shape), log_probs.reshape(shape)
