"""Config of the task: problems, prompts, and how answers are checked."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from hacpo_jax.config.base import Section, refused


def _text_or_list(value: Any) -> str:
    """Which of the two is meant, so that a fault of the other is not told."""
    return "<list>" if isinstance(value, list | tuple | dict) else "<text>"


Text = Annotated[str, Tag("<text>")]
Names = Annotated[
    Text | Annotated[list[str], Tag("<list>")],
    Discriminator(_text_or_list),
]
"""One name or several."""


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
    operations: str = "+"
    seed: int = 0
    held_out_fraction: float = Field(0.1, ge=0.001, le=0.999)
    template: str = "{a}{op}{b}="

    @field_validator("operations")
    @classmethod
    def _known(cls, operations: str) -> str:
        if not operations or set(operations) - {*"+-*"}:
            raise ValueError("must be one or several of +, - and *, such as +-")
        return operations

    @model_validator(mode="after")
    def _ordered(self):
        if self.low > self.high:
            raise refused("low", self.low, f"is above high = {self.high}; use {self.high} or less")
        return self


class ReasoningGym(Section):
    """Problems of a reasoning-gym task, made on the spot; needs the extra `tasks`.

    Attributes:
      kind: `reasoning_gym`.
      name: of the task, such as `chain_sum`.
      split: which side of the division; every problem is on one side only.
      size: number of problems.
      seed: which problems are taken, and their order.
      held_out_fraction: share of all problems that is held out; the same in the whole run.
      options: settings of the task, such as `{max_terms: 3}`.
    """

    kind: Literal["reasoning_gym"]
    name: str
    split: Literal["train", "held_out"] = "train"
    size: int = Field(ge=1)
    seed: int = 0
    held_out_fraction: float = Field(0.1, ge=0.001, le=0.999)
    options: dict[str, Any] = Field(default={})


class Condition(Section):
    """What a column must be for a row to be taken; all that is named must hold.

    Attributes:
      column: a field of the row; dots reach into nested objects. null meets no condition.
      equals: its value.
      one_of: values of which it is one.
      matches: regular expression found in its text.
      at_least: its least number.
      at_most: its greatest number.
      negate: take the rows that do not meet the condition.
    """

    column: str
    equals: str | bool | int | float | None = None
    one_of: list[str | bool | int | float] | None = None
    matches: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    negate: bool = False


class Selection(Section):
    """Which rows of a data set are taken, in which order.

    Attributes:
      filter: conditions that rows must meet; the rest is no part of the data.
      shuffle_seed: of the order of the problems; null keeps that of the data.
      limit: take only this many problems, after shuffling; null takes all.
      max_bad_fraction: stop when more than this share of rows cannot be read.
    """

    filter: tuple[Condition, ...] = ()
    shuffle_seed: int | None = None
    limit: int | None = Field(default=None, ge=1)
    max_bad_fraction: float = Field(default=0.01, ge=0, le=1)


class Table(Selection):
    """Which columns of a row make a problem.

    Attributes:
      prompt: field of the problem, or several to be joined; dots reach into nested objects.
      answer: field of the right answer.
      solution: field of the text for supervised warm starts; null takes the answer.
      id_column: field of a unique name; null numbers the lines.
      answer_pattern: regular expression whose first group is the answer within that field.
      boxed: the answer is the last `\\boxed{...}` within that field.
      choices: field of the choices of a multiple-choice problem, or a field for each; they are
        lettered, and the answer is the right one's letter.
      choice_answer: the answer's field holds the right choice's `label`, `text` or `index`.
      shuffle_choices: seed of their order, for data that puts the right one first; null keeps it.
      template: the problem's text, with `{prompt}`, `{choices}` or names of the prompt's fields in
        braces; null is the prompt, with the choices below it.
    """

    prompt: Names = "problem"
    answer: str = "answer"
    solution: str | None = None
    id_column: str | None = None
    answer_pattern: str | None = None
    boxed: bool = False
    choices: Names | None = None
    choice_answer: Literal["label", "text", "index"] = "label"
    shuffle_choices: int | None = None
    template: str | None = None


class Jsonl(Table):
    """Files with one JSON object a line.

    Attributes:
      kind: `jsonl`.
      path: the file, or a folder with one for each split.
      split: which of a folder's files.
    """

    kind: Literal["jsonl"]
    path: str
    split: str | None = None


class Parquet(Table):
    """Parquet files; needs the extra `data`.

    Attributes:
      kind: `parquet`, with the columns of `jsonl`.
      path: the file, or a folder with some for each split.
      split: which of a folder's files.
    """

    kind: Literal["parquet"]
    path: str
    split: str | None = None


class Hub(Table):
    """A data set of the Hugging Face hub; needs the extra `data`.

    Attributes:
      kind: `hub`, with the columns of `jsonl`.
      dataset: its id, or a directory that the `datasets` library reads.
      subset: its configuration, or several, read one after another.
      split: such as `train`.
      revision: branch, tag or commit.
    """

    kind: Literal["hub"]
    dataset: str
    subset: Names | None = None
    split: str = "train"
    revision: str | None = None


VERIFIERS = (
    "exact",
    "last_number",
    "gsm8k",
    "math",
    "choice",
    "reasoning_gym",
    "auto",
    "format",
)
"""Verifiers that have names."""

BenchmarkName = Literal[
    "math_train",
    "math",
    "math500",
    "gsm8k",
    "aime24",
    "aime25",
    "amc23",
    "minerva_math",
    "olympiadbench",
    "svamp",
    "arc_challenge",
    "arc_easy",
    "commonsense_qa",
    "openbookqa",
    "sciq",
]


class Preset(Selection):
    """A known benchmark, from the hub (needs the extra `data`) or a local path.

    Attributes:
      kind: `preset`, with the filter, order and limits of `jsonl`.
      name: `math_train`, `math`, `math500`, `gsm8k`, `aime24`, `aime25`, `amc23`, `minerva_math`,
        `olympiadbench`, `svamp`, `arc_challenge`, `arc_easy`, `commonsense_qa`, `openbookqa` or
        `sciq`.
      path: a JSON Lines or Parquet file, or a folder of them; null takes the hub.
      split: another split than the one that the name means.
      revision: branch, tag or commit of the hub's data set.
      template: the problem's text, with `{prompt}` and, of multiple choice, `{choices}`; null is
        the prompt, with the choices below it.
      shuffle_choices: seed of the choices' order; null keeps it, but for `sciq`.
    """

    kind: Literal["preset"]
    name: BenchmarkName
    path: str | None = None
    split: str | None = None
    revision: str | None = None
    template: str | None = None
    shuffle_choices: int | None = None


Source = Annotated[
    Arithmetic | ReasoningGym | Jsonl | Parquet | Hub | Preset, Field(discriminator="kind")
]


class VerifierPart(Section):
    """One of several verifiers whose rewards are added up; other keys are its options.

    Attributes:
      name: as `verifier.name`.
      weight: its reward is multiplied with this.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    weight: float = Field(default=1.0, gt=0)


class Verifier(Section):
    """How an answer becomes a reward.

    Attributes:
      name: `exact`, `last_number`, `gsm8k`, `math`, `choice`, `reasoning_gym`, `auto`, `format`, or
        your own `package.module:function` of response and answer; or a list of `{name: NAME,
        weight: NUMBER}`, with options of that verifier as further keys, whose sum is the reward.
      workers: processes that grade.
      timeout: seconds one answer may take; then it counts as invalid.
    """

    name: Annotated[
        Text | Annotated[list[VerifierPart], Field(min_length=1), Tag("<list>")],
        Discriminator(_text_or_list),
    ] = "exact"
    workers: int = Field(default=2, ge=1)
    timeout: float = Field(default=10.0, gt=0)

    @property
    def label(self) -> str:
        """The name, or those that are added up."""
        if isinstance(self.name, str):
            return self.name
        return " + ".join(f"{part.weight:g} {part.name}" for part in self.name)


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
