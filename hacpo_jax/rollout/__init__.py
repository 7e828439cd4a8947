"""Rollouts: a jitted decoder that shares prompts between samples, and slots that prompts take."""

from hacpo_jax.rollout.buckets import bucket, fitting_width, ring_widths
from hacpo_jax.rollout.decode import DecodeSpec
from hacpo_jax.rollout.engine import Chunk, answer, answer_keys, chunk_of
from hacpo_jax.rollout.jobs import Rollouts, pad_left
from hacpo_jax.rollout.sampling import Sampler, draw, truncate
from hacpo_jax.rollout.schedule import Entering, Schedule

__all__ = [
    "Chunk",
    "DecodeSpec",
    "Entering",
    "Rollouts",
    "Sampler",
    "Schedule",
    "answer",
    "answer_keys",
    "bucket",
    "chunk_of",
    "draw",
    "fitting_width",
    "pad_left",
    "ring_widths",
    "truncate",
]
