"""One process of tests/parallel/test_parallel_hosts.py: does what its case says."""

import json
import os
import signal
import sys
import time

from hacpo_jax.errors import HostError, UserError
from hacpo_jax.parallel.hosts import Flags, Hosts, Limits, start

LIMITS = Limits(start=60.0, heartbeat=3.0, wait=40.0)


def talk(hosts: Hosts) -> None:
    index = hosts.index
    gathered = hosts.gather("places", {"index": index, "text": f"é{index}"})
    # More than a message holds, with bytes that are no text, and of different lengths.
    large = bytes([255, index]) * ((3 + index) << 19)
    lengths = [(len(part), part[:2].hex()) for part in hosts.gather("large", large)]
    empty = hosts.gather("empty", b"")
    told = hosts.broadcast("told", [index, "from"])
    hosts.barrier("here")
    hosts.agree("config", "seed: 0\n")
    for step in range(200):
        hosts.gather(f"step {step}", step)
    kept = _stored()
    result = [index, hosts.count, hosts.is_first, gathered, lengths, empty == [b""] * hosts.count]
    print(json.dumps([*result, told, kept]))


def _stored() -> int:
    from jax._src.distributed import global_state

    assert global_state.client is not None
    return len(global_state.client.key_value_dir_get_bytes("hacpo"))


def differ(hosts: Hosts) -> None:
    rate = 0.5 if hosts.index == 1 else 0.25
    hosts.agree("config", f"seed: 0\noptimizer:\n  learning_rate: {rate}\nlast: 1\n")


def killed(hosts: Hosts) -> None:
    if hosts.index == hosts.count - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hosts.barrier("all here")


def first_killed(hosts: Hosts) -> None:
    if hosts.is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    hosts.barrier("all here")


def raises(hosts: Hosts) -> None:
    if hosts.index == 1:
        raise ValueError("no\nluck")
    hosts.barrier("all here")


def first_raises(hosts: Hosts) -> None:
    if hosts.is_first:
        raise ValueError("no luck")
    hosts.barrier("all here")


def busy(hosts: Hosts) -> None:
    if hosts.index == 1:
        raise ValueError("no luck")
    time.sleep(100)  # no call that could learn of it


def late(hosts: Hosts) -> None:
    if hosts.index == 1:
        time.sleep(3)
    hosts.barrier("rollouts", timeout=1)


def other_work(hosts: Hosts) -> None:
    hosts.barrier(f"step {hosts.index}")


def collective(hosts: Hosts) -> None:
    """A sum over all devices that one process does not live to see."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    there = NamedSharding(mesh, PartitionSpec("data"))
    count = jax.device_count()
    ones = jax.make_array_from_callback((count,), there, lambda at: np.ones(count)[at])
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
    print(f"sum {float(total(ones).addressable_data(0)):g}", flush=True)
    if hosts.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    total(ones).block_until_ready()
    hosts.barrier("after the sum")


def main(case: str, index: int, count: int, port: int) -> int:
    flags = Flags(f"127.0.0.1:{port}", count, index)
    try:
        with start(flags, LIMITS) as hosts:
            assert start(flags) is hosts
            globals()[case](hosts)
    except (UserError, HostError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
