"""Config of the task: problems, prompts, and how answers are checked."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hacpo_jax.config.base import Section


class Arithmetic(Section):
    """Problems such as `12+7=`, made on the spot; train and held-out ones never meet.

    Attributes:
      kind: `arithmetic`.
      split: which side of the division; every problem is on one side only.
      size: number of problems.
      low: least operand.
      high: greatest operand.
      operations: which of `+`, `-`, `*`.
      seed: which problems of the split are taken, and their order.
      held_out_fraction: share of all problems that is held out; the same in the whole run.
      template: the problem's text, with `{a}`, `{op}` and `{b}`.
    """

    kind: Literal["arithmetic"]
    split: Literal["train", "held_out"] = "train"
    size: int = Field(ge=1)
    low: int = Field(default=0, ge=0)
    high: int = Field(default=99, ge=0)
    operations: str = Field(default="+", pattern=r"^[-+*]+$")
    seed: int = 0
    held_out_fraction: float = Field(0.1, ge=0.001, le=0.999)
    template: str = "{a}{op}{b}="

    @model_validator(mode="after")
    def _ordered(self):
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is above high = {self.high}; make low <= high")
        return self


class Jsonl(Section):
    """A file with one JSON object a line.

    Attributes:
      kind: `jsonl`.
      path: the file.
      prompt: field of the problem, or several to be joined; dots reach into nested objects.
      answer: field of the right answer.
      solution: field of the text for supervised warm starts; null takes the answer.
      id_column: field of a unique name; null numbers the lines.
      answer_pattern: regular expression whose first group is the answer within that field.
      boxed: the answer is the last `\\boxed{...}` within that field.
      limit: take only this many rows; null takes all.
      max_bad_fraction: stop when more than this share of rows cannot be read.
    """

    kind: Literal["jsonl"]
    path: str
    prompt: str | list[str] = "problem"
    answer: str = "answer"
    solution: str | None = None
    id_column: str | None = None
    answer_pattern: str | None = None
    boxed: bool = False
    limit: int | None = Field(default=None, ge=1)
    max_bad_fraction: float = Field(default=0.01, ge=0, le=1)


Source = Annotated[Arithmetic | Jsonl, Field(discriminator="kind")]


class Verifier(Section):
    """How an answer becomes a reward.

    Attributes:
      name: `exact`, `last_number`, `math`, or your own `package.module:function` of response
        and answer.
      workers: processes that grade, except for `exact` and `last_number`.
      timeout: seconds one answer may take; then it counts as invalid.
    """

    name: str = "exact"
    workers: int = Field(default=2, ge=1)
    timeout: float = Field(default=10.0, gt=0)


class Task(Section):
    """What is learned and on what it is measured.

    Attributes:
      train: problems to learn from.
      eval: problems to measure on, by benchmark name.
      template: text of a prompt; `{prompt}` is replaced by the problem.
      system: system message of chat prompts; null has none.
      verifier: how answers are checked.
      max_prompt_tokens: longest prompt of any agent.
      overlong: what to do with longer ones: `error`, or `drop` them, counted. None is ever cut.
    """

    train: Source
    eval: dict[str, Source] = Field(min_length=1)
    template: str = "{prompt}"
    system: str | None = None
    verifier: Verifier = Verifier()
    max_prompt_tokens: int = Field(default=1024, ge=1)
    overlong: Literal["error", "drop"] = "error"
