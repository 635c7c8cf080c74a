"""A process of a module here, which is spoken to by its standard input and output."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import attrs


@attrs.frozen
class Helper:
    """A process of a module here. `requests`: its standard input; `answers`: its standard output."""

    requests: IO[bytes]
    answers: IO[bytes]

    def number(self) -> int:
        """The next line that it says; the first one is its port."""
        return int(self.answers.readline())


@contextmanager
def helper(module: str, *words: str) -> Iterator[Helper]:
    """Run a module here in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Helper(process.stdin, process.stdout)
        finally:
            process.kill()
