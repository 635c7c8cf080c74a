"""What Spark's Python workers are told: when to be quiet (`hush`), and how to read faster (`prepare`).

Run as a module this is Spark's own parent of workers (`pyspark.daemon`), for a command on this machine.

A worker that comes to its end after the JVM has, or whose rows nobody wants any more, finds its pipe closed,
and says so with a stack trace on the terminal. That is no news, and left out here; anything else is said.
Workers that plan a read have Spark's own parent whatever the settings say, and Spark closes their pipes when
they had nothing to do for a minute: each asks for the same itself (`hush`).
"""

import functools
import gc
import sys
import traceback

_print = traceback.print_exc


def print_exc() -> None:
    """Of the error being handled, unless it is that nobody listens."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        _print()


def hush() -> None:
    """In a worker whose parent is Spark's own: leave it out there, too. Anywhere else nothing."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == "pyspark.daemon":
        traceback.print_exc = print_exc  # type: ignore[assignment]


_BLOCK_BYTES_MAX = 32 << 20
"""The most that glibc takes. Chunks are smaller, and so come from the heap."""
_KEPT_BYTES = 64 << 20
"""What the heap keeps when it is free: a task's chunks, as bytes and as rows."""


@functools.cache
def prepare() -> None:
    """Once a process; further calls do nothing."""
    hush()
    # Spark has a worker collect garbage after each task, and what was imported is never that.
    gc.freeze()
    from shared.process_limits import keep_freed_memory

    keep_freed_memory(_KEPT_BYTES, _BLOCK_BYTES_MAX)


if __name__ == "__main__":
    from pyspark import daemon

    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
