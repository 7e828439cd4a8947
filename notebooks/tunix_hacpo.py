"""HACPO in Tunix: a Qwen3 and a Llama with different tokenizers learn to count together.

    python -m venv .tunix && .tunix/bin/pip install google-tunix==0.1.7 chex
    .tunix/bin/pip install --no-deps -e .
    JAX_PLATFORMS=cpu .tunix/bin/python notebooks/tunix_hacpo.py

An environment of its own, because google-tunix 0.1.7 wants safetensors < 0.8 and the rest of
hacpo_jax wants a newer one; `hacpo_jax.objectives` needs neither. What to take into your own code
is in `tunix_losses.py`; here it is compared with Tunix's own losses, and used.
"""

import concurrent.futures
import functools
import os

os.environ.setdefault("TQDM_DISABLE", "1")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3 import model as llama3
from tunix.models.qwen3 import model as qwen3
from tunix.rl import function_registry, rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix_losses import Exchange, HacpoConfig, HacpoLearner, answer_log_probs

PAD, END = 0, 1


# 1. Two tiny agents of different families and tokenizers.
class Tokenizer:
    """Pieces of text; at each place the longest that fits is taken."""

    def __init__(self, pieces: list[str]):
        self.pieces = ["", "", *pieces]  # nothing is shown of padding and of the end
        self.ids = {piece: i for i, piece in enumerate(self.pieces) if piece}

    def encode(self, text: str, **_) -> list[int]:
        ids = []
        while text:
            piece = max(filter(text.startswith, self.ids), key=len)
            ids.append(self.ids[piece])
            text = text[len(piece) :]
        return ids

    def decode(self, ids: list[int], **_) -> str:
        return "".join(self.pieces[i] for i in ids)

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return END

    def pad_id(self) -> int:
        return PAD


def never_pads(family: type[nnx.Module]) -> type[nnx.Module]:
    """A model that never says PAD, which Tunix would take for padding."""

    class Model(family):
        @functools.wraps(family.__call__)
        def __call__(self, *args, **kwargs):
            logits, cache = super().__call__(*args, **kwargs)
            return logits.at[..., PAD].set(-1e9), cache

    return Model


SHAPE = {"num_layers": 1, "embed_dim": 32, "hidden_dim": 64, "num_heads": 2, "head_dim": 16}
SHAPE |= {"num_kv_heads": 1, "rope_theta": 10_000, "norm_eps": 1e-6}
DIGITS = [str(i) for i in range(10)]
FAMILIES = {
    "qwen3": (never_pads(qwen3.Qwen3), qwen3.ModelConfig, Tokenizer(DIGITS)),
    "llama3": (
        never_pads(llama3.Llama3),
        llama3.ModelConfig,
        Tokenizer(["12", "56", "90", *reversed(DIGITS)]),
    ),
}


def tiny_model(family: str, seed: int = 0) -> nnx.Module:
    """A model of one layer with random weights (Tunix starts its MLPs at 0)."""
    kind, config, tokenizer = FAMILIES[family]
    sizes = config(vocab_size=len(tokenizer.pieces), **SHAPE)
    graph, state = nnx.split(kind(sizes, rngs=nnx.Rngs(params=seed)))
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [
        x if x.ndim < 2 else 0.1 * jax.random.normal(key, x.shape)
        for x, key in zip(leaves, keys, strict=True)
    ]
    return nnx.merge(graph, jax.tree.unflatten(tree, drawn))


