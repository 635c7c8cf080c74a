"""A command whose output goes into a pipe, and a reader that leaves before the end, as `head` does."""

import os
import sys
import threading

import pytest

from brokers.commands import cli


def run_and_leave(reads: int, *arguments: str) -> tuple[int, list[bytes]]:
    """The exit code, and what the reader has read, each time all that was there, when it left."""
    reader, writer = os.pipe()
    read: list[bytes] = []

    def leave() -> None:
        for _ in range(reads):
            read.append(os.read(reader, 1 << 20))
        os.close(reader)

    thread = threading.Thread(target=leave)
    with os.fdopen(writer, "w") as stdout, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        thread.start()
        code = cli.run(arguments)
        thread.join()
    return code, read
