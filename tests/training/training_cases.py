"""Answers as arrays, and the same log-probs from logits of the whole vocabulary."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from tiny import LLAMA, VOCAB

from hacpo_jax.models import Answers, bind
from hacpo_jax.training.scoring import Cut, PolicySpec

POLICY = PolicySpec(
    model=LLAMA, temperature=0.7, num_tokens=VOCAB, dtype=jnp.dtype("float32"), remat=True
)


def answers_of(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], width: int, longest: int
) -> Answers:
    """One row `[1, N, ...]`, whose padding holds arbitrary ids: masks come from lengths alone.

    Answers to the same prompt share it.
    """
    noise = np.random.default_rng(width * 100 + longest)
    distinct = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
    tokens = noise.integers(0, VOCAB, (len(distinct), width)).astype(np.int32)
    answers = noise.integers(0, VOCAB, (len(responses), longest)).astype(np.int32)
    for row, prompt in zip(tokens, distinct, strict=True):
        row[width - len(prompt) :] = prompt
    for row, response in zip(answers, responses, strict=True):
        row[: len(response)] = response
    lengths = [np.array([len(row) for row in rows], np.int32) for rows in (distinct, responses)]
    prompt_of = np.array([distinct.index(tuple(prompt)) for prompt in prompts], np.int32)
    fields = (tokens, lengths[0], answers, lengths[1], prompt_of)
    return Answers(*(x[None] for x in fields))  # type: ignore[arg-type]


def cuts_of(answers: Answers, size: int) -> list[Cut]:
    """Micro-batches of `size` answers as they come, each with all prompts of `[A, R, N, ...]`."""
    lead, total = answers.response_lengths.shape[:-1], answers.response_lengths.shape[-1]
    prompts = np.broadcast_to(
        np.arange(answers.prompts.shape[-2], dtype=np.int32), answers.prompts.shape[:-1]
    )
    cuts = []
    for start in range(0, total, size):
        places = np.arange(start, start + size, dtype=np.int32)  # beyond the end is filler
        prompt_of = np.asarray(answers.prompt_of)[..., np.minimum(places, total - 1)]
        places = np.broadcast_to(np.minimum(places, total), (*lead, size))
        width = answers.responses.shape[-1]
        cuts.append(Cut(places, prompts, prompt_of, width))  # type: ignore[arg-type]
    return cuts


@functools.partial(jax.jit, static_argnums=(3,))
def plain_log_probs(params, tokens, starts, longest):
    """Tempered log-probs and entropies `[N, T]` of `tokens[n, starts[n]:]`, from all logits.

    Rows `[N, L]` are padded on the right, with at least T tokens after each start.
    """
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    decoder = bind(LLAMA, params)
    hidden = decoder(tokens, places, places >= 0, dtype=jnp.float32)
    every = jax.nn.log_softmax(hidden @ decoder.unembedding().T / POLICY.temperature)
    columns = starts[:, None] + jnp.arange(longest)
    rows = jnp.take_along_axis(every, columns[..., None] - 1, axis=1)  # [N, T, V]
    targets = jnp.take_along_axis(tokens, columns, axis=1)
    chosen = jnp.take_along_axis(rows, targets[..., None], axis=2)[..., 0]
    return chosen, -(jnp.exp(rows) * rows).sum(axis=-1)


def plain_rows(prompts, responses, longest: int):
    """Arguments of `plain_log_probs` for these answers."""
    size = max(map(len, prompts)) + longest
    tokens = np.zeros((len(prompts), size), np.int32)
    for row, prompt, response in zip(tokens, prompts, responses, strict=True):
        row[: len(prompt) + len(response)] = [*prompt, *response]
    return tokens, np.array([len(prompt) for prompt in prompts]), longest
