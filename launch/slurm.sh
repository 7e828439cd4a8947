#!/usr/bin/env bash
# Submits a run on GPU hosts to SLURM: launch/slurm.sh [--dry-run] [word ...]
# The words are those of `python -m hacpo_jax.launch`. Installs the project here, into .venv, which
# all nodes must see, as compute nodes often reach no package index.
#
# One task a node, which drives all of its GPUs: a task for every GPU would compile every program,
# read every tokenizer and start every verifier as many times on each node, and the processes would
# be eight times as many to keep together. It is also how TPU hosts work.
#
# NODES, GPUS_PER_NODE, CPUS_PER_NODE, TIME (e.g. 12:00:00) are required; PARTITION and ACCOUNT are
# what the cluster asks for. --dry-run prints the command and installs nothing.
set -euo pipefail
# shellcheck source=launch/variables.sh
source "$(dirname "${BASH_SOURCE[0]}")/variables.sh"

take_dry_run "$@"
name='[A-Za-z0-9_][A-Za-z0-9_.,-]*'
need NODES '[1-9][0-9]*' "must be the number of machines, e.g. 2"
need GPUS_PER_NODE '[1-9][0-9]*' "must be the number of GPUs of each machine, e.g. 8"
need CPUS_PER_NODE '[1-9][0-9]*' "must be the number of CPU cores to use on each machine, e.g. 64"
need TIME '([0-9]+-)?[0-9]+(:[0-9]+){0,2}' "must be a time limit as sbatch reads it, e.g. 12:00:00"
may PARTITION "$name" "must be a partition that sinfo lists"
may ACCOUNT "$name" "must be an account that you may use"
check_words "${words[@]}"
need_program sbatch "run this where SLURM's commands are, on a login node"

if [[ $dry_run == 0 ]]; then
    HACPO_EXTRA=cuda
    # shellcheck source=launch/environment.sh
    source "$launch_dir/environment.sh"
    make_venv
    install_project cuda
fi
# A task that ends badly ends the step, should its own word not reach the others.
step=(srun --kill-on-bad-exit=1 --cpus-per-task="$CPUS_PER_NODE"
    "$root/.venv/bin/python" -m hacpo_jax.launch "${words[@]}")
call sbatch --job-name=hacpo --nodes="$NODES" --ntasks-per-node=1 \
    --gpus-per-node="$GPUS_PER_NODE" --cpus-per-task="$CPUS_PER_NODE" --time="$TIME" \
    ${PARTITION:+--partition="$PARTITION"} ${ACCOUNT:+--account="$ACCOUNT"} \
    --output=hacpo-%j.log --wrap="$(quoted "${step[@]}")"
