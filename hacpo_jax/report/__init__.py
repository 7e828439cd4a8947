"""Plots of runs."""

from hacpo_jax.report.pictures import write_report
from hacpo_jax.report.run_log import RunLog, read_log

__all__ = ["RunLog", "read_log", "write_report"]
