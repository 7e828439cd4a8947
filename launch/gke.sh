#!/usr/bin/env bash
# Starts a run as a JobSet on GKE: launch/gke.sh tpu|gpu [--dry-run] [word ...]
# The words are those of `python -m hacpo_jax.launch`. Fills launch/gke_tpu.yaml or gke_gpu.yaml and
# gives it to kubectl; --dry-run prints it, with the command, instead.
#
# Required: JOB_NAME; IMAGE, a container image with the project installed for the accelerator;
# VOLUME_CLAIM, a claim that all pods can mount for writing: it is /runs, where run_dir belongs.
# tpu: TPU_ACCELERATOR (e.g. tpu-v5-lite-podslice), TPU_TOPOLOGY (e.g. 4x4), CHIPS_PER_HOST (e.g. 4).
# gpu: HOSTS, GPU_ACCELERATOR (e.g. nvidia-h100-80gb), GPUS_PER_HOST.
# Optional: NAMESPACE (default), RESTARTS (3), after each of which a run goes on from its checkpoint.
set -euo pipefail
# shellcheck source=launch/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"

help_first "$@"
kind=${1:-}
case $kind in
tpu | gpu) ;;
*) fail "'$kind': the first word must be tpu or gpu; see launch/gke.sh --help" ;;
esac
take_dry_run "${@:2}"

label='[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?'
number='[1-9][0-9]*'
# With the parts that Kubernetes adds, the name of a pod may have 63 letters.
need JOB_NAME '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' \
    "must be at most 40 lower-case letters, digits and -"
need IMAGE '[A-Za-z0-9][A-Za-z0-9./:@_-]*' "must be a container image, e.g. REGION-docker.pkg.dev/..."
need VOLUME_CLAIM "$label" "must be a PersistentVolumeClaim of access mode ReadWriteMany"
may NAMESPACE "$label" "must be a namespace of the cluster"
may RESTARTS '[0-9]+' "must be a number"
NAMESPACE=${NAMESPACE:-default}
RESTARTS=${RESTARTS:-3}
names=(JOB_NAME IMAGE VOLUME_CLAIM NAMESPACE RESTARTS HOSTS)
if [[ $kind == tpu ]]; then
    need TPU_ACCELERATOR "$label" "must be a value of cloud.google.com/gke-tpu-accelerator"
    need TPU_TOPOLOGY '[1-9][0-9]*(x[1-9][0-9]*){1,2}' "must be sizes of a slice, e.g. 4x4"
    need CHIPS_PER_HOST "$number" "must be the number of chips of a machine of the node pool, e.g. 4"
    chips=$((${TPU_TOPOLOGY//x/ * }))
    ((chips % CHIPS_PER_HOST == 0)) ||
        fail "CHIPS_PER_HOST = '$CHIPS_PER_HOST': must divide the $chips chips of $TPU_TOPOLOGY"
    # shellcheck disable=SC2034  # read by its name below
    HOSTS=$((chips / CHIPS_PER_HOST))
    names+=(TPU_ACCELERATOR TPU_TOPOLOGY CHIPS_PER_HOST)
else
    need HOSTS "$number" "must be the number of machines, e.g. 2"
    need GPU_ACCELERATOR "$label" "must be a value of cloud.google.com/gke-accelerator"
    need GPUS_PER_HOST "$number" "must be the number of GPUs of each machine, e.g. 8"
    names+=(GPU_ACCELERATOR GPUS_PER_HOST)
fi
check_words "${words[@]}"
need_program kubectl "install it, then gcloud container clusters get-credentials"

# The words as a list in YAML; Kubernetes reads $(NAME) in them unless the $ is doubled.
arguments=''
for word in "${words[@]}"; do
    word=${word//\\/\\\\}
    word=${word//\"/\\\"}
    word=${word//\$(/\$\$(}
    arguments+="${arguments:+, }\"$word\""
done

manifest=$(<"$launch_dir/gke_$kind.yaml")
for name in "${names[@]}"; do
    manifest=${manifest//"@$name@"/"${!name}"}
done
manifest=${manifest//"@WORDS@"/"[$arguments]"}

if [[ $dry_run == 1 ]]; then
    printf '%s\n' "$manifest"
    printf '# kubectl apply --filename=-\n'
else
    kubectl apply --filename=- <<<"$manifest"
    printf 'logs: kubectl logs --namespace=%s --follow job/%s-workers-0\n' \
        "$NAMESPACE" "$JOB_NAME" >&2
    printf 'end: kubectl delete jobset --namespace=%s %s\n' "$NAMESPACE" "$JOB_NAME" >&2
fi
