"""What a worker process of Spark's is told once, before it plans or reads: a good part of a query's cost."""

import ctypes
import functools
import gc

from brokers.pipeline import workers

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAPPED_BYTES = 32 << 20
"""The most that glibc takes. Chunks are smaller, and so come from the heap."""
_KEPT_BYTES = 64 << 20
"""What the heap keeps when it is free: a task's chunks, as bytes and as rows."""


@functools.cache
def prepare() -> None:
    """Once a process; further calls do nothing."""
    workers.hush()
    # Spark has a worker collect garbage after each task, and what was imported is never that.
    gc.freeze()
    # Else each chunk's memory is given back to the system, and every page of the next one is faulted in anew.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
