"""What becomes of memory that arrays on a CPU have had."""

import ctypes

_MMAP_THRESHOLD = -3  # of mallopt(3), in malloc.h
_RETURNED = 1 << 20


def return_freed_memory() -> None:
    """Have what arrays of a megabyte or more were in go back to the system once they are let go of.

    glibc else keeps it when their sizes are below some threshold that grows with what is freed, up
    to 32 MiB: the weights of single layers, which answering takes apart, would lie beside all that
    an update holds. Nothing is done, and nothing need be, where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl and macOS have none, Windows no such call
        return
    mallopt(_MMAP_THRESHOLD, _RETURNED)
