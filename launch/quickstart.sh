#!/usr/bin/env bash
# Installs hacpo-jax into .venv when needed and runs it: launch/quickstart.sh [word ...]
# The words are those of `python -m hacpo_jax.launch`, of which `train --help` tells more; without
# any, the built-in quickstart. HACPO_EXTRA=cuda or tpu installs JAX for that accelerator.
set -euo pipefail
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

help_first "$@"
make_venv
install_project "$accelerator"
use_cpu_by_default
exec "$venv_python" -m hacpo_jax.launch "$@"
