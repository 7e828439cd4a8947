"""Arithmetic problems made on the spot: a verifiable task that needs no download."""

import hashlib
import math
import operator
import random
from collections.abc import Callable
from typing import Literal

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.examples import Example

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
MAX_OPERAND = 10**9
FIELDS = ("{a}", "{op}", "{b}")


def arithmetic_examples(
    *,
    split: Literal["train", "held_out"],
    size: int,
    operands: tuple[int, int] = (0, 99),
    operations: str = "+",
    seed: int = 0,
    held_out_fraction: float = 0.1,
    template: str = "{a}{op}{b}=",
) -> tuple[Example, ...]:
    """Draws distinct problems `a op b` from one side of a fixed split.

    The side of a problem is decided by a hash of the problem alone, so that no seed, size or range
    can put one problem on both sides. `3+5` and `5+3` are two problems that share a side.

    Args:
      split: `train` or `held_out`.
      size: number of problems, at least 1.
      operands: smallest and largest operand, both included, within 0..10^9.
      operations: which of `+`, `-` and `*` to draw from, e.g. `"+-"`.
      seed: decides which problems are drawn and their order.
      held_out_fraction: expected share of all problems on the `held_out` side, 0.001 to 0.999.
      template: the prompt, with `{a}`, `{op}` and `{b}`.

    Returns:
      `size` examples in random order; answer and solution are the result in decimal digits.

    Raises:
      UserError: an argument out of its range, or more problems asked for than the split has.
    """
    _check_arguments(split, size, operands, operations, held_out_fraction, template)
    low, high = operands
    span = high - low + 1
    total = len(operations) * span * span

    def problem(index: int) -> tuple[int, str, int]:
        rest, b = divmod(index, span)
        which, a = divmod(rest, span)
        return low + a, operations[which], low + b

    share = held_out_fraction if split == "held_out" else 1 - held_out_fraction
    draws = min(total, math.ceil(1.5 * size / share) + 64)
    while True:
        candidates = (problem(i) for i in random.Random(seed).sample(range(total), draws))
        held_out = split == "held_out"
        chosen = [p for p in candidates if _is_held_out(*p, held_out_fraction) == held_out]
        if len(chosen) >= size:
            return tuple(_example(*p, template) for p in chosen[:size])
        if draws == total:
            raise UserError(
                "size",
                size,
                f"the {split} split has only {len(chosen)} distinct problems with operands"
                f" {low} to {high} and operations {operations!r}; widen the operands or lower size",
            )
        draws = min(total, 2 * draws)


def _example(a: int, op: str, b: int, template: str) -> Example:
    prompt = template.replace("{a}", str(a)).replace("{op}", op).replace("{b}", str(b))
    return Example(id=f"{a}{op}{b}", prompt=prompt, answer=str(OPERATIONS[op](a, b)))


def _is_held_out(a: int, op: str, b: int, fraction: float) -> bool:
    # Unlike hash(), a digest is the same in every process. Commuted problems are hashed alike, or
    # the answer to 5+3 could be learned from 3+5.
    if op in "+*":
        a, b = min(a, b), max(a, b)
    digest = hashlib.blake2b(f"{a}{op}{b}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def _check_arguments(
    split: str,
    size: int,
    operands: tuple[int, int],
    operations: str,
    held_out_fraction: float,
    template: str,
) -> None:
    low, high = operands
    if split not in ("train", "held_out"):
        raise UserError("split", split, "must be 'train' or 'held_out'")
    if size < 1:
        raise UserError("size", size, "must be at least 1")
    if not 0 <= low <= high <= MAX_OPERAND:
        raise UserError("operands", operands, f"must be 0 <= low <= high <= {MAX_OPERAND}")
    if not operations or set(operations) - set(OPERATIONS):
        raise UserError("operations", operations, "must be one or more of '+', '-' and '*'")
    if len(set(operations)) < len(operations):
        raise UserError("operations", operations, "must name each operation once")
    if not 0.001 <= held_out_fraction <= 0.999:
        raise UserError("held_out_fraction", held_out_fraction, "must be within 0.001 to 0.999")
    if missing := [field for field in FIELDS if field not in template]:
        raise UserError("template", template, f"must contain {' and '.join(missing)}")
