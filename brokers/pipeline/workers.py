"""Spark's own parent of Python workers (`pyspark.daemon`), for a verb's workers on this machine.

A worker that comes to its end after the JVM has, or whose rows nobody wants any more, finds its pipe closed,
and says so with a stack trace on the terminal. That is no news, and left out here; anything else is said.
Workers that plan a read have Spark's own parent whatever the settings say, and Spark closes their pipes when
they had nothing to do for a minute: each asks for the same itself (`hush`).
"""

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


if __name__ == "__main__":
    from pyspark import daemon

    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
