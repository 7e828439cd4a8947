"""Real processes on this machine that talk, disagree, fail and die."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from child_flags import xla_flags

from hacpo_jax.errors import UserError
from hacpo_jax.parallel.hosts import ALONE, Flags, Limits, start

PROGRAM = Path(__file__).with_name("host_process.py")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run(case: str, count: int) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of every process; all end within a minute."""
    port = free_port()
    environment = {**os.environ, "XLA_FLAGS": xla_flags(1)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), case, str(i), str(count), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def said(errors: str) -> list[str]:
    """The lines on standard error that are not logs of C++ libraries."""
    return [line for line in errors.splitlines() if line.startswith(("UserError", "HostError"))]


@pytest.mark.parametrize("count", [2, 4])
def test_processes_gather_broadcast_and_agree(count):
    for index, (code, out, err) in enumerate(run("talk", count)):
        assert code == 0, err
        mine, all_of_them, first, gathered, lengths, empty, told, kept = json.loads(out)
        assert (mine, all_of_them, first) == (index, count, index == 0)
        assert gathered == [{"index": i, "text": f"é{i}"} for i in range(count)]
        assert lengths == [[(3 + i) * 2**20, f"ff{i:02x}"] for i in range(count)]
        assert empty and told == [0, "from"]
        # Of 200 meetings nothing stays but the last answer, and who has come to the next.
        assert kept <= 1 + count


def test_processes_that_disagree_all_say_so():
    line = (
        "UserError: config of process 1, line 3, below optimizer = 'learning_rate: 0.5': process 0 "
        "has 'learning_rate: 0.25'; start all with the same, also process 1"
    )
    assert [(code, said(err)) for code, _, err in run("differ", 4)] == [(2, [line])] * 4


def test_a_killed_process_is_named_and_ends_all():
    *others, (code, _, _) = run("killed", 4)
    assert code == -signal.SIGKILL
    line = "HostError: process 3 died without a word"
    assert [(code, said(err)) for code, _, err in others] == [(1, [line])] * 3


def test_the_death_of_the_first_process_ends_all():
    (code, _, _), *others = run("first_killed", 3)
    assert code == -signal.SIGKILL
    for code, _, err in others:
        assert code not in (0, None)
        assert "leader task was preempted/died" in err or "process 0 is gone" in err


def test_a_process_that_died_in_a_collective_is_named():
    first, (killed, *_), last = run("collective", 3)
    assert killed == -signal.SIGKILL
    for code, out, err in (first, last):
        assert (code, out.splitlines()[-1]) == (1, "sum 3")
        assert "process 1 died without a word" in err
        assert "process 0 failed" not in err and "process 2 failed" not in err


@pytest.mark.parametrize(("case", "culprit"), [("raises", 1), ("first_raises", 0)])
def test_an_exception_is_told_to_all(case, culprit):
    for index, (code, _, err) in enumerate(run(case, 3)):
        assert code == 1
        if index == culprit:
            assert "Traceback" in err
        else:
            line = f"HostError: process {culprit} failed: ValueError: no luck"
            assert said(err) == [line]
            assert "Traceback" not in err


def test_an_exception_ends_processes_that_do_not_listen():
    first, _, last = run("busy", 3)
    for code, _, err in (first, last):
        assert code == 1
        assert "error: process 1 failed: ValueError: no luck" in err.splitlines()


def test_a_barrier_that_times_out_names_who_is_missing():
    lines = [(code, said(err)) for code, _, err in run("late", 3)]
    timeout = "'rollouts': process 1 did not come within 1 s"
    assert [code for code, _ in lines] == [1, 1, 1]
    assert all(len(line) == 1 and line[0].endswith(timeout) for _, line in lines)
    assert lines[1][1][0].startswith("HostError: process ")  # the late one is told


def test_processes_at_different_barriers_do_not_wait_for_the_timeout():
    for code, _, err in run("other_work", 2):
        assert code == 1
        assert "process 1 is at 'step 1' where process 0 is at 'step 0'" in said(err)[0]


def test_a_single_process_needs_no_one():
    with start(Flags()) as hosts:
        assert hosts == ALONE
        assert (hosts.index, hosts.count, hosts.is_first) == (0, 1, True)
        assert hosts.gather("x", (1, b"2")) == [(1, b"2")]
        assert hosts.broadcast("x", {"a": 1}) == {"a": 1}
        hosts.barrier("x", timeout=0)
        hosts.agree("x", "text")
    from jax._src.distributed import global_state

    assert global_state.client is None


def test_a_coordinator_out_of_reach_is_one_line():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=r"cannot be reached for 0\.5 s.*start process 0 there"):
        start(Flags(address, 2, 1), Limits(start=0.5))


def test_a_port_in_use_is_one_line():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}: .*in use"):
            start(Flags(f"127.0.0.1:{port}", 2, 0))


def test_a_process_that_never_comes_is_waited_for_no_longer_than_allowed():
    program = (
        "from hacpo_jax.parallel.hosts import *;"
        f"start(Flags('127.0.0.1:{free_port()}', 2, 0), Limits(start=1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert "process 0: not all of the 2 processes came to 127.0.0.1:" in done.stderr
