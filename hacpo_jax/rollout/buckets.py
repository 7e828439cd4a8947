"""A few array lengths to compile for, instead of every length that occurs."""


def bucket(length: int, *, least: int = 8) -> int:
    """The smallest bucket that holds `length`: 8, 12, 16, 24, 32, 48, 64, ...

    Two buckets an octave bound padding to a third of the array and the number of compiled
    programs to twice the octaves between the shortest and the longest length.

    Args:
      length: tokens to hold, at least 0.
      least: the smallest bucket, a power of two.

    Returns:
      A length of at least `length`.
    """
    if length < 0:
        raise ValueError(f"length = {length}: must be 0 or more")
    size = least
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
