"""Tracing: copies of messages that pass a name, for whoever looks on. It never slows them.

A service that can be traced has `async def trace(self, tap)`, which runs while somebody looks on. It hooks
in somewhere, by `Tap.listen`, and gives the tap what passes. A tap takes `COPIES_MAX` a second. When it has
them it is unhooked until that second is over, so that a flood of messages meets a tap for some milliseconds
of each second, and costs nothing in the others.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import trio

from shared.access import matcher, text_of
from shared.net.connection import Connection
from shared.net.outbox import Outbox
from shared.objects import message_row

COPIES_MAX = 50
"""Of one name, in one protocol and second."""
BODY_BYTES = 4096
"""Of a copy; `bytes` is the size of the message."""

L = TypeVar("L", bound=Callable[..., None])


class Tap:
    """One name that is traced in one protocol. `name`: a glob, or what the protocol has for patterns.

    `room`: how many copies it takes yet in this second.
    """

    def __init__(self, name: str, take: Callable[[Mapping[str, Any]], None]) -> None:
        self.name = name
        self.room = COPIES_MAX
        self._take = take
        self._matches = matcher([name])
        self._spent = trio.Event()
        self._since = trio.current_time()

    def matches(self, *names: str | bytes) -> bool:
        """Whether one of them is what is traced."""
        return any(self._matches(text_of(name)) for name in names)

    def copy(self, name: str | bytes, body: bytes, position: int | None = None, **more: Any) -> None:
        """A message has passed; what there is no room for is left out. `more`: columns, in JSON's values."""
        if self.room <= 0:
            now = trio.current_time()
            if now < self._since + 1:
                return
            self._since, self.room = now, COPIES_MAX
        self.room -= 1
        row = message_row(position, body[:BODY_BYTES], name=shown(name), **more)
        self._take({**row, "bytes": len(body)})
        if self.room <= 0:
            self._spent.set()

    async def listen(self, hook: Callable[[], Callable[[], None]]) -> None:
        """`hook` has copies made from now on, and returns what ends that. Until cancelled."""
        while True:
            unhook = hook()
            try:
                await self._spent.wait()
            finally:
                unhook()
            await trio.sleep_until(self._since + 1)
            self._since, self.room, self._spent = trio.current_time(), COPIES_MAX, trio.Event()

    async def look_on(self, onlookers: list[L], take: L) -> None:
        """Have `take` among `onlookers`, which are called with what passes. Until cancelled."""

        def hook() -> Callable[[], None]:
            onlookers.append(take)
            return lambda: onlookers.remove(take)

        await self.listen(hook)


def shown(name: str | bytes) -> str:
    """A name as JSON can have it."""
    return text_of(name).encode(errors="surrogateescape").decode(errors="backslashreplace")


class Onlooker(Connection):
    """In place of a subscriber's connection: what is written to it goes to `take`, and nowhere else."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__("trace", Outbox(0))
        self._take = take

    def write(self, data: bytes | memoryview) -> None:
        self._take(bytes(data))
