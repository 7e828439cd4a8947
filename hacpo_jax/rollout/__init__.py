"""Rollouts: a jitted decoder that shares prompts between samples."""

from hacpo_jax.rollout.buckets import bucket
from hacpo_jax.rollout.decode import DecodeSpec, Responses, decode
from hacpo_jax.rollout.engine import Chunk, Rollouts, answer, answer_keys, chunk_of, pad_left
from hacpo_jax.rollout.sampling import Sampler, draw, truncate

__all__ = [
    "Chunk",
    "DecodeSpec",
    "Responses",
    "Rollouts",
    "Sampler",
    "answer",
    "answer_keys",
    "bucket",
    "chunk_of",
    "decode",
    "draw",
    "pad_left",
    "truncate",
]
