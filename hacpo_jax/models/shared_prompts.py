"""Whole answers after prompts that several of them share.

A row holds some prompts and the answers to them side by side, `[prompts · S + answers · T]`
tokens, so that all that a layer does to each token alone is done to a prompt once. Only attention
knows what belongs together: each answer sees its own prompt and itself. Gradients flow back into
the prompt through its keys and values, from all of its answers.

With `xla` the queries of answers alone meet the keys of prompt and answer. The fused kernels know
squares only, so there each answer's row is attended whole, and what comes out for its copy of the
prompt is thrown away: attention is as dear as without sharing, everything else is not.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hacpo_jax.models.again import computed_again
from hacpo_jax.models.attention import answer_attention, layer_windows
from hacpo_jax.models.flash_attention import AttentionKind, layer_attention

Attention = Callable[[jax.Array, jax.Array, jax.Array, Any], jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers with the prompts that they share, in one policy's tokens.

    Args:
      prompts: `[R, P, S]` int32, padded on the left.
      prompt_lengths: `[R, P]` int32, at least 1.
      responses: `[R, N, T]` int32, padded on the right.
      response_lengths: `[R, N]` int32; 0 for an answer that must not count.
      prompt_of: `[R, N]` int32, which of its row's P prompts each answer is to.
    """

    prompts: jax.Array
    prompt_lengths: jax.Array
    responses: jax.Array
    response_lengths: jax.Array
    prompt_of: jax.Array

    @property
    def mask(self) -> jax.Array:
        """`[R, N, T]` bool, True at response tokens, from the lengths alone."""
        return jnp.arange(self.responses.shape[-1]) < self.response_lengths[..., None]

    @property
    def starts(self) -> jax.Array:
        """`[R, P]` place of each prompt's first token."""
        return self.prompts.shape[-1] - self.prompt_lengths

    @property
    def prompt_valid(self) -> jax.Array:
        """`[R, P, S]` bool, True at prompts' tokens."""
        return jnp.arange(self.prompts.shape[-1]) >= self.starts[..., None]

    @property
    def prompt_positions(self) -> jax.Array:
        """`[R, P, S]` int32, counted from each prompt's first token."""
        return jnp.maximum(jnp.arange(self.prompts.shape[-1]) - self.starts[..., None], 0)

    @property
    def positions(self) -> jax.Array:
        """`[R, N, T]` int32, counted from the first token of the answer's prompt."""
        lengths = of_answers(self.prompt_lengths, self.prompt_of)
        return lengths[..., None] + jnp.arange(self.responses.shape[-1])


def of_answers(per_prompt: jax.Array, prompt_of: jax.Array) -> jax.Array:
    """`[R, P, ...]` as `[R, N, ...]`: what each answer's prompt has, given `[R, N]` which it is."""

    def take(values: jax.Array, places: jax.Array) -> jax.Array:
        return values.at[places].get(mode="promise_in_bounds")

    return jax.vmap(take)(per_prompt, prompt_of)


def side_by_side(prompts: jax.Array, answers: jax.Array) -> jax.Array:
    """`[R, P, S, ...]` and `[R, N, T, ...]` as `[R, P · S + N · T, ...]`."""
    parts = [x.reshape(x.shape[0], -1, *x.shape[3:]) for x in (prompts, answers)]
    return jnp.concatenate(parts, axis=1)


def apart(x: jax.Array, answers: Answers) -> tuple[jax.Array, jax.Array]:
    """What `side_by_side` has put together, as it was."""
    rows, count, width = answers.prompts.shape
    split, more = count * width, x.shape[2:]
    prompts = x[:, :split].reshape(rows, count, width, *more)
    return prompts, x[:, split:].reshape(*answers.responses.shape, *more)


def states_before(x: jax.Array, answers: Answers) -> jax.Array:
    """`[R, N, T, H]`, the state that predicts each token of the answers, from all of them."""
    prompts, states = apart(x, answers)
    first = of_answers(prompts[:, :, -1], answers.prompt_of)[:, :, None]
    return jnp.concatenate([first, states[:, :, :-1]], axis=2)


