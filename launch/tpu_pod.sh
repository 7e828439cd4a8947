#!/usr/bin/env bash
# Trains on a slice of Cloud TPU, one host or many:
#   launch/tpu_pod.sh create [--dry-run]            asks for the slice and waits until it is there
#   launch/tpu_pod.sh run [--dry-run] [word ...]    copies the project to all hosts and starts it
#   launch/tpu_pod.sh delete [--dry-run]            gives the slice back
# The words are those of `python -m hacpo_jax.launch`; JAX finds the hosts of a slice by itself.
#
# TPU_NAME and ZONE are required, for create also ACCELERATOR_TYPE (e.g. v5litepod-16) and
# RUNTIME_VERSION (e.g. v2-alpha-tpuv5-lite). PROJECT names another project than gcloud's own, SPOT=1
# asks for capacity that may be taken away, WAIT_MINUTES (60) is how long create waits.
# --dry-run prints the commands.
set -euo pipefail
# shellcheck source=launch/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"

help_first "$@"
action=${1:-}
case $action in
create | run | delete) ;;
*) fail "'$action': the first word must be create, run or delete; see launch/tpu_pod.sh --help" ;;
esac
take_dry_run "${@:2}"
[[ $action == run || ${#words[@]} == 0 ]] || fail "'${words[0]}': $action takes no words"

need TPU_NAME '[a-z]([-a-z0-9]{0,61}[a-z0-9])?' "must be a name of lower-case letters, digits and -"
need ZONE '[a-z]+-[a-z]+[0-9]+-[a-z]' "must be a zone that has such TPUs, e.g. us-central2-b"
may PROJECT '[a-z][-a-z0-9:.]*' "must be the id of a Google Cloud project"
if [[ $action == create ]]; then
    need ACCELERATOR_TYPE 'v[0-9][a-z0-9]*-[1-9][0-9]*' "must be kind and size, e.g. v5litepod-16"
    need RUNTIME_VERSION '[a-z0-9][-a-z0-9.]*' "must be a TPU software version, e.g. v2-alpha-tpuv5-lite"
    may SPOT '[01]' "must be 0 or 1"
    may WAIT_MINUTES '[1-9][0-9]*' "must be a number of minutes"
fi
check_words "${words[@]}"
need_program gcloud "install the Google Cloud CLI, then gcloud auth login"
if [[ $dry_run == 0 && -z ${PROJECT:-} ]]; then
    [[ -n $(gcloud config get-value project 2>/dev/null || true) ]] ||
        fail "PROJECT is not set, and gcloud has none of its own: set it to the id of the Google" \
            "Cloud project of the slice, or run gcloud config set project ID"
fi
place=(--zone="$ZONE" ${PROJECT:+--project="$PROJECT"})

wait_until_active() {
    local state end=$((SECONDS + 60 * ${WAIT_MINUTES:-60}))
    local describe=(gcloud compute tpus queued-resources describe "$TPU_NAME" "${place[@]}"
        '--format=value(state.state)')
    if [[ $dry_run == 1 ]]; then
        call "${describe[@]}"
        return
    fi
    while state=$("${describe[@]}"); do
        case $state in
        ACTIVE) return ;;
        FAILED | SUSPENDED | SUSPENDING | DELETING)
            fail "TPU_NAME = '$TPU_NAME': the request is $state; launch/tpu_pod.sh delete removes it"
            ;;
        esac
        ((SECONDS < end)) ||
            fail "TPU_NAME = '$TPU_NAME': still $state after ${WAIT_MINUTES:-60} minutes; it stays" \
                "in the queue: set WAIT_MINUTES, or remove it with launch/tpu_pod.sh delete"
        printf '%s is %s\n' "$TPU_NAME" "$state" >&2
        sleep 20
    done
    fail "TPU_NAME = '$TPU_NAME': gcloud cannot tell its state"
}

case $action in
create)
    spot=()
    if [[ ${SPOT:-0} == 1 ]]; then
        spot=(--spot)
    fi
    state=''
    if [[ $dry_run == 0 ]]; then
        state=$(gcloud compute tpus queued-resources list "${place[@]}" \
            --filter="name~/$TPU_NAME\$" '--format=value(name)')
    fi
    if [[ -z $state ]]; then # a second call waits for what the first asked for
        call gcloud compute tpus queued-resources create "$TPU_NAME" --node-id="$TPU_NAME" \
            "${place[@]}" --accelerator-type="$ACCELERATOR_TYPE" \
            --runtime-version="$RUNTIME_VERSION" "${spot[@]}"
    fi
    wait_until_active
    ;;
run)
    vm=(gcloud compute tpus tpu-vm)
    start="HACPO_EXTRA=tpu bash hacpo-jax/launch/quickstart.sh"
    call "${vm[@]}" ssh "$TPU_NAME" "${place[@]}" --worker=all \
        --command="rm -rf hacpo-jax/hacpo_jax hacpo-jax/launch && mkdir -p hacpo-jax"
    call "${vm[@]}" scp --recurse "$root/hacpo_jax" "$root/launch" "$root/pyproject.toml" \
        "$root/README.md" "$TPU_NAME:hacpo-jax/" "${place[@]}" --worker=all
    call "${vm[@]}" ssh "$TPU_NAME" "${place[@]}" --worker=all \
        --command="$start${words[*]:+ $(quoted "${words[@]}")}"
    ;;
delete)
    call gcloud compute tpus queued-resources delete "$TPU_NAME" "${place[@]}" --force --quiet
    ;;
esac
