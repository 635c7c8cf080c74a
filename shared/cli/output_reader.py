"""Whoever reads what a command shows, where that is a pipe: what it has taken, and that it has left.

What was written into a pipe is not yet read, and a reader takes as much at once as it finds there: `head -3`
throws away what it read beyond three lines. So a command that must know what was taken (it acknowledges it)
writes one message at a time and waits until it is read: some 30 us each. That is the most a writer can know;
what a reader does with what it has read is its own. Anything but a pipe has taken what it was given.
"""

import errno
import fcntl
import os
import select
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

import trio

T = TypeVar("T")

WATCH_SECONDS = 0.5
"""How long a command that waits for more may outlive its reader."""
TURN_MS = 10
"""How long the loop stands still, at the most, for readers to take what they are given."""
PAUSE_SECONDS = 0.001


class OutputReader:
    """Of standard output, as that is when this is made."""

    def __init__(self) -> None:
        self._pipe = _standard_output_pipe()
        self._is_narrow = False
        self._pause_at = 0.0
        self._room = select.poll()
        if self._pipe is not None:
            self._room.register(self._pipe, select.POLLOUT)

    def portions(self, messages: Sequence[T]) -> Iterable[Sequence[T]]:
        """What to show at once, each followed by `wait_taken`."""
        return [messages] if self._pipe is None else ([message] for message in messages)

    async def wait_taken(self) -> None:
        """Until all that was shown is read. Raises BrokenPipeError when the reader has left before."""
        if self._pipe is None:
            return
        while not self._is_empty(self._pipe):
            self._raise_left()
            await trio.sleep(PAUSE_SECONDS)
        if trio.current_time() >= self._pause_at:
            await trio.sleep(PAUSE_SECONDS)
            self._pause_at = trio.current_time() + TURN_MS / 1000

    async def wait_left(self) -> None:
        """Raises BrokenPipeError when the reader has left, though there be nothing to write."""
        while self._pipe is not None:
            self._raise_left()
            await trio.sleep(WATCH_SECONDS)

    def _is_empty(self, pipe: int) -> bool:
        """Whether it is, or is in TURN_MS: a pipe of one page has room when it is empty, and not before."""
        self._is_narrow = self._is_narrow or _narrowed(pipe)
        return self._is_narrow and any(events & select.POLLOUT for _, events in self._room.poll(TURN_MS))

    def _raise_left(self) -> None:
        if any(events & ~select.POLLOUT for _, events in self._room.poll(0)):
            raise BrokenPipeError


def _narrowed(pipe: int) -> bool:
    """Whether the pipe holds one page now."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1)  # rounded up to a page
    except OSError as error:
        # More than that is in it. A system that cannot do it at all leaves nothing to wait for.
        return error.errno != errno.EBUSY
    return True


def _standard_output_pipe() -> int | None:
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (AttributeError, OSError, ValueError):  # none, or not the system's
        return None
