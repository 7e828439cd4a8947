"""What the decoder's slots and growing cache are worth: python benchmarks/refill.py [--shape smol].

Two tables, of one machine and one run each, A B A B:

- refill: 256 prompts whose answers end after a random number of tokens, in slots that waiting
  prompts take, against as many at a time until the last of them has ended (static batches).
- limit: answers of at most 64 tokens where the limit is 64 and where it is 1,024.

No answer is looked at, so weights are random but for one: with the last norm's weights at 0 all
tokens are equally likely, and answers of mean length m come from taking one token in m for an end
token. Lengths are then geometric, which is an exponential in whole tokens, cut at the limit; and
they follow from the keys alone, so both sides of a ratio draw the same tokens.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hacpo_jax.models import ModelConfig, init_params
from hacpo_jax.rollout import DecodeSpec, Rollouts, Sampler, answer, answer_keys

SMALL = ModelConfig(
    model_type="qwen3",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_layers=6,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    max_position_embeddings=2048,
    qk_norm=True,
)
SHAPES = {
    "small": SMALL,
    "smol": dataclasses.replace(
        SMALL,
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
    ),
}
PROMPT_TOKENS, ROWS = 32, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--samples", type=int, default=1, help="answers to each prompt")
    parser.add_argument("--mean", type=int, default=64, help="mean length of answers")
    parser.add_argument("--cut", type=int, default=512, help="longest answer")
    parser.add_argument("--times", type=int, default=2, help="runs of each side")
    parser.add_argument("--only", choices=("refill", "limit"))
    given = parser.parse_args()
    model = SHAPES[given.shape]
    weights = random_weights(model)
    print(f"{given.shape}: {ROWS} answers at once, prompts of {PROMPT_TOKENS} tokens")
    print("| what | tokens | seconds, best | tokens/s | ratio |")
    print("|---|---|---|---|---|")
    if given.only != "limit":
        prompts = random_prompts(model, given.prompts)
        spec = spec_of(model, given.mean, given.cut)
        keys = answer_keys(0, [0], 0, range(len(prompts)), given.samples)
        at_once = ROWS // given.samples

        def static() -> list[Rollouts]:
            return [
                answer(
                    weights, prompts[i : i + at_once], keys[:, i : i + at_once], spec, max_rows=ROWS
                )
                for i in range(0, len(prompts), at_once)
            ]

        def refilled() -> list[Rollouts]:
            return [answer(weights, prompts, keys, spec, max_rows=ROWS)]

        compare({"static batches": static, "refilled slots": refilled}, given.times)
    if given.only != "refill":
        prompts, seed = random_prompts(model, ROWS), seed_of_64(model)
        keys = answer_keys(seed, [0], 0, range(ROWS), 1)

        def limited(limit: int) -> Callable[[], list[Rollouts]]:
            spec = spec_of(model, 16, limit)
            return lambda: [answer(weights, prompts, keys, spec, max_rows=ROWS)]

        compare({"limit 1,024": limited(1024), "limit 64": limited(64)}, given.times)


def random_weights(model: ModelConfig):
    params = init_params(model, jax.random.key(0))
    params["final_norm"] = jnp.zeros_like(params["final_norm"])
    return jax.tree.map(lambda x: x[None], params)


def random_prompts(model: ModelConfig, count: int) -> list[list[int]]:
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (count, PROMPT_TOKENS))
    return tokens.tolist()


def spec_of(model: ModelConfig, mean: int, longest: int) -> DecodeSpec:
    """Every `mean`-th token ends an answer."""
    return DecodeSpec(
        model=model,
        sampler=Sampler(1.0),
        max_new_tokens=longest,
        stop_ids=tuple(range(0, model.vocab_size, mean)),
        num_tokens=model.vocab_size,
        dtype=jnp.dtype("float32"),
        for_cpu=jax.default_backend() == "cpu",
    )


def seed_of_64(model: ModelConfig) -> int:
    """The first seed with which the longest of 32 answers has from 56 to 64 tokens."""

    @jax.jit
    def longest(keys: jax.Array) -> jax.Array:
        def token(key: jax.Array, place: jax.Array) -> jax.Array:
            uniform = jax.random.uniform(jax.random.fold_in(key, place))
            return (uniform * model.vocab_size).astype(jnp.int32)

        tokens = jax.vmap(lambda key: jax.vmap(lambda t: token(key, t))(jnp.arange(128)))(keys)
        return (jnp.argmax(tokens % 16 == 0, axis=1) + 1).max()

    for seed in range(1000):
        if 56 <= int(longest(answer_keys(seed, [0], 0, range(ROWS), 1).ravel())) <= 64:
            return seed
    raise AssertionError("no seed will do")


def compare(sides: dict[str, Callable[[], list[Rollouts]]], times: int) -> None:
    """One row for each side, A B A B; the last against the first."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    drawn = {name: side() for name, side in sides.items()}  # compiles
    lengths = {
        name: np.concatenate([each.lengths for each in found], axis=1)
        for name, found in drawn.items()
    }
    first, *_ = lengths.values()
    for name, others in lengths.items():
        assert np.array_equal(others, first), name
    for _ in range(times):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - start)
    base = min(next(iter(seconds.values())))
    total = int(first.sum())
    told = f"(answers: mean {first.mean():.0f}, longest {first.max()})"
    for name, each in seconds.items():
        best = min(each)
        cells = (
            f"{name} {told}",
            total,
            f"{best:.2f}",
            f"{total / best:.0f}",
            f"{base / best:.2f}",
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
