"""A bounded pool of killable processes for verifiers that cannot be trusted to end."""

import concurrent.futures
import contextlib
import json
import multiprocessing
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.children import child_command, child_environment

# A worker starts within seconds; a busy machine or a module that imports much needs longer.
START_SECONDS = 120.0
# Answers sent to a worker at a time: one by one, the pipe costs more than an easy answer. Few, or
# the others of a batch wait long for one that hangs.
_BATCH = 16
# Batches that a worker gets of one call, at least, so that all have work until its end.
_ROUNDS = 4
_SERVE = "hacpo_jax.tasks.worker:serve"
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


@dataclass(frozen=True)
class Part:
    """One term of a reward.

    Args:
      function: `package.module:function`, called as f(response, answer, **options) in the workers.
      weight: what its result is multiplied with.
      options: plain data.
      name: what the user calls it; the function by default.
    """

    function: str
    weight: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""


class ProcessGrader:
    """Grades answers in worker processes, each answer within a wall clock.

    Workers are fresh interpreters: a fork would inherit the threads and devices of JAX, and a
    spawned child of `multiprocessing` would import the main script, and JAX with it, again. Every
    worker has its own pipe and a thread that serves it, so that a death or a kill is known to
    belong to one answer and cannot break what other workers are doing. A new worker takes the place
    of a dead one. All start at construction, which waits until one has imported the verifier.

    Args:
      parts: what is added up to the reward.
      workers: number of processes.
      timeout: seconds that the grading of one answer may take; waiting for a worker is free.

    Raises:
      UserError: a function cannot be imported by a worker or called with its options.
    """

    def __init__(self, parts: Sequence[Part], *, workers: int, timeout: float):
        self._timeout = timeout
        spec = json.dumps([asdict(part) for part in parts])
        self._workers = [_Worker(spec) for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for member in self._workers:
            self._idle.put(member)
        # As many threads as workers: a thread always finds an idle one.
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "verifier")
        error = self._workers[0].start_error()
        if error is not None:
            self.close()
            names = " + ".join(part.name or part.function for part in parts)
            remedy = f"cannot be used by worker processes: {error}{_way_out(error)}"
            raise UserError("verifier", names, remedy)

    @property
    def restarts(self) -> int:
        """How many workers were replaced because they hung or died."""
        return sum(member.restarts for member in self._workers)

    def schedule(self, pairs: Sequence[tuple[str, str]]) -> Callable[[], list[Verdict]]:
        """Queues answers; the returned function waits for their verdicts.

        Raises:
          RuntimeError: the grader is closed.
        """
        size = max(1, min(_BATCH, len(pairs) // (_ROUNDS * len(self._workers))))
        # Neighbours answer the same problem and may hang in the same way: they go apart.
        stride = -(-len(pairs) // size)
        futures = [self._threads.submit(self._grade, pairs[i::stride]) for i in range(stride)]

        def wait() -> list[Verdict]:
            verdicts = [_failure(_CLOSED)] * len(pairs)
            for i, future in enumerate(futures):
                with contextlib.suppress(concurrent.futures.CancelledError):
                    verdicts[i::stride] = future.result()
            return verdicts

        return wait

    def close(self) -> None:
        """Ends the workers, busy or not; answers that are not graded yet become invalid."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for member in self._workers:
            member.close()
        self._threads.shutdown(wait=True)

    def _grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        member = self._idle.get()
        try:
            verdicts: list[Verdict] = []
            while len(verdicts) < len(pairs):  # those behind a failure are sent again
                verdicts += member.grade(pairs[len(verdicts) :], self._timeout)
            return verdicts
        finally:
            self._idle.put(member)


def _way_out(error: str) -> str:
    """What to do about a function that cannot be had, by what importing it said."""
    for kind, remedy in _WAYS_OUT.items():
        if kind in error:
            return f"; {remedy}"
    return ""


_WAYS_OUT = {
    "ModuleNotFoundError": "install it, or start in its folder, or add that to PYTHONPATH",
    "AttributeError": "name a function that the module has",
    "is not callable": "name a function of the module",
}


class _Worker:
    """One worker process after another, and the pipe to the present one.

    One thread at a time calls `grade`; `close` may be called at any moment from another.
    """

    def __init__(self, spec: str):
        self.restarts = 0
        self._spec = spec
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

    def grade(self, pairs: Sequence[tuple[str, str]], timeout: float) -> list[Verdict]:
        """Has answers graded, up to the first at which the worker fails, and at least one.

        A worker that fails is replaced before this returns.
        """
        if self._process.poll() is not None and not self._replace():  # died since its last answer
            return [_failure(_CLOSED)] * len(pairs)
        error = self.start_error()
        if error is not None:
            return [_failure(error)] * len(pairs)
        verdicts: list[Verdict] = []
        try:
            self._connection.send(pairs)
            for _ in pairs:
                kind, value = self._receive(timeout)
                if kind == "reward":
                    verdicts.append(Verdict(value, valid=True))
                else:
                    verdicts.append(_failure(value, timed_out=kind == "timeout"))
            return verdicts
        except TimeoutError:
            failed = _failure(f"took longer than {timeout} s", timed_out=True)
        except (EOFError, OSError):
            failed = _failure("the worker process died")
        return [*verdicts, failed if self._replace() else _failure(_CLOSED)]

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
            self.restarts += 1
            return True

    def _spawn(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            child_command(_SERVE, str(theirs.fileno()), self._spec),
            env=child_environment(),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()  # or the death of the process would not end the stream
        self._ready = False
