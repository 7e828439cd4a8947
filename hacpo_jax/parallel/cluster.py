"""Which processes a run has, and which of them this one is: from flags or from the cluster."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hacpo_jax.errors import MISSING, UserError

# Set for every process by launch/gke_gpu.yaml; there is nothing that jax could detect there.
_COORDINATOR, _PROCESSES, _PROCESS = "HACPO_COORDINATOR", "HACPO_PROCESSES", "HACPO_PROCESS"
# Kubernetes gives it to the pods of an indexed job, those of a JobSet included.
_POD = "JOB_COMPLETION_INDEX"
_ALL_OR_NONE = "--coordinator HOST:PORT, --processes N and --process I belong together"


@dataclass(frozen=True)
class Flags:
    """What the command line says about the processes of a run; all three or none.

    Args:
      coordinator: `HOST:PORT` of process 0, as the others reach it.
      processes: number of processes.
      process: which of them this is, from 0.
    """

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None


@dataclass(frozen=True)
class Place:
    """One process among those of a run.

    Args:
      coordinator: `HOST:PORT` of process 0; empty for a single process.
      count: number of processes.
      index: which of them this is, from 0.
      local_devices: ids of the devices of this machine that are this process's; None for all.
    """

    coordinator: str = ""
    count: int = 1
    index: int = 0
    local_devices: tuple[int, ...] | None = None


def find_place(flags: Flags, timeout: float) -> Place:
    """The place of this process: from flags, else from the environment, else from the cluster.

    Looked at in this order: the flags; HACPO_COORDINATOR, HACPO_PROCESSES and HACPO_PROCESS or
    JOB_COMPLETION_INDEX, which a JobSet of GPU hosts sets; then what jax knows how to read: Open
    MPI, SLURM steps, TPU node pools of GKE, TPU VMs. A process that finds none of them is alone.

    Args:
      timeout: seconds to wait for the name of a TPU slice's first host to be known.

    Raises:
      UserError: flags or variables that do not fit each other.
    """
    given = flags if flags != Flags() else _from_environment(os.environ)
    return _from_cluster(timeout) if given is None else _checked(given, flags != Flags())


def _from_environment(environment: Mapping[str, str]) -> Flags | None:
    if _COORDINATOR not in environment and _PROCESSES not in environment:
        return None
    index = environment.get(_PROCESS, environment.get(_POD))
    return Flags(
        environment.get(_COORDINATOR),
        _number(_PROCESSES, environment.get(_PROCESSES)),
        _number(_PROCESS if _PROCESS in environment else _POD, index),
    )


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UserError(name, text, "must be a whole number, such as 0 or 2")
    return int(text)


def _checked(given: Flags, from_flags: bool) -> Place:
    """The place that complete and consistent flags, or variables, describe."""
    names = ("--coordinator", "--processes", "--process")
    together = _ALL_OR_NONE
    if not from_flags:
        names = (_COORDINATOR, _PROCESSES, f"{_PROCESS} or {_POD}")
        together = f"{_COORDINATOR}, {_PROCESSES} and {_PROCESS} or {_POD} belong together"
    coordinator, processes, process = given.coordinator, given.processes, given.process
    if processes is None:
        raise UserError(names[1], MISSING, f"is missing; {together}")
    if processes < 1:
        raise UserError(names[1], processes, "must be 1 or more")
    if process is None:
        raise UserError(names[2], MISSING, f"is missing; {together}")
    if not 0 <= process < processes:
        remedy = f"must be from 0 to {processes - 1}, as there are {processes} processes"
        raise UserError(names[2], process, remedy)
    if coordinator is None:
        raise UserError(names[0], MISSING, f"is missing; {together}")
    split_address(coordinator, names[0])
    return Place(coordinator, processes, process) if processes > 1 else Place()


def split_address(address: str, name: str = "--coordinator") -> tuple[str, int]:
    """Host and port of `HOST:PORT`; a numeric IPv6 host stands in brackets.

    Raises:
      UserError: there is no host or no port from 1 to 65535.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise UserError(name, address, "must be HOST:PORT, e.g. 10.0.0.1:1234")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UserError(name, address, "the port after the last colon must be from 1 to 65535")
    return host.strip("[]"), int(port)


def _from_cluster(timeout: float) -> Place:
    from jax._src import clusters

    # jax asks in this order too. Its way for other Kubernetes pods needs a package and rights that
    # launch/gke_gpu.yaml does without.
    kinds = (
        clusters.OmpiCluster,
        clusters.SlurmCluster,
        clusters.GkeTpuCluster,
        clusters.GceTpuCluster,
    )
    kind = next((kind for kind in kinds if kind.is_env_present()), None)
    if kind is None or (count := kind.get_process_count()) == 1:
        return Place()
    port = os.environ.get("JAX_COORDINATOR_PORT")
    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS") or kind.get_coordinator_address(
        timeout_secs=int(timeout), override_coordinator_port=port
    )
    local = kind.get_local_process_id()
    devices = None if local is None else _local_devices(local, count, os.environ)
    return Place(coordinator, count, kind.get_process_id(), devices)


def _local_devices(
    local: int, count: int, environment: Mapping[str, str]
) -> tuple[int, ...] | None:
    """The devices of a process that may share its machine with others of the run.

    jax gives each process one device, also when it has a machine for itself or when SLURM has shown
    it no other device.

    Args:
      local: number of this process on its machine.
      count: number of processes of the run.
    """
    one_each = int(environment.get("SLURM_STEP_NUM_NODES", 1)) == count
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return None if one_each or (len(visible) == 1 and visible[0]) else (local,)
