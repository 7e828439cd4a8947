"""A few array lengths to compile for, instead of every length that occurs."""

SMALLEST = 4


def bucket(length: int) -> int:
    """The smallest bucket that holds `length`: 4, 6, 8, 12, 16, 24, 32, ...

    Two buckets an octave bound padding to a third of the array and the number of compiled
    programs to twice the octaves between the shortest and the longest length.

    Args:
      length: tokens to hold, at least 0.

    Returns:
      A length of at least `length`.
    """
    if length < 0:
        raise ValueError(f"length = {length}: must be 0 or more")
    size = SMALLEST
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


NARROWEST_RING = 64
ALIGNED = 16
"""Wider rings have a multiple of this: 16 numbers are what a cache of a CPU reads at once, and a
TPU lays tokens out in tiles of 8 or 16."""


def ring_widths(max_new_tokens: int) -> tuple[int, ...]:
    """Widths that a cache of generated tokens has in turn while the answers grow.

    Each is half the next, or a little more, so that a decode costs what its answers have and not
    what they may have, and the number of compiled programs is that of the octaves above
    `NARROWEST_RING`.

    Args:
      max_new_tokens: C, longest answer, at least 1.

    Returns:
      Widths in increasing order, multiples of `ALIGNED` or less than that. The last is the first
      such width with room for C - 1 tokens: the last token of an answer is drawn but never
      attended to.
    """
    widths = [_aligned(max(max_new_tokens - 1, 1))]
    while widths[0] > NARROWEST_RING:
        widths.insert(0, _aligned(-(-widths[0] // 2)))
    return tuple(widths)


def _aligned(width: int) -> int:
    return width if width < ALIGNED else -(-width // ALIGNED) * ALIGNED


def fitting_width(widths: tuple[int, ...], width: int, longest: int) -> int:
    """The width that a ring should have next: one more when it is full, one less when the answers
    that are left fill three quarters of that.

    Args:
      widths: from `ring_widths`.
      width: what it has, one of them.
      longest: tokens in the ring of the longest running answer, less than the last width.
    """
    place = widths.index(width)
    if longest >= width:
        return widths[place + 1]
    if place and 4 * longest <= 3 * widths[place - 1]:
        return widths[place - 1]
    return width
