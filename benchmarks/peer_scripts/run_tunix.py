"""Tunix's side of one row: DIR/tunix/bin/python benchmarks/peer_scripts/run_tunix.py ROW SHAPE."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import work
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.qwen3 import model as qwen3
from tunix.rl import common, rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

_PAD = 0
_DEFAULT_CACHE = RolloutConfig().kv_cache_size


class Numbers:
    """A tokenizer whose texts are ids in decimal; its end token is outside of the vocabulary."""

    def __init__(self, vocab: int):
        self._end = vocab + 1

    def encode(self, text: str, **_) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int], **_) -> str:
        return " ".join(str(int(i)) for i in ids)

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return self._end

    def pad_id(self) -> int:
        return _PAD


def main() -> None:
    given = work.arguments(__doc__)
    report = _ROWS[given.row](given)
    work.tell({"versions": f"Tunix 0.1.7, jax {jax.__version__}", **report})


def make_model(shape: work.Shape) -> nnx.Module:
    """With normal weights, since Tunix starts some of them at 0."""
    config = qwen3.ModelConfig(
        num_layers=shape.layers,
        vocab_size=shape.vocab,
        embed_dim=shape.hidden,
        hidden_dim=shape.inner,
        num_heads=shape.heads,
        head_dim=shape.head_dim,
        num_kv_heads=shape.kv_heads,
        rope_theta=1_000_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    structure, state = nnx.split(qwen3.Qwen3(config, rngs=nnx.Rngs(params=0)))
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    drawn = [
        0.02 * jax.random.normal(key, leaf.shape, jnp.float32) if leaf.ndim > 1 else leaf
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return nnx.merge(structure, jax.tree.unflatten(tree, drawn))


def texts(shape: work.Shape, count: int, tokens: int, seed: int) -> list[str]:
    """Prompts of so many tokens, none of them the filler."""
    ids = random.Random(seed)
    return [
        " ".join(str(ids.randrange(1, shape.vocab)) for _ in range(tokens)) for _ in range(count)
    ]


class Answering:
    """Answers of a fresh model, each call with another seed; log-probs are returned."""

    def __init__(self, shape: work.Shape, batch: work.Batch, cache: int):
        self.batch, self.model, self.step = batch, make_model(shape), 0
        size = CacheConfig(cache, shape.layers, shape.kv_heads, shape.head_dim)
        self.sampler = Sampler(self.model, Numbers(shape.vocab), size)
        distinct = texts(shape, batch.prompts, batch.prompt, 0)
        self.prompts = [text for text in distinct for _ in range(batch.samples)]

    def __call__(self, new: int | None = None):
        self.step += 1
        found = self.sampler(
            self.prompts,
            max_generation_steps=new or self.batch.new,
            max_prompt_length=self.batch.prompt,
            temperature=1.0,
            top_p=1.0,
            top_k=None,
            seed=self.step,
            return_logprobs=True,
        )
        assert {len(row) for row in found.tokens} == {new or self.batch.new}
        assert found.logprobs is not None
        return found


def decode(given: work.Arguments) -> dict[str, Any]:
    draw = Answering(given.shape, work.DECODE, work.DECODE.prompt + work.DECODE.new)
    draw()
    draw(1)
    return {"whole": given.timed(draw), "first": given.timed(lambda: draw(1))}


def long(given: work.Arguments) -> dict[str, Any]:
    """The default cache, which has not even room for the prompt and all of the limit."""
    draw = Answering(given.shape, work.DECODE, _DEFAULT_CACHE)
    draw()
    return {"whole": given.timed(draw)}


def prompts(given: work.Arguments) -> dict[str, Any]:
    draw = Answering(given.shape, work.PROMPTS, work.PROMPTS.prompt + work.PROMPTS.new)
    draw()
    return {"whole": given.timed(draw)}


def scoring(given: work.Arguments) -> dict[str, Any]:
    batch, ids = work.STEP, np.random.default_rng(0)
    structure, state = nnx.split(make_model(given.shape))

    def drawn(tokens: int) -> jax.Array:
        return jnp.asarray(ids.integers(1, given.shape.vocab, (batch.rows, tokens)), jnp.int32)

    prompt_tokens, completion_tokens = drawn(batch.prompt), drawn(batch.new)

    def score() -> None:
        found = common.compute_per_token_logps(
            structure,
            state,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            pad_id=_PAD,
            eos_id=given.shape.vocab + 1,
        )
        np.asarray(found)

    score()
    return {"scoring": given.timed(score)}


def step(given: work.Arguments) -> dict[str, Any]:
    batch, shape = work.STEP, given.shape
    policy, reference = make_model(shape), make_model(shape)
    roles = rl_cluster.Role
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(work.LEARNING_RATE),
        eval_every_n_steps=10**9,
        max_steps=10**9,
        mini_batch_size=batch.prompts,
        train_micro_batch_size=batch.prompts,
    )
    rollout = RolloutConfig(
        max_tokens_to_generate=batch.new,
        max_prompt_length=batch.prompt,
        kv_cache_size=batch.prompt + batch.new,
        temperature=1.0,
    )
    cluster = rl_cluster.RLCluster(
        actor=policy,
        reference=reference,
        tokenizer=Numbers(shape.vocab),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((roles.ACTOR, roles.REFERENCE, roles.ROLLOUT), mesh),
            training_config=training,
            rollout_config=rollout,
        ),
    )
    learner = GRPOLearner(
        rl_cluster=cluster,
        reward_fns=reward,
        algo_config=GRPOConfig(
            num_generations=batch.samples, beta=work.KL_COEF, epsilon=work.CLIP, num_iterations=1
        ),
    )

    def settle() -> None:
        jax.block_until_ready(nnx.state(cluster.actor_trainer.model))

    watch = Steps(given, settle)
    learner.train(watch.over({"prompts": texts(shape, batch.prompts, batch.prompt, 0)}))
    return watch.report()


def reward(prompts, completions: Sequence[str], **_) -> list[float]:
    """About half of all answers get 1."""
    return [float(sum(map(int, text.split())) % 2) for text in completions]


class Steps:
    """Times each step from one batch that the trainer asks for to the next.

    Args:
      given: how many steps count.
      settle: waits until the step before is done.
    """

    def __init__(self, given: work.Arguments, settle: Callable[[], None]):
        self.given, self.settle = given, settle
        self.found: list[dict[str, float]] = []

    def over(self, batch: dict[str, list[str]]) -> Iterator[dict[str, np.ndarray]]:
        """The same prompts again and again, until enough steps count; two warm up."""
        arrays = {name: np.array(values) for name, values in batch.items()}
        for _ in range(2):
            yield arrays
        while not self.given.enough(self.found):
            self.settle()
            with work.Watch() as watch:
                yield arrays
                self.settle()
            self.found.append(watch.found())

    def report(self) -> dict[str, Any]:
        return {"step": self.given.best(self.found), "peak_mib": work.peak_mib()}


_ROWS = {"decode": decode, "step": step, "scoring": scoring, "long": long, "prompts": prompts}

if __name__ == "__main__":
    main()
