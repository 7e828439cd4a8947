"""A verifier that a test gives a function to."""

from collections.abc import Callable, Sequence

from hacpo_jax.tasks.pool import Verdict


class TextVerifier:
    """Grades in this process, as `hacpo_jax.tasks.Verifier` does in others.

    Args:
      is_right: of the response and the gold answer.
    """

    first_error = None

    def __init__(self, is_right: Callable[[str, str], bool]):
        self._is_right = is_right

    def submit(self, pairs: Sequence[tuple[str, str]]) -> "_Done":
        return _Done([Verdict(float(self._is_right(*pair)), valid=True) for pair in pairs])

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        return self.submit(pairs).result()

    def close(self) -> None:
        pass


class _Done:
    def __init__(self, verdicts: list[Verdict]):
        self._verdicts = verdicts

    def result(self) -> list[Verdict]:
        return self._verdicts
