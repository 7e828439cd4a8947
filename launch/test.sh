#!/usr/bin/env bash
# Tests the project: launch/test.sh [word ...]
# Installs hacpo-jax with its test tools into .venv when needed, then runs the linters of Python and
# of scripts, the formatter's check, the type check, and pytest with the given words.
# The tests compare with transformers' own models where torch is installed: HACPO_TORCH names the
# requirement (a CPU build is enough; empty installs none). All tests pass without it.
set -euo pipefail
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

help_first "$@"
make_venv
install_project "test${accelerator:+,$accelerator}"
has_torch() {
    "$venv_python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'
}
torch=${HACPO_TORCH-torch==2.13.0}
if [[ -n $torch ]] && ! has_torch; then
    "$venv_python" -m pip install --disable-pip-version-check "$torch" >&2 ||
        printf 'warning: %s cannot be installed; testing without it\n' "$torch" >&2
fi

cd "$root"
bin=$root/.venv/bin
failed=()
check() {
    printf '+ %s\n' "$*" >&2
    "$bin/$1" "${@:2}" || failed+=("$1")
}
check ruff check
check ruff format --check
check shellcheck --external-sources launch/*.sh .ci/run
check basedpyright --pythonpath "$venv_python"
if ((${#failed[@]})); then
    printf 'failed: %s; the tests run all the same\n' "${failed[*]}" >&2
fi
# Two at a time, a file in one process: what a module has compiled stays its own. In the order of
# names, or the files with few tests would come last, which are the longest.
"$bin/python" -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@" || exit
exit $((${#failed[@]} > 0))
