"""What the protocols' commands share: messages to send, messages to show, and the end of a lost server."""

import errno
import math
import os
import select
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import attrs
import trio

from shared.cli.progress import Update, counting
from shared.client.dial import Disconnected
from shared.client.nursery import open_nursery
from shared.errors import EXIT_LOST, EXIT_UNAVAILABLE, NoneInTime, UsageError

READ_BYTES = 256 * 1024
TOLD_SECONDS = 1.0
"""After so long without a message a command that waits says so on a terminal."""
LOOK_SECONDS = 0.05
"""How often standard input is looked at while nothing is there."""
T = TypeVar("T")


class StandardInput:
    """Standard input as bytes. It is read only when something is there: an interrupt would not end a read."""

    def __init__(self) -> None:
        self._file: Any = trio.wrap_file(sys.stdin.buffer)

    async def read1(self, most: int) -> bytes:
        """What is there, at most so much; b"" at the end."""
        # trio could wait for it, but not for a regular file, and trio.lowlevel is the drivers' alone.
        while not select.select((self._file.fileno(),), (), (), 0)[0]:  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)
        data: bytes = await self._file.read1(most)
        return data

    async def read(self) -> bytes:
        """All of it."""
        pieces = []
        while data := await self.read1(READ_BYTES):
            pieces.append(data)
        return b"".join(pieces)


async def line_runs(file: Any) -> AsyncGenerator[list[bytes], None]:
    """Yield lists of lines as they arrive, without their line ends. The last line may lack one.

    `file`: it has a `read1` as `StandardInput`.
    """
    rest: list[bytes] = []  # pieces of a line that is not complete yet
    while data := await file.read1(READ_BYTES):
        first, *lines = data.split(b"\n")
        rest.append(first)
        if lines:
            lines.insert(0, b"".join(rest))
            rest = [lines.pop()]
            yield [line.removesuffix(b"\r") for line in lines]
    if last := b"".join(rest):
        yield [last]


def keyed(argument: str, words: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE words as a dict; a value that is JSON is decoded. Raises UsageError."""
    from json import loads

    arguments: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key):
            raise UsageError(argument, f"{word!r} is not KEY=VALUE")
        try:
            arguments[key] = loads(value)
        except ValueError:
            arguments[key] = value
    return arguments


@attrs.define(eq=False)
class Remaining:
    """How many messages a command may still take; None: no limit. False when none is left."""

    count: int | None

    def __bool__(self) -> bool:
        return self.count is None or self.count > 0

    def of(self, messages: Sequence[T]) -> Sequence[T]:
        """The first of `messages`, as many as may still be taken."""
        if self.count is not None:
            messages = messages[: self.count]
            self.count -= len(messages)
        return messages

    async def within(self, seconds: float | None, arriving: Awaitable[Sequence[T]]) -> Sequence[T]:
        """As `of`, for messages that are still to come; none if that takes longer than `seconds`.

        Raises NoneInTime if a limit says that more are wanted.
        """
        with trio.move_on_after(math.inf if seconds is None else seconds):
            return self.of(await arriving)
        if self.count is not None:
            raise NoneInTime(f"no message came in time; {self.count} more were asked for")
        return ()


def warn(text: str) -> None:
    """Tell the user something beside a command's output."""
    with suppress(OSError):  # standard error cannot be written
        print(f"brokers: {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def waiting_is_told(queue: str) -> AsyncIterator[Callable[[], None]]:
    """Tell on a terminal that messages are waited for, unless what is yielded is called within a second."""
    waiting = trio.CancelScope()

    async def tell() -> None:
        with waiting:
            await trio.sleep(TOLD_SECONDS)
            warn(f"{queue} has no message to give; waiting for one (Ctrl-C ends this)")

    async with open_nursery() as nursery:
        if sys.stderr.isatty():
            nursery.start_soon(tell)
        yield waiting.cancel


@contextmanager
def counting_input() -> Iterator[Update]:
    """Count what is sent of standard input. Somebody who types it is told how to end it, and sees no counter
    over what he types."""
    if sys.stdin.isatty():
        warn("each line that you type is a message; Ctrl-D ends this")
        yield lambda done, size: None
        return
    with counting("messages") as update:
        yield update


@contextmanager
def lost_is_refused(lost: type[Disconnected] = Disconnected) -> Iterator[None]:
    """Turn a lost connection (the exception class `lost`) into the error of a refused command."""
    try:
        yield
    except lost as error:
        if error.exit_code not in (EXIT_LOST, EXIT_UNAVAILABLE):  # the server was there, and refused
            raise
        raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from error


async def send_given(
    send: Callable[[list[bytes]], Awaitable[None]], messages: Sequence[str], *, whole: bool = False
) -> int:
    """Send a command's messages: those given as arguments, else standard input, whole or line by line.

    Returns their number. Raises UsageError for a message that no server accepts.
    """
    done = size = 0
    try:
        if messages:
            await send([os.fsencode(message) for message in messages])
            return len(messages)
        stdin = StandardInput()
        if whole:
            await send([await stdin.read()])
            return 1
        with counting_input() as update:
            async with aclosing(line_runs(stdin)) as runs:
                async for lines in runs:
                    await send(lines)
                    done += len(lines)
                    size += sum(map(len, lines))
                    update(done, size)
    except ValueError as error:
        where = "--message" if messages else "--whole" if whole else "standard input"
        raise UsageError(where, str(error)) from None
    return done


def bodies_shown(bodies: Iterable[bytes], *, raw: bool = False) -> Sequence[str | bytes]:
    """Messages for the host to show: as text lines on a terminal, else as bytes, with line ends unless
    `raw`."""
    if raw:
        return [b"".join(bodies)]
    if sys.stdout.isatty():
        return [body.decode(errors="backslashreplace") for body in bodies]
    return [b"".join([body + b"\n" for body in bodies])]
