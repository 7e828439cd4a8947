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
