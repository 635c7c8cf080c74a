"""Tracing: copies of the messages that pass a name, for observers, at no cost to the messages.

A service that can be traced has `async def trace(self, tap)`, which runs while somebody observes. It hooks
into the service by `Tap.listen`, and copies messages to the tap. A tap takes `COPIES_MAX` a second. Then it
is unhooked until the second is over. So a flood of messages meets a tap for some milliseconds of each second,
and costs nothing in the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import trio

from shared.access import text_of
from shared.globs import matcher
from shared.net.connection import Connection
from shared.net.outbox import Outbox
from shared.objects import message_row

COPIES_MAX = 50
"""Copies a second for one name in one protocol."""
BODY_BYTES = 4096
"""Bytes of a body that a copy holds; its `bytes` is the size of the whole message."""

L = TypeVar("L", bound=Callable[..., None])


class Tap:
    """A traced name in one protocol. `name`: a glob, or a pattern of the protocol.

    `room`: how many more copies it takes in this second.
    """

    def __init__(self, name: str, take: Callable[[Mapping[str, Any]], None]) -> None:
        self.name = name
        self.room = COPIES_MAX
        self._take = take
        self._matches = matcher([name])
        self._spent = trio.Event()
        self._since = trio.current_time()

    def matches(self, *names: str | bytes) -> bool:
        """Whether one of these names is traced."""
        return any(self._matches(text_of(name)) for name in names)

    def copy(self, name: str | bytes, body: bytes, position: int | None = None, **more: Any) -> None:
        """Copy a message that passed, if there is room. `more`: further columns, in JSON's values."""
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
        """Listen until cancelled. `hook` starts the copies, and returns a function that ends them."""
        while True:
            unhook = hook()
            try:
                await self._spent.wait()
            finally:
                unhook()
            await trio.sleep_until(self._since + 1)
            self._since, self.room, self._spent = trio.current_time(), COPIES_MAX, trio.Event()

    async def observe(self, observers: list[L], take: L) -> None:
        """Keep `take` among `observers`, which are called with messages that pass, until cancelled."""

        def hook() -> Callable[[], None]:
            observers.append(take)
            return lambda: observers.remove(take)

        await self.listen(hook)


def shown(name: str | bytes) -> str:
    """A name as text for JSON."""
    return text_of(name).encode(errors="surrogateescape").decode(errors="backslashreplace")


class Observer(Connection):
    """Stands in for a subscriber's connection: bytes written to it go to `take` alone."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__("trace", Outbox(0))
        self._take = take

    def write(self, data: bytes | memoryview) -> None:
        self._take(bytes(data))
