"""One problem of a task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A problem with the answer that a verifier compares responses with.

    Args:
      id: name of the problem, unique in its data set; experience that agents share is keyed by it.
      prompt: the problem as text, before any prompt template.
      answer: the gold answer.
      solution: the text that supervised warm starts are trained on; the answer when it is empty.
    """

    id: str
    prompt: str
    answer: str
    solution: str = ""

    def __post_init__(self):
        if not self.solution:
            object.__setattr__(self, "solution", self.answer)
