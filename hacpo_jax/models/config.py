"""The shape of one decoder-only language model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pre-training.

    `longrope` has two sets of frequencies, for contexts within `original_max_position` and beyond
    it. Which of them a model uses is fixed by `ModelConfig.max_position_embeddings`, the longest
    sequence it may hold, and never by the sequence at hand: an answer that grows past the border
    would otherwise change the log-probs of its own first tokens, cached keys would disagree with a
    full pass, and a row would depend on the others in its batch. So sampler and trainer agree by
    construction, and every log-prob is a function of what precedes the token.

    Args:
      kind: `linear` (all frequencies divided by `factor`), `llama3` (low frequencies divided, high
        ones kept, a smooth step between) or `longrope` (each divided by its own number,
        arXiv 2402.13753).
      factor: how many times longer the context became.
      low_freq_factor: `llama3` only; wavelengths above original/low_freq_factor are stretched.
      high_freq_factor: `llama3` only; wavelengths below original/high_freq_factor are kept.
      original_max_position: `llama3` and `longrope`; tokens of context in pre-training.
      max_position: `longrope` only; tokens of context with the long divisors.
      short_factors: `longrope` only; divisors of the frequencies, `[rotary_dim / 2]`, for contexts
        of at most `original_max_position` tokens.
      long_factors: `longrope` only; divisors for longer ones.
      attention_factor: `longrope` only; what cosines and sines are multiplied with; if None,
        sqrt(1 + ln(factor) / ln(original_max_position)).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    max_position: int = 0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float | None = None


@dataclasses.dataclass(frozen=True)
class Lora:
    """Low-rank adapters (arXiv 2106.09685); see `hacpo_jax.models.lora`.

    Args:
      rank: inner size of every adapter.
      alpha: an adapter's product is multiplied with `alpha / rank`.
      targets: which weights have one: of `q`, `k`, `v`, `o`, `gate`, `up` and `down`.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def scale(self) -> float:
        """What an adapter's product is multiplied with."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the mathematics of a decoder; hashable, so it can be a jit constant.

    Args:
      model_type: the Hugging Face family: `llama`, `mistral`, `ministral`, `qwen2`, `qwen3` or
        `phi3`.
      vocab_size: rows of the embedding; may exceed what the tokenizer knows.
      hidden_size: width of the residual stream.
      intermediate_size: width of the gated MLP.
      num_layers: number of decoder layers.
      num_heads: query heads.
      num_kv_heads: key and value heads; divides `num_heads`.
      head_dim: size of one head; need not be `hidden_size / num_heads`.
      max_position_embeddings: the longest sequence, prompt and response together, in tokens; with
        `longrope` the original context, or the extended one where the run needs it.
      rope_theta: base of the rotary frequencies.
      rope_scaling: stretching of the rotary frequencies, if any.
      partial_rotary_factor: share of each head that is rotated (Phi-4-mini).
      rms_norm_eps: added to the mean square in every norm.
      windows: for each layer, how many tokens attention sees, the token itself included; None for
        all of them. Empty where no layer has a window.
      qkv_bias: query, key and value projections have a bias (Qwen2).
      output_bias: the attention output projection has a bias (Llama with `attention_bias`).
      mlp_bias: the MLP projections have a bias.
      qk_norm: queries and keys are normalised per head before the rotation (Qwen3).
      tie_word_embeddings: the output head is the embedding.
      lora: adapters, if any; not part of the model's files.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0
    rms_norm_eps: float = 1e-6
    windows: tuple[int | None, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = True
    lora: Lora | None = None

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of each head are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)
