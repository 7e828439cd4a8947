"""Config of the agents: which models, which tokenizers, how each is optimised."""

import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from hacpo_jax.config.algorithm import Algorithm
from hacpo_jax.config.base import Section
from hacpo_jax.config.mesh import Mesh


class NewModel(Section):
    """A model made from scratch with random weights.

    Attributes:
      family: whose architecture it has.
      hidden_size: width of the residual stream.
      intermediate_size: width of the gated MLP.
      num_layers: number of layers.
      num_heads: query heads.
      num_kv_heads: key and value heads; divides `num_heads`.
      head_dim: size of one head; even.
      max_position_embeddings: the longest sequence in tokens.
      rope_theta: base of the rotary frequencies.
      tie_word_embeddings: the output head is the embedding.
    """

    family: Literal["llama", "qwen2", "qwen3"]
    hidden_size: int = Field(ge=2)
    intermediate_size: int = Field(ge=1)
    num_layers: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    max_position_embeddings: int = Field(default=512, ge=2)
    rope_theta: float = Field(default=10_000.0, gt=0)
    tie_word_embeddings: bool = True


class NewTokenizer(Section):
    """A tokenizer made from the task's own training text.

    Attributes:
      kind: `bpe` (byte-level, trained), `characters` (those seen, bytes for the rest) or `bytes`.
      vocab_size: ids of a `bpe` tokenizer, its 256 bytes and the end token included.
    """

    kind: Literal["bpe", "characters", "bytes"]
    vocab_size: int = Field(default=320, ge=258)


def _is_mapping(value: Any) -> str:
    return "<path>" if isinstance(value, str) else "<new>"


class Optimizer(Section):
    """AdamW (arXiv 1711.05101) with float32 masters.

    Attributes:
      learning_rate: peak step size.
      schedule: after warm-up `constant`, or `linear` or `cosine` down to 0 after the last update.
      warmup_updates: updates in which the step size still grows.
      beta1: decay of the mean of gradients.
      beta2: decay of the mean of squared gradients.
      eps: added to the root of the latter.
      weight_decay: decoupled, on matrices only (norms and biases are left alone).
      max_grad_norm: the gradient's global norm is scaled down to this.
    """

    learning_rate: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: int = Field(default=0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)


class Lora(Section):
    """Low-rank adapters (LoRA, arXiv 2106.09685) are trained and the model stays as it is.

    Attributes:
      rank: inner size of every adapter.
      alpha: an adapter's product is multiplied with `alpha / rank`.
      targets: which weights have one.
    """

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    targets: tuple[Literal["q", "k", "v", "o", "gate", "up", "down"], ...] = Field(
        default=("q", "k", "v", "o", "gate", "up", "down"), min_length=1
    )

    @field_validator("targets")
    @classmethod
    def _once_each(cls, targets):
        if len(set(targets)) < len(targets):
            raise ValueError(f"names a weight twice; write {[*dict.fromkeys(targets)]}")
        return targets


class WarmStart(Section):
    """Supervised training on the task's solutions before reinforcement learning.

    Attributes:
      steps: at most this many updates.
      batch_size: examples in one update.
      learning_rate: of AdamW, with a short warm-up.
      until_accuracy: stop once this greedy accuracy on training problems is reached; null never.
      check_every: updates between two looks at that accuracy.
      check_problems: training problems in one look.
    """

    steps: int = Field(ge=1)
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    until_accuracy: float | None = Field(default=None, gt=0, le=1)
    check_every: int = Field(default=25, ge=1)
    check_problems: int = Field(default=128, ge=1)


class Agent(Section):
    """One policy.

    Attributes:
      name: unique; used in metrics, checkpoints and exports.
      model: a Hugging Face directory, a hub id, or the shape of a new model.
      tokenizer: a directory, a hub id, or a tokenizer to be made; null takes the model's own.
      chat: prompts go through the tokenizer's chat template; null does so when it has one.
      chat_options: what names in that template stand for, such as `{enable_thinking: false}` for
        Qwen3.
      optimizer: keys that differ from the top-level `optimizer`.
      algorithm: keys that differ from the top-level `algorithm`: agents may learn in different
        ways from the same answers.
      mesh: keys that differ from the top-level `mesh`.
      lora: train adapters only, which are merged on export; null trains all parameters. Agents
        that adapt one directory share its weights, and those are the frozen start of a KL penalty.
      warm_start: supervised training first, if any.
    """

    name: str
    model: Annotated[
        Annotated[str, Tag("<path>")] | Annotated[NewModel, Tag("<new>")],
        Discriminator(_is_mapping),
    ]
    tokenizer: (
        Annotated[
            Annotated[str, Tag("<path>")] | Annotated[NewTokenizer, Tag("<new>")],
            Discriminator(_is_mapping),
        ]
        | None
    ) = None
    chat: bool | None = None
    chat_options: dict[str, Any] = Field(default={})
    optimizer: Optimizer = Optimizer()
    algorithm: Algorithm = Algorithm()
    mesh: Mesh = Mesh()
    lora: Lora | None = None
    warm_start: WarmStart | None = None

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(
                "must be letters, digits, dots, dashes and underscores, the first a letter or a "
                "digit, such as qwen3-4b"
            )
        return name
