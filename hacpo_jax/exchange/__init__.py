"""What agents share: typed records (SEE) and each other's responses in one's own tokens (THL)."""

from hacpo_jax.exchange.align import AlignmentReport, align_log_probs, alignment_report
from hacpo_jax.exchange.records import (
    Exchange,
    Outcome,
    Rollout,
    Scalar,
    Trace,
    read_jsonl,
    write_jsonl,
)
from hacpo_jax.exchange.reencode import (
    DriftReport,
    drift,
    reencode,
    response_texts,
    token_spans,
    transfer_trace,
)

__all__ = [
    "AlignmentReport",
    "DriftReport",
    "Exchange",
    "Outcome",
    "Rollout",
    "Scalar",
    "Trace",
    "align_log_probs",
    "alignment_report",
    "drift",
    "read_jsonl",
    "reencode",
    "response_texts",
    "token_spans",
    "transfer_trace",
    "write_jsonl",
]