def tiny_cluster(family: str, steps: int) -> rl_cluster.RLCluster:
    """One agent's model, sampler and optimizer."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adam(5e-3),
            eval_every_n_steps=10**9,
            max_steps=steps,
            mini_batch_size=len(DIGITS),
            train_micro_batch_size=len(DIGITS),
        ),
        rollout_config=RolloutConfig(
            max_tokens_to_generate=4,
            max_prompt_length=2,
            kv_cache_size=8,
            temperature=1.0,
            top_p=1.0,
            top_k=None,
        ),
    )
    return rl_cluster.RLCluster(
        actor=tiny_model(family), tokenizer=FAMILIES[family][-1], cluster_config=config
    )


def reward(prompts: list[str], completions: list[str], **_) -> list[float]:
    """Share of the next four digits after the prompt, 9 being followed by 0, that are right."""
    wanted = ["".join(DIGITS[(int(p) + i) % 10] for i in range(1, 5)) for p in prompts]
    return [
        sum(map(str.__eq__, text, right)) / max(len(text), 4)
        for text, right in zip(completions, wanted, strict=True)
    ]


def train(steps: int = 40, group: int = 16) -> list[HacpoLearner]:
    """Trains both agents together; returns their learners."""
    exchange, learners = Exchange(len(FAMILIES)), []
    for agent, family in enumerate(FAMILIES):
        config = HacpoConfig(
            agent=agent, num_agents=len(FAMILIES), num_generations=group, clip_low=0.5
        )
        cluster = tiny_cluster(family, steps)
        learner = HacpoLearner(
            exchange=exchange, algo_config=config, rl_cluster=cluster, reward_fns=reward
        )
        learners.append(learner)

    def run(learner):
        try:
            learner.train([{"prompts": np.array(DIGITS)}] * steps)
        except BaseException:
            exchange.barrier.abort()  # the others would wait for ever
            raise

    with concurrent.futures.ThreadPoolExecutor(len(learners)) as pool:
        for future in concurrent.futures.as_completed([pool.submit(run, x) for x in learners]):
            future.result()
    return learners


# 2. Tunix's own losses and ours on equal inputs.
def equal_inputs() -> tuple[nnx.Module, TrainExample]:
    """A model, and answers of 0 to 6 tokens with ratios on all sides of the clip."""
    model, rng = tiny_model("qwen3", seed=1), np.random.default_rng(0)
    prompts, answers = rng.integers(2, 2 + len(DIGITS), (8, 3)), rng.integers(2, 12, (8, 6))
    lengths = np.array([6, 1, 3, 0, 5, 2, 4, 6])
    answers[np.arange(6) >= lengths[:, None]] = PAD
    prompts[::2, 0] = PAD
    example = TrainExample(
        prompt_ids=jnp.array(prompts),
        prompt_mask=jnp.array(prompts != PAD),
        completion_ids=jnp.array(answers),
        completion_mask=jnp.array(answers != PAD),
        advantages=jnp.array(rng.normal(size=8), jnp.float32),
        ref_per_token_logps=None,
        old_per_token_logps=None,
    )
    log_probs = answer_log_probs(model, example, comparison_config("grpo"), PAD, END)
    old, reference = log_probs + rng.normal(0, 0.3, (2, *log_probs.shape)).astype(np.float32)
    return model, example.replace(old_per_token_logps=old, ref_per_token_logps=reference)


def comparison_config(
    loss_algo: str, loss_agg_mode: str = "sequence-mean-token-mean", beta: float = 0.0
) -> GRPOConfig:
    """Tunix's settings that define what our losses do."""
    config = GRPOConfig(
        loss_algo=loss_algo, loss_agg_mode=loss_agg_mode, beta=beta, kl_loss_mode="low_var_kl"
    )
    config.temperature = 1.0
    # GSPO's usual bounds, 3e-4 and 4e-4, would leave none of the inputs above inside.
    config.epsilon, config.epsilon_high = (0.2, 0.28) if loss_algo == "grpo" else (0.05, 0.08)
    return config


def loss_and_gradient(
    name: str, model: nnx.Module, example: TrainExample, config: GRPOConfig
) -> tuple[float, np.ndarray]:
    """A registered loss and its gradient as a flat vector."""
    policy_loss = function_registry.get_policy_loss_fn(name)

    @nnx.jit
    def compute(model, example):
        def loss(model):
            return policy_loss(model, example, algo_config=config, pad_id=PAD, eos_id=END)[0]

        return nnx.value_and_grad(loss)(model)

    value, gradient = compute(model, example)
    return float(value), np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)])


COMPARISONS = {
    "grpo, mean over answers": ("grpo", "sequence-mean-token-mean", 0.04),
    "grpo, mean over tokens": ("grpo", "token-mean", 0.0),
    "gspo": ("gspo-token", "sequence-mean-token-mean", 0.04),
}


def compare(title: str) -> tuple[tuple[float, np.ndarray], tuple[float, np.ndarray]]:
    """Tunix's own loss and gradient, and ours."""
    config = comparison_config(*COMPARISONS[title])
    names = "grpo", f"hacpo_jax/{config.loss_algo[:4]}"
    theirs, ours = (loss_and_gradient(name, *equal_inputs(), config) for name in names)
    return theirs, ours


if __name__ == "__main__":
    print("                             Tunix        ours   largest gradient, difference")
    for title in COMPARISONS:
        (their_loss, theirs), (our_loss, ours) = compare(title)
        gap = np.abs(theirs - ours).max()
        print(
            f"{title:24}  {their_loss:.6f}   {our_loss:.6f}   {np.abs(theirs).max():.4f} {gap:.1e}"
        )
    learners = train()
    print("step   reward      ratio of peer's answers, share that teaches    (qwen3, llama3)")
    names = "ratio/1", "ratio/0", *["cross_gradient_fraction"] * 2
    logs = [learner.rl_cluster.actor_trainer.metrics_logger for learner in [*learners, *learners]]
    metrics = [x.get_metric_history("actor", n, "train") for x, n in zip(logs, names, strict=True)]
    for step, row in enumerate(zip(learners[0].mean_rewards, *metrics, strict=True)):
        if step % 5 == 4 or step == 0:
            (a, b), c, d, e, f = row
            print(f"{step + 1:4}   {a:.2f} {b:.2f}   {c:.2f} {d:.2f}   {e:4.0%} {f:4.0%}")
