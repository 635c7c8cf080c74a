"""The reader of a command's output, where that is a pipe: what it has read, and whether it has closed.

Bytes in a pipe are not read yet. A reader takes all that it finds there: `head -3` throws away what it read
beyond three lines. So a command that acknowledges messages writes one at a time and waits until it is
read, some 30 us each. A writer cannot know more than that. Output that is no pipe counts as read at once.
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
"""The longest that one wait for a reader blocks the loop."""
PAUSE_SECONDS = 0.001


class OutputReader:
    """The reader of standard output, as that is when this object is made."""

    def __init__(self) -> None:
        self._pipe = _standard_output_pipe()
        self._is_narrow = False
        self._pause_at = 0.0
        self._room = select.poll()
        if self._pipe is not None:
            self._room.register(self._pipe, select.POLLOUT)

    def portions(self, messages: Sequence[T]) -> Iterable[Sequence[T]]:
        """Split `messages` into what to write at once; call `wait_taken` after each part."""
        return [messages] if self._pipe is None else ([message] for message in messages)

    async def wait_taken(self) -> None:
        """Wait until the reader has read everything. Raises BrokenPipeError if it closes first."""
        if self._pipe is None:
            return
        while not self._is_empty(self._pipe):
            self._raise_left()
            await trio.sleep(PAUSE_SECONDS)
        if trio.current_time() >= self._pause_at:
            await trio.sleep(PAUSE_SECONDS)
            self._pause_at = trio.current_time() + TURN_MS / 1000

    async def was_taken(self, deadline: float) -> bool:
        """As `wait_taken`, until `deadline` on trio's clock; returns whether it has read everything."""
        with trio.move_on_at(deadline) as waiting:
            await self.wait_taken()
        return not waiting.cancelled_caught

    async def wait_left(self) -> None:
        """Wait until the reader closes, then raise BrokenPipeError, even while there is nothing to write."""
        while self._pipe is not None:
            self._raise_left()
            await trio.sleep(WATCH_SECONDS)

    def _is_empty(self, pipe: int) -> bool:
        """Whether the pipe is empty within TURN_MS. A pipe of one page has room only when it is empty."""
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
        # The pipe holds more than a page. Where the system cannot shrink pipes, nothing is waited for.
        return error.errno != errno.EBUSY
    return True


def _standard_output_pipe() -> int | None:
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (AttributeError, OSError, ValueError):  # no standard output, or not a file of the system
        return None
