"""Reports of runs: one page, and pictures."""

from hacpo_jax.report.ensemble import Band, Ensemble, ensembles
from hacpo_jax.report.run_log import RunLog, read_log
from hacpo_jax.report.write import write_report

__all__ = ["Band", "Ensemble", "RunLog", "ensembles", "read_log", "write_report"]
