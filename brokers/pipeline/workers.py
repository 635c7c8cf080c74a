"""Settings for Spark's Python workers: no useless stack traces (`hush`), and faster reads (`prepare`).

Run as a module this is Spark's own parent of workers (`pyspark.daemon`), for a command on this machine.

A worker finds its pipe closed if the JVM ended first, or if nobody wants its rows any more. Spark prints a
stack trace for that on the terminal, which is left out here. Workers that plan a read always have Spark's own
parent, and Spark closes their pipes after an idle minute. So they call `hush` themselves.
"""

import functools
import gc
import sys
import traceback

_print = traceback.print_exc


def print_exc() -> None:
    """Print the error being handled, unless it is a closed pipe."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        _print()


def hush() -> None:
    """Leave out these stack traces in a worker whose parent is Spark's own. Elsewhere do nothing."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == "pyspark.daemon":
        traceback.print_exc = print_exc  # type: ignore[assignment]


_BLOCK_BYTES_MAX = 32 << 20
"""The most that glibc takes. Chunks are smaller, so they come from the heap."""
_KEPT_BYTES = 64 << 20
"""Free memory that the heap keeps: enough for a task's chunks, as bytes and as rows."""


@functools.cache
def prepare() -> None:
    """Prepare this process for reading. Further calls do nothing."""
    hush()
    # Spark makes a worker collect garbage after each task. What was imported need not be walked.
    gc.freeze()
    from shared.process_limits import keep_freed_memory

    keep_freed_memory(_KEPT_BYTES, _BLOCK_BYTES_MAX)


if __name__ == "__main__":
    from pyspark import daemon

    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
