"""A bounded pool of killable processes for verifiers that cannot be trusted to end."""

import concurrent.futures
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hacpo_jax.errors import UserError

# A worker starts within seconds; a busy machine or a module that imports much needs longer.
START_SECONDS = 120.0
# Worker processes find their modules where this one does.
_BOOT = """
import json, sys
fd, sys.path[:], function = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
from hacpo_jax.tasks.worker import serve
serve(fd, function)
"""
_CLOSED = "the verifier was closed"


@dataclass(frozen=True)
class Verdict:
    """What a verifier said about one answer.

    Args:
      reward: the reward; 0 where the verdict is not valid.
      valid: False when the verifier failed on this answer. Such an answer has no reward: it is not
        a wrong answer, and leaves every mean and count.
      error: why the verdict is not valid.
      timed_out: whether the failure was a time limit.
    """

    reward: float
    valid: bool
    error: str | None = None
    timed_out: bool = False


def _failure(error: str, timed_out: bool = False) -> Verdict:
    return Verdict(0.0, valid=False, error=error, timed_out=timed_out)


class ProcessGrader:
    """Grades answers in worker processes, each answer within a wall clock.

    Workers are fresh interpreters: a fork would inherit the threads and devices of JAX, and a
    spawned child of `multiprocessing` would import the main script, and JAX with it, again. Every
    worker has its own pipe and a thread that serves it, so that a death or a kill is known to
    belong to one answer and cannot break what other workers are doing. A new worker takes the place
    of a dead one. All start at construction, which waits until one has imported the verifier.

    Args:
      function: `package.module:function`, called as f(response, answer) in the workers.
      workers: number of processes.
      timeout: seconds that the grading of one answer may take; waiting for a worker is free.

    Raises:
      UserError: the function cannot be imported by a worker or is not callable.
    """

    def __init__(self, function: str, *, workers: int, timeout: float):
        self._timeout = timeout
        self._workers = [_Worker(function) for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for member in self._workers:
            self._idle.put(member)
        # As many threads as workers: a thread always finds an idle one.
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "verifier")
        error = self._workers[0].start_error()
        if error is not None:
            self.close()
            raise UserError("verifier", function, f"cannot be used by worker processes: {error}")

    def schedule(self, response: str, answer: str) -> Callable[[], Verdict]:
        """Queues an answer; the returned function waits for its verdict.

        Raises:
          RuntimeError: the grader is closed.
        """
        future = self._threads.submit(self._grade, response, answer)

        def wait() -> Verdict:
            try:
                return future.result()
            except concurrent.futures.CancelledError:
                return _failure(_CLOSED)

        return wait

    def close(self) -> None:
        """Ends the workers, busy or not; answers that are not graded yet become invalid."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for member in self._workers:
            member.close()
        self._threads.shutdown(wait=True)

    def _grade(self, response: str, answer: str) -> Verdict:
        member = self._idle.get()
        try:
            return member.grade(response, answer, self._timeout)
        finally:
            self._idle.put(member)


class _Worker:
    """One worker process after another, and the pipe to the present one.

    One thread at a time calls `grade`; `close` may be called at any moment from another.
    """

    def __init__(self, function: str):
        self._function = function
        self._lock = threading.Lock()  # spawning, killing and the flag
        self._closed = False
        self._spawn()

    def start_error(self) -> str | None:
        """Waits until the worker is ready; why it has no verifier, or None if it has one."""
        if self._ready:
            return None
        try:
            error = self._receive(START_SECONDS)
        except TimeoutError:
            return f"importing took longer than {START_SECONDS} s"
        except (EOFError, OSError):
            return "the process died while it started"
        self._ready = error is None
        return error

    def grade(self, response: str, answer: str, timeout: float) -> Verdict:
        """Has one answer graded; a worker that fails is replaced before this returns."""
        if self._process.poll() is not None and not self._replace():  # died since its last answer
            return _failure(_CLOSED)
        error = self.start_error()
        if error is not None:
            return _failure(error)
        try:
            self._connection.send((response, answer))
            kind, value = self._receive(timeout)
        except TimeoutError:
            verdict = _failure(f"took longer than {timeout} s", timed_out=True)
        except (EOFError, OSError):
            verdict = _failure("the worker process died")
        else:
            if kind == "reward":
                return Verdict(value, valid=True)
            return _failure(value, timed_out=kind == "timeout")
        return verdict if self._replace() else _failure(_CLOSED)

    def close(self) -> None:
        """Kills the process for good."""
        with self._lock:
            self._closed = True
            self._process.kill()
            self._process.wait()

    def _receive(self, timeout: float):
        """The next message; JSON, because unpickling would trust what verifiers may have done."""
        if not self._connection.poll(timeout):
            raise TimeoutError
        return json.loads(self._connection.recv_bytes())

    def _replace(self) -> bool:
        """Starts a new process in the place of this one; False if the worker is closed."""
        with self._lock:
            if self._closed:
                return False
            self._process.kill()
            self._process.wait()
            self._connection.close()
            self._spawn()
            return True

    def _spawn(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        path = json.dumps([*filter(None, sys.path), os.getcwd()])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), path, self._function],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()  # or the death of the process would not end the stream
        self._ready = False
