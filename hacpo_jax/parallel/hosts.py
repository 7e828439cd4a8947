"""The processes of one run and what they say to each other; no model is known here.

Two processes on one machine, by hand:

    python -m hacpo_jax.launch --coordinator 127.0.0.1:1234 --processes 2 --process 0 &
    python -m hacpo_jax.launch --coordinator 127.0.0.1:1234 --processes 2 --process 1
"""

import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from hacpo_jax.errors import HostError, UserError
from hacpo_jax.parallel import mailbox
from hacpo_jax.parallel.cluster import Flags, Place, find_place, split_address
from hacpo_jax.parallel.mailbox import Mailbox, Value, listing
from hacpo_jax.parallel.watch import Watch

__all__ = ["ALONE", "Flags", "Hosts", "Limits", "start"]


@dataclass(frozen=True)
class Limits:
    """Times, in seconds.

    Args:
      start: for all processes to come to the coordinator.
      heartbeat: without a sign of life, after which a process counts as dead; 2 or more.
      wait: for all processes at a barrier, a gather or a broadcast that names no time.
    """

    start: float = 300.0
    heartbeat: float = 30.0
    wait: float = 600.0


@dataclass(frozen=True)
class _Link:
    """What connects this process with the others."""

    flags: Flags
    watch: Watch
    mail: Mailbox
    wait: float


@dataclass(frozen=True)
class Hosts:
    """The processes of one run, as one of them sees them; made by `start`.

    Every process makes the same calls with the same names in the same order, from its main thread.
    A call waits for all processes, for `timeout` seconds; for a single process it does nothing.

    As a context it tells the others of an exception that leaves it, so that all end; a failure
    elsewhere is raised here as `HostError` by the next call. Where no call comes within 5 s,
    as in a collective operation with a process that is gone, the process prints the reason and
    exits with 1. Left without an exception, it waits for all others to come to its end too.

    Args:
      index: number of this process, from 0.
      count: number of processes.
    """

    index: int = 0
    count: int = 1
    _link: _Link | None = field(default=None, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes the logs."""
        return self.index == 0

    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Waits for all processes.

        Raises:
          HostError: a process did not come within `timeout`, failed, or died; it says which.
        """
        if self._link is not None:
            self._exchange(self._link, name, b"", timeout)

    def gather(self, name: str, value: Value, timeout: float | None = None) -> list[Value]:
        """Every process's value, in the order of the processes.

        Args:
          value: bytes, or whatever JSON holds; of any size. Tuples come back as lists.

        Raises:
          HostError: a process did not come within `timeout`, failed, or died; it says which.
        """
        if self._link is None:
            return [value]
        content = self._exchange(self._link, name, mailbox.encode(value), timeout)
        return [mailbox.decode(part) for part in mailbox.split(content)]

    def broadcast(self, name: str, value: Value, timeout: float | None = None) -> Value:
        """The value of process 0.

        Args:
          value: bytes, or whatever JSON holds; of any size. Only that of process 0 matters.

        Raises:
          HostError: a process did not come within `timeout`, failed, or died; it says which.
        """
        if self._link is None:
            return value
        mine = mailbox.encode(value) if self.is_first else b""
        return mailbox.decode(mailbox.split(self._exchange(self._link, name, mine, timeout))[0])

    def agree(self, name: str, text: str, timeout: float | None = None) -> None:
        """Makes sure that all processes hold the same text.

        Args:
          name: what the text is, e.g. `config`.
          text: e.g. the resolved config as YAML.

        Raises:
          UserError: they do not. It is the same in every process, and names the first line that
            differs and the processes that differ from process 0.
          HostError: a process did not come within `timeout`, failed, or died; it says which.
        """
        texts = self.gather(name, text, timeout)
        others = [i for i, theirs in enumerate(texts) if theirs != texts[0]]
        if self._link is not None and others:
            self._part(self._link, f"{name} differs", timeout)  # all come to the error themselves
            raise _disagreement(name, texts[0], texts[others[0]], others)

    def close(self) -> None:
        """Waits for all processes to be done, then disconnects.

        Raises:
          HostError: a process did not come, failed, or died; it says which.
        """
        if self._link is None:
            return
        try:
            self._part(self._link, "end of the run", None)
        except HostError as error:
            self._fail(self._link, error)
            raise
        self._leave(self._link)

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._link is not None:
            self._fail(self._link, error)

    def _exchange(self, link: _Link, name: str, mine: bytes, timeout: float | None) -> bytes:
        seconds = link.wait if timeout is None else timeout
        return link.mail.exchange(name, mine, seconds, mailbox.join)

    def _part(self, link: _Link, name: str, timeout: float | None) -> None:
        """The last barrier: from there on each may go."""

        def answer(_: list[bytes]) -> bytes:
            link.watch.allow_parting()
            return b""

        link.mail.exchange(name, b"", link.wait if timeout is None else timeout, answer)
        link.watch.part()

    def _fail(self, link: _Link, error: BaseException) -> None:
        """Tells the others, unless they told this process.

        Raises:
          HostError: the failure of another process that is behind this one's.
        """
        mine = isinstance(error, UserError) or not isinstance(error, Exception)
        cause = None if mine else link.watch.blame(error)
        if cause is None:
            link.watch.tell(error)
        self._leave(link)
        if cause is not None and not isinstance(error, HostError):
            raise cause from error

    def _leave(self, link: _Link) -> None:
        global _started
        _started = None
        link.watch.leave()


ALONE = Hosts()
"""A run of one process."""
_started: Hosts | None = None


def start(flags: Flags | None = None, limits: Limits | None = None) -> Hosts:
    """Connects this process with the others of its run; must come before other calls of JAX.

    Which processes there are comes from the flags, or from the cluster: see
    `hacpo_jax.parallel.cluster.find_place`. Nothing is started for a single process. Called again
    before the end of the run it returns the same.

    Args:
      flags: what the command line says.
      limits: times after which to give up.

    Raises:
      UserError: flags that do not fit each other or those of an earlier call; a coordinator that
        cannot be reached in time or a port that is in use.
    """
    global _started
    flags, limits = flags or Flags(), limits or Limits()
    if _started is not None:
        if _started._link is not None and _started._link.flags != flags:
            raise UserError("--coordinator", flags.coordinator, "the run has started with others")
        return _started
    place = find_place(flags, limits.start)
    if place.count == 1:
        return ALONE
    _connect(place, limits)

    from jax._src.distributed import global_state

    watch = Watch(global_state, limits.heartbeat)
    mail = Mailbox(global_state.client, place.index, place.count, watch.check)
    _started = Hosts(place.index, place.count, _Link(flags, watch, mail, limits.wait))
    return _started


def _connect(place: Place, limits: Limits) -> None:
    """Starts `jax.distributed`, within `limits.start` seconds."""
    import jax

    deadline = time.monotonic() + limits.start
    if place.index == 0:
        _must_be_free(place.coordinator)
    else:
        _wait_for(place.coordinator, limits.start)
    jax.config.update("jax_enable_recoverability", True)  # see Watch
    # It would have SIGTERM do nothing but leave a note, which nobody here reads.
    jax.config.update("jax_enable_preemption_service", False)
    done = threading.Event()
    threading.Thread(target=_end_unless, args=(done, deadline, place), daemon=True).start()
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            local_device_ids=place.local_devices,
            cluster_detection_method="deactivate",  # it is known already
            initialization_timeout=int(2 * limits.start) + 60,  # jax would abort; see _end_unless
            heartbeat_timeout_seconds=int(limits.heartbeat),
        )
    finally:
        done.set()


