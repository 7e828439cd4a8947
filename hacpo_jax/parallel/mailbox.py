"""Values of any size through the key-value store of jax's coordination service."""

import json
import time
from collections.abc import Callable
from typing import Any

from hacpo_jax.errors import HostError

# A store's message has a limit of some megabytes or of 2 GiB, depending on the version.
CHUNK_BYTES = 1 << 20
# Longest time in a call that neither an interrupt nor the news of a failure can end.
SLICE_SECONDS = 0.25

Value = Any  # bytes, or whatever JSON holds


def encode(value: Value) -> bytes:
    """Bytes from which `decode` makes an equal value; tuples come back as lists."""
    return b"b" + value if isinstance(value, bytes) else b"j" + json.dumps(value).encode()


def decode(data: bytes) -> Value:
    """The value that `encode` was given."""
    return data[1:] if data[:1] == b"b" else json.loads(data[1:])


def join(parts: list[bytes]) -> bytes:
    """Parts as one message."""
    return json.dumps([len(part) for part in parts]).encode() + b"\n" + b"".join(parts)


def split(data: bytes) -> list[bytes]:
    """The parts that `join` was given."""
    head, _, rest = data.partition(b"\n")
    parts, start = [], 0
    for length in json.loads(head):
        parts.append(rest[start : start + length])
        start += length
    return parts


def code(error: Exception) -> str:
    """The status code at the start of an error of the store, e.g. `DEADLINE_EXCEEDED`."""
    return str(error).partition(":")[0]


class Mailbox:
    """Brings the processes' values together at process 0 and what it makes of them to all.

    That takes a number of messages in proportion to that of the processes. All processes make the
    same calls in the same order, from one thread. What was read is deleted, at the latest when
    all have come to the next call.

    Args:
      client: of jax's coordination service.
      index: this process.
      count: number of processes.
      check: called several times a second while waiting; raises to end it.
    """

    def __init__(self, client: Any, index: int, count: int, check: Callable[[], None]):
        self._client = client
        self._index = index
        self._count = count
        self._check = check
        self._calls = 0

    def exchange(
        self, name: str, mine: bytes, timeout: float, answer: Callable[[list[bytes]], bytes]
    ) -> bytes:
        """One meeting of all processes.

        Args:
          name: of the meeting, for messages; the same in all processes.
          mine: what this process brings.
          timeout: seconds that this process waits.
          answer: from what all brought, in the order of the processes, to what each is given;
            called in process 0.

        Raises:
          HostError: a process does not come in time, or is at a meeting of another name.
        """
        self._calls += 1
        here = f"hacpo/{self._calls}"
        deadline = time.monotonic() + timeout
        try:
            if self._index:
                self._put(f"{here}/from/{self._index}", name, mine)
                return self._get(f"{here}/all", name, deadline, 0)
            self._put(f"{here}/from/0", name, b"")
            parts = [mine]
            for i in range(1, self._count):
                parts.append(self._get(f"{here}/from/{i}", name, deadline, i))
            result = answer(parts)
            self._client.key_value_delete(f"{here}/from")
            # That all came here means that all have read what was for them there.
            self._client.key_value_delete(f"hacpo/{self._calls - 1}/all")
            self._put(f"{here}/all", name, result)
            return result
        except TimeoutError:
            raise HostError(f"{name!r}: {self._missing(here)} within {timeout:g} s") from None

    def _missing(self, here: str) -> str:
        """Who has not come to a meeting."""
        came = {i for i in range(self._count) if self._try_get(f"{here}/from/{i}/0") is not None}
        missing = sorted(set(range(self._count)) - came)
        # Process 0 takes away what was brought once it has all of it.
        if not missing or (self._index and not came):
            return "process 0 did not answer"
        return f"{listing(missing)} did not come"

    def _put(self, key: str, name: str, data: bytes) -> None:
        chunks = [data[i : i + CHUNK_BYTES] for i in range(0, len(data), CHUNK_BYTES)]
        for i, chunk in enumerate(chunks[1:], start=1):
            self._client.key_value_set_bytes(f"{key}/{i}", chunk)
        # The first comes last: who sees it finds all.
        head = json.dumps([name, max(1, len(chunks))]).encode() + b"\n"
        self._client.key_value_set_bytes(f"{key}/0", head + b"".join(chunks[:1]))

    def _get(self, key: str, name: str, deadline: float, sender: int) -> bytes:
        head, _, data = self._wait(f"{key}/0", deadline).partition(b"\n")
        theirs, chunks = json.loads(head)
        if theirs != name:
            raise HostError(
                f"process {sender} is at {theirs!r} where process {self._index} is at {name!r}: "
                "the processes do not do the same work"
            )
        # Time is for waiting, not for carrying.
        rest = [self._wait(f"{key}/{i}", max(deadline, _later())) for i in range(1, chunks)]
        return b"".join([data, *rest])

    def _wait(self, key: str, deadline: float) -> bytes:
        while True:
            self._check()
            left = max(0.001, min(SLICE_SECONDS, deadline - time.monotonic()))
            try:
                return self._client.blocking_key_value_get_bytes(key, int(left * 1000))
            except Exception as error:
                if code(error) != "DEADLINE_EXCEEDED":
                    self._check()  # a failure that is known already tells more
                    raise
            if time.monotonic() >= deadline:
                raise TimeoutError(key)

    def _try_get(self, key: str) -> bytes | None:
        try:
            return self._client.key_value_try_get_bytes(key)
        except Exception as error:
            if code(error) != "NOT_FOUND":
                raise
            return None


def _later() -> float:
    return time.monotonic() + 60.0


def listing(processes: list[int]) -> str:
    """`process 1`, or `processes 1, 2`; beyond ten with their number."""
    shown = ", ".join(map(str, processes[:10]))
    more = f" and {len(processes) - 10} more" if len(processes) > 10 else ""
    return f"process{'es' if len(processes) > 1 else ''} {shown}{more}"
