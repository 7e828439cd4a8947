"""Learns that another process failed or died, and ends this one then."""

import json
import os
import sys
import threading
import time
from typing import Any

from hacpo_jax.errors import HostError, UserError
from hacpo_jax.parallel.mailbox import code, listing

_FAILURE, _CLOSED = "hacpo/failure", "hacpo/closed"
_FOREVER_MS = 10**9
# Between two looks at who is alive, and for the word of a failed process to arrive.
_PAUSE_SECONDS = 1.0
# What the main thread gets to end by itself before the process is ended.
GRACE_SECONDS = 5.0
# What process 0, which holds the service, gives the others to be gone before it.
LEAVE_SECONDS = 15.0
# Errors of collectives that break because the process at the other end is gone.
_BROKEN = ("Gloo", "NCCL", "UNAVAILABLE", "ABORTED", "onnection")


class Watch:
    """Three threads: they wait for the word of a failure, ask who is alive, and end the process.

    jax by itself aborts all processes when one dies, with a page of messages, and waits for dead
    ones in its shutdown. `start` therefore switches on what it calls recoverability, which leaves
    both to this class. The death of process 0, which holds the service, still ends in jax's abort,
    at once; its message says that the leader died.

    Args:
      state: jax's distributed state, connected.
      heartbeat: seconds after which the service takes a silent process for dead.
    """

    def __init__(self, state: Any, heartbeat: float):
        self._state = state
        self._client = state.client
        self._index: int = state.process_id
        self._count: int = state.num_processes
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._failed = threading.Event()
        self._leaving = threading.Event()
        self._parted = False
        self._threads = [
            threading.Thread(target=target, daemon=True, name=f"hosts {target.__name__}")
            for target in (self._hear, self._look, self._end)
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raises what went wrong elsewhere.

        Raises:
          HostError: a process failed or died.
        """
        if self._failure is not None:
            raise HostError(self._failure)

    def blame(self, error: BaseException) -> HostError | None:
        """Another process's failure that explains an error of this one, if there is any.

        An error of a collective comes at once where a process died, and the proof that it did
        only after the time of a heartbeat.
        """
        if any(word in str(error) for word in _BROKEN) and not isinstance(error, HostError):
            self._failed.wait(self._heartbeat + 2 * _PAUSE_SECONDS)
        return None if self._failure is None else HostError(self._failure)

    def tell(self, error: BaseException) -> None:
        """Lets all others know that this process failed."""
        if self._parted:
            return
        plain_words = isinstance(error, HostError | UserError)
        text = f"failed: {'' if plain_words else type(error).__name__ + ': '}{error}"
        text = "was interrupted" if isinstance(error, KeyboardInterrupt) else text
        plain = "".join(c if c.isprintable() else " " for c in text)[:2000]
        message = json.dumps([self._index, " ".join(plain.split())])
        try:
            self._client.key_value_set(_FAILURE, message)
        except Exception as refusal:
            if code(refusal) != "ALREADY_EXISTS":  # or the service is gone: all will know
                self._note(f"process 0 is gone: {code(refusal)}")

    def allow_parting(self) -> None:
        """Lets all know that a process that is gone has come to the end; process 0 calls it."""
        self._client.key_value_set(_CLOSED, "")

    def part(self) -> None:
        """From now on nothing is told to the others, nor heard from them."""
        self._parted = True

    def leave(self) -> None:
        """Disconnects from the others; process 0 waits for them to do so first.

        Nothing here waits longer than `LEAVE_SECONDS`.
        """
        self._leaving.set()
        self._failed.set()
        if self._index == 0:
            self._threads[1].join(LEAVE_SECONDS)
        self._state.shutdown()  # ends the calls in which the threads wait
        for thread in self._threads:
            thread.join(LEAVE_SECONDS)

    def _note(self, failure: str) -> None:
        with self._lock:
            if self._failure is None and not self._parted and not self._leaving.is_set():
                self._failure = failure
                self._failed.set()

    def _hear(self) -> None:
        try:
            message = self._client.blocking_key_value_get(_FAILURE, _FOREVER_MS)
        except Exception as error:
            self._note(f"process 0 is gone: {code(error)}")
            return
        process, text = json.loads(message)
        if process != self._index:
            self._note(f"process {process} {text}")

    def _look(self) -> None:
        """Until this process leaves; in process 0 until all others have left."""
        everyone = list(range(self._count))
        while not self._leaving.is_set() or self._index == 0:
            try:
                alive = self._client.get_live_nodes(everyone)  # waits for those alive to ask too
            except Exception as error:
                self._note(f"process 0 is gone: {code(error)}")
                return
            gone = sorted(set(everyone) - set(alive))
            if len(gone) == self._count - 1 and self._leaving.is_set():
                # jax aborts a process that loses the service before it has read its farewell.
                time.sleep(_PAUSE_SECONDS)
                return
            if gone and not self._failed.is_set() and not self._all_done():
                self._failed.wait(_PAUSE_SECONDS)  # it may have said why
                self._note(f"{listing(gone)} died without a word")
            self._leaving.wait(0.01 if self._leaving.is_set() else _PAUSE_SECONDS)

    def _all_done(self) -> bool:
        try:
            self._client.key_value_try_get(_CLOSED)
        except Exception:
            return False
        return True

    def _end(self) -> None:
        """Ends the process where the main thread is stuck, as in a collective with a dead peer."""
        self._failed.wait()
        if self._leaving.wait(GRACE_SECONDS):
            return
        print(f"error: {self._failure}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        if self._index:
            self._state.client.shutdown()
        else:
            self._leaving.set()
            self._threads[1].join(LEAVE_SECONDS)
        os._exit(1)
