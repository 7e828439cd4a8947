"""Which process this is, from flags and from what clusters set."""

import sys

import pytest

from hacpo_jax.errors import UserError
from hacpo_jax.parallel.cluster import Flags, Place, find_place

CLUSTERS = ("HACPO_", "SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "JOB_COMPLETION", "CUDA_", "JAX_COO")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    import os

    for name in os.environ:
        if name.startswith(CLUSTERS):
            monkeypatch.delenv(name)


def place(flags: Flags | None = None) -> Place:
    return find_place(flags or Flags(), 1.0)


def test_without_flags_and_cluster_there_is_one_process():
    assert place() == Place("", 1, 0)


@pytest.mark.parametrize(
    ("address", "count", "index"),
    [("10.0.0.1:1234", 2, 1), ("node-7.local:65535", 4, 0), ("[::1]:1", 3, 2)],
)
def test_flags_are_taken(address, count, index):
    assert place(Flags(address, count, index)) == Place(address, count, index)


def test_flags_of_a_single_process_start_nothing():
    assert place(Flags("10.0.0.1:1234", 1, 0)) == Place()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (Flags("h:1", 2, 2), "--process = 2: must be from 0 to 1"),
        (Flags("h:1", 2, -1), "--process = -1: must be from 0 to 1"),
        (Flags("h:1", 0, 0), "--processes = 0: must be 1 or more"),
        (Flags(None, 2, 1), "--coordinator: is missing"),
        (Flags("h:1", None, 1), "--processes: is missing"),
        (Flags("h:1", 2, None), "--process: is missing"),
        (Flags("h", 2, 1), "--coordinator = 'h': must be HOST:PORT"),
        (Flags(":1", 2, 1), "--coordinator = ':1': must be HOST:PORT"),
        (Flags("::1", 2, 1), "--coordinator = '::1': must be HOST:PORT"),
        (Flags("h:", 2, 1), "--coordinator = 'h:': the port"),
        (Flags("h:0", 2, 1), "--coordinator = 'h:0': the port"),
        (Flags("h:65536", 2, 1), "--coordinator = 'h:65536': the port"),
        (Flags("h:x", 2, 1), "--coordinator = 'h:x': the port"),
    ],
)
def test_flags_that_do_not_fit_are_named(flags, said):
    with pytest.raises(UserError) as caught:
        place(flags)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("own", ["HACPO_PROCESS", "JOB_COMPLETION_INDEX"])
def test_pods_of_a_jobset_of_gpu_hosts_are_told_by_variables(monkeypatch, own):
    monkeypatch.setenv("HACPO_COORDINATOR", "run-workers-0-0.run:8482")
    monkeypatch.setenv("HACPO_PROCESSES", "3")
    monkeypatch.setenv(own, "2")
    assert place() == Place("run-workers-0-0.run:8482", 3, 2)
    assert place(Flags("h:1", 2, 0)) == Place("h:1", 2, 0)  # flags win


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HACPO_PROCESSES": "2", "HACPO_PROCESS": "0"}, "HACPO_COORDINATOR: is missing"),
        ({"HACPO_COORDINATOR": "h:1", "HACPO_PROCESS": "0"}, "HACPO_PROCESSES: is missing"),
        (
            {"HACPO_COORDINATOR": "h:1", "HACPO_PROCESSES": "2"},
            "HACPO_PROCESS or JOB_COMPLETION_INDEX: is missing",
        ),
        (
            {"HACPO_COORDINATOR": "h:1", "HACPO_PROCESSES": "2", "HACPO_PROCESS": "first"},
            "HACPO_PROCESS = 'first': must be a whole number",
        ),
    ],
)
def test_variables_that_do_not_fit_are_named(monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        place()
    assert str(caught.value).startswith(said)


def slurm(monkeypatch, *, tasks: int, nodes: int, rank: int, local: int) -> None:
    variables = {
        "SLURM_JOB_ID": "4097",
        "SLURM_STEP_NODELIST": "gpu[07-08],other1",
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_a_task_for_each_node_has_all_devices(monkeypatch):
    slurm(monkeypatch, tasks=2, nodes=2, rank=1, local=0)
    # The port is the job's number modulo 4096, in the highest 4096.
    assert place() == Place(f"gpu07:{65536 - 4096 + 1}", 2, 1, None)


def test_a_task_for_each_gpu_has_one_of_them(monkeypatch):
    slurm(monkeypatch, tasks=4, nodes=2, rank=3, local=1)
    assert place().local_devices == (1,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert place().local_devices == (1,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # SLURM shows it no other
    assert place().local_devices is None


def test_a_single_slurm_task_is_alone(monkeypatch):
    slurm(monkeypatch, tasks=1, nodes=1, rank=0, local=0)
    assert place() == Place()


def test_hosts_of_a_tpu_slice_on_gke_are_found(monkeypatch):
    from jax._src.clusters import cloud_tpu_cluster

    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    for name, value in {
        "TPU_WORKER_HOSTNAMES": "localhost,second,third",
        "TPU_WORKER_ID": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "",
        "MEGASCALE_NUM_SLICES": "1",
        "MEGASCALE_SLICE_ID": "0",
    }.items():
        monkeypatch.setenv(name, value)
    assert place() == Place("localhost:8482", 3, 2)


def test_flags_need_no_jax():
    import subprocess

    program = (
        "import sys; from hacpo_jax.parallel.cluster import *;"
        "find_place(Flags('h:1', 2, 1), 1.0); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
