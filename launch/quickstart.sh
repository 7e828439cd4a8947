#!/usr/bin/env bash
# Installs hacpo-jax into .venv when needed and runs it with the given words; without any, the
# built-in quickstart. HACPO_EXTRA=cuda or tpu installs JAX for that accelerator.
set -euo pipefail
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

make_venv
install_project "$accelerator"
exec "$venv_python" -m hacpo_jax.launch "$@"