def _end_unless(done: threading.Event, deadline: float, place: Place) -> None:
    """Nothing but the end of the process ends a call that waits for processes that do not come."""
    if not done.wait(max(0.0, deadline - time.monotonic())):
        print(
            f"error: process {place.index}: not all of the {place.count} processes came to "
            f"{place.coordinator}; start each with its own --process, from 0 to {place.count - 1}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)


def _must_be_free(coordinator: str) -> None:
    _, port = split_address(coordinator)
    try:
        with socket.create_server(("", port)):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UserError("--coordinator", coordinator, f"port {port}: {reason}") from None


def _wait_for(coordinator: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(split_address(coordinator), 5.0).close()
            return
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise UserError(
                "--coordinator",
                coordinator,
                f"cannot be reached for {seconds:g} s ({error.strerror or error}): start process "
                "0 there, and let the other machines reach the port",
            ) from None


def _disagreement(name: str, first: str, other: str, processes: list[int]) -> UserError:
    """What to say of two texts that differ."""
    a, b = first.splitlines(), other.splitlines()
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    line = min(len(a), len(b)) if same is None else same
    x, y = (text[line].strip() if line < len(text) else "nothing" for text in (a, b))
    place = ".".join(_parents(b if line < len(b) else a, line))
    remedy = f"process 0 has {x!r}; start all with the same, also {listing(processes)}"
    where = f"{name} of process {processes[0]}, line {line + 1}"
    return UserError(f"{where}{', below ' + place if place else ''}", y, remedy)


def _parents(lines: list[str], number: int) -> list[str]:
    """Keys of the YAML mappings that a line is in, outermost first."""
    keys: list[str] = []
    indent = _indent(lines[number])
    for line in reversed(lines[:number]):
        if line.strip() and _indent(line) < indent:
            indent = _indent(line)
            keys.insert(0, line.strip().removeprefix("- ").partition(":")[0])
    return keys


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