def shared_attention(
    kind: AttentionKind, windows: tuple[int | None, ...], answers: Answers
) -> tuple[Any, Attention]:
    """How each layer attends over prompts and answers side by side.

    Args:
      kind: which implementation.
      windows: as in `ModelConfig`.
      answers: the rows.

    Returns:
      What layers differ in, a tree of `[L]` arrays; and the attention of one layer, called with
      q `[R, P · S + N · T, heads, head_dim]`, k and v likewise, and the layer's elements of the
      former. It returns the shape of q; padding is finite but meaningless.
    """
    valid, positions = _flat(answers.prompt_valid), _flat(answers.prompt_positions)
    of_prompts, attend_prompts = _whole_rows(kind, windows, positions, valid)
    attend: Callable
    if kind == "xla":
        longest = answers.prompts.shape[-1] + answers.responses.shape[-1]
        of_rest, attend = layer_windows(windows, longest), _plain(answers)
    else:
        valid, positions = (
            _flat(jnp.concatenate([of_answers(x, answers.prompt_of), y], axis=2))
            for x, y in (
                (answers.prompt_valid, answers.mask),
                (answers.prompt_positions, answers.positions),
            )
        )
        of_rest, whole = _whole_rows(kind, windows, positions, valid)
        attend = _fused(answers, whole)

    def one_layer(q, k, v, layer):
        prompts, rest = zip(*(apart(x, answers) for x in (q, k, v)), strict=True)
        flat_q, flat_k, flat_v = map(_flat, prompts)
        out = attend_prompts(flat_q, flat_k, flat_v, layer[0]).reshape(prompts[0].shape)
        return side_by_side(out, attend(prompts, rest, layer[1]))

    return (of_prompts, of_rest), one_layer


def _plain(answers: Answers):
    """Answers' queries over the keys of their prompts and their own."""
    prompt_of = answers.prompt_of
    valid = _flat(of_answers(answers.prompt_valid, prompt_of))

    def attend(prompts, rest, window):
        _, *shared = prompts
        keys, values = (_flat(of_answers(x, prompt_of)) for x in shared)
        q, k, v = map(_flat, rest)
        out = answer_attention(q, k, v, keys, values, valid, window)
        return out.reshape(rest[0].shape)

    # The weights grow with the square of the tokens.
    return computed_again(attend)


def _fused(answers: Answers, whole: Attention):
    """Answers as rows of their own, each with a copy of its prompt."""
    width = answers.prompts.shape[-1]

    def attend(prompts, rest, branch):
        q, k, v = (
            _flat(jnp.concatenate([of_answers(x, answers.prompt_of), y], axis=2))
            for x, y in zip(prompts, rest, strict=True)
        )
        return whole(q, k, v, branch)[:, width:].reshape(rest[0].shape)

    return attend


def _whole_rows(kind: AttentionKind, windows, positions: jax.Array, valid: jax.Array):
    """As `layer_attention`, for rows with padding on the left whatever the kernel knows."""
    if kind != "cudnn":
        return layer_attention(kind, windows, positions, valid)
    # It knows lengths only, so every row is turned to begin with its first token.
    length = valid.shape[1]
    starts, places = valid.argmax(axis=1)[:, None], jnp.arange(length)
    there, back = (places + starts) % length, (places - starts) % length  # [B, T]
    positions, valid = (jnp.take_along_axis(x, there, axis=1) for x in (positions, valid))
    layers, attend = layer_attention(kind, windows, positions, valid)

    def turned(q, k, v, branch):
        q, k, v = (turn(x, there) for x in (q, k, v))
        return turn(attend(q, k, v, branch), back)

    return layers, turned


def turn(x: jax.Array, places: jax.Array) -> jax.Array:
    """`x` `[B, T, ...]` with the tokens of each row taken from its `places` `[B, T]`."""

    def one(row: jax.Array, places: jax.Array) -> jax.Array:
        # Unique, so that the backward pass adds nothing up.
        return row.at[places].get(mode="promise_in_bounds", unique_indices=True)

    return jax.vmap(one)(x, places)


def _flat(x: jax.Array) -> jax.Array:
    """`[R, N, ...]` as `[R · N, ...]`: in this order each device keeps the rows that it has."""
    return x.reshape(-1, *x.shape[2:])
