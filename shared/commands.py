"""What the protocols' commands have in common: lines from standard input, and a server that goes away."""

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from shared.net.dial import Disconnected

READ_BYTES = 256 * 1024


async def line_runs(file: Any) -> AsyncIterator[list[bytes]]:
    """Lines as they come, many at a time, without their ends; the last may lack one.

    `file`: what `trio.wrap_file` makes of a binary file.
    """
    rest: list[bytes] = []  # pieces of a line whose end has not come
    while data := await file.read1(READ_BYTES):
        first, *lines = data.split(b"\n")
        rest.append(first)
        if lines:
            lines.insert(0, b"".join(rest))
            rest = [lines.pop()]
            yield [line.removesuffix(b"\r") for line in lines]
    if last := b"".join(rest):
        yield [last]


@contextmanager
def lost_is_refused(lost: type[Disconnected] = Disconnected) -> Iterator[None]:
    """A lost connection ends a command as a refused one does; `lost`: one of this kind."""
    try:
        yield
    except lost as error:
        raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from error
