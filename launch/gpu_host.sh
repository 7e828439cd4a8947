#!/usr/bin/env bash
# Trains on the GPUs of this machine: launch/gpu_host.sh [--dry-run] [word ...]
# The words are those of `python -m hacpo_jax.launch`. One process drives all GPUs: JAX shards over
# them without a second process, and tokenizers, verifiers and compiled programs are there once.
# GPUS=0,2 takes some of them only. --dry-run prints the command.
set -euo pipefail
# shellcheck source=launch/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"

take_dry_run "$@"
may GPUS '[0-9]+(,[0-9]+)*' "must be numbers of GPUs as nvidia-smi --list-gpus has them, e.g. 0,1"
need_program nvidia-smi "is the NVIDIA driver installed? Without a GPU use launch/quickstart.sh"
if [[ $dry_run == 0 ]]; then
    count=$(nvidia-smi --list-gpus | grep -c '^GPU ') || fail "nvidia-smi finds no GPU"
    for gpu in ${GPUS//,/ }; do
        ((10#$gpu < count)) || fail "GPUS = '$GPUS': there are $count GPUs, numbered from 0"
    done
fi
environment=(HACPO_EXTRA=cuda)
if [[ -n ${GPUS:-} ]]; then
    environment+=("CUDA_VISIBLE_DEVICES=$GPUS")
fi
call env "${environment[@]}" bash "$launch_dir/quickstart.sh" "${words[@]}"
