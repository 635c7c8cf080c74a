"""Spark's own parent of Python workers (`pyspark.daemon`), for a verb's workers on this machine.

A worker that comes to its end after the JVM has, or whose rows nobody wants any more, finds its pipe closed,
and says so with a stack trace on the terminal. That is no news, and left out here; anything else is said.
"""

import sys
import traceback

from pyspark import daemon

_print = traceback.print_exc


def print_exc() -> None:
    """Of the error being handled, unless it is that nobody listens."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        _print()


if __name__ == "__main__":
    traceback.print_exc = print_exc  # type: ignore[assignment]
    daemon.manager()
