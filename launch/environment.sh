# Sourced by the scripts beside it: finds a Python, makes `.venv`, installs the project into it.
# shellcheck shell=bash

# shellcheck source=launch/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"
venv_python=$root/.venv/bin/python

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints the first Python that is recent enough; PYTHON names one.
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && is_recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed and was not found." \
        "On Debian 12 or newer: sudo apt install python3 python3-venv." \
        "Elsewhere set PYTHON to one, e.g. PYTHON=/opt/python3.12/bin/python3"
}

# Leaves a working `.venv` in the repository.
make_venv() {
    local python venv_package='On Debian: sudo apt install python3-venv'
    if [[ ! -e $root/.venv ]]; then
        python=$(find_python)
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python has no venv module. $venv_package"
        printf 'making %s with %s\n' "$root/.venv" "$python" >&2
        "$python" -m venv "$root/.venv"
    fi
    is_recent "$venv_python" ||
        fail "$root/.venv has no Python of 3.11 or newer that works; remove it to have it made anew"
    if ! "$venv_python" -m pip --version >/dev/null 2>&1; then
        "$venv_python" -m ensurepip >&2 || fail "$root/.venv has no pip. $venv_package"
    fi
}

# install_project EXTRAS: installs the project with these extras, unless it is installed as it stands.
install_project() {
    local extras=$1 stamp content
    stamp=$root/.venv/.installed-${extras//,/-}
    content=$root$'\n'$(cat "$root/pyproject.toml")
    if [[ -f $stamp && $(cat "$stamp") == "$content" ]]; then
        return
    fi
    printf 'installing hacpo-jax%s; the first time takes minutes\n' "${extras:+ with $extras}" >&2
    "$venv_python" -m pip install --disable-pip-version-check --editable "$root${extras:+[$extras]}" >&2
    printf '%s\n' "$content" >"$stamp"
}

# The accelerator that HACPO_EXTRA names: nothing (CPU), cuda or tpu.
accelerator=${HACPO_EXTRA:-}
case $accelerator in
'' | cuda | tpu) ;;
*) fail "HACPO_EXTRA = '$accelerator': must be empty (CPU), cuda or tpu" ;;
esac

# Unless this environment is for an accelerator: the test extras bring a compiler for TPUs, which JAX
# would take for one.
use_cpu_by_default() {
    local stamps=$root/.venv/.installed
    if [[ -z $accelerator && ! -e $stamps-cuda && ! -e $stamps-tpu ]]; then
        export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
    fi
}
