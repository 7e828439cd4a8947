"""The shape of one decoder-only language model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pre-training.

    Args:
      kind: `linear` (all frequencies divided by `factor`) or `llama3` (low frequencies divided,
        high ones kept, a smooth step between).
      factor: how many times longer the context became.
      low_freq_factor: `llama3` only; wavelengths above original/low_freq_factor are stretched.
      high_freq_factor: `llama3` only; wavelengths below original/high_freq_factor are kept.
      original_max_position: `llama3` only; tokens of context in pre-training.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the mathematics of a decoder; hashable, so it can be a jit constant.

    Args:
      model_type: the Hugging Face family: `llama`, `qwen2` or `qwen3`.
      vocab_size: rows of the embedding; may exceed what the tokenizer knows.
      hidden_size: width of the residual stream.
      intermediate_size: width of the gated MLP.
      num_layers: number of decoder layers.
      num_heads: query heads.
      num_kv_heads: key and value heads; divides `num_heads`.
      head_dim: size of one head; need not be `hidden_size / num_heads`.
      max_position_embeddings: the longest sequence, prompt and response together, in tokens.
      rope_theta: base of the rotary frequencies.
      rope_scaling: stretching of the rotary frequencies, if any.
      rms_norm_eps: added to the mean square in every norm.
      qkv_bias: query, key and value projections have a bias (Qwen2).
      output_bias: the attention output projection has a bias (Llama with `attention_bias`).
      mlp_bias: the MLP projections have a bias.
      qk_norm: queries and keys are normalised per head before the rotation (Qwen3).
      tie_word_embeddings: the output head is the embedding.
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
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = True
