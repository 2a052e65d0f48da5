"""Memory that is freed stays with the process, where the C library lets us say so.

A certificate frees and asks for the same few megabytes thousands of times. By default glibc gives them back to the
system each time, and getting them again, page by page, takes as long as many a library needs to quantize them.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h of glibc numbers them
_LARGEST_FROM_HEAP = 1 << 25  # bytes: the most that every version of glibc takes
_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> bool:
    """Keeps up to a gigabyte of freed memory for what the process allocates next, until it ends.

    Returns:
        Whether the C library does so; others than glibc are left as they are.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, no such library, Windows
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGEST_FROM_HEAP) and set_option(_TRIM_THRESHOLD, _KEPT))
