"""A client's connection on which the server pushes: an async iterator over what arrives."""

from typing import Generic, Self, TypeVar

from shared.client.dial import Address, Disconnected, check_plain
from shared.client.loop import ClientConnection, Loop, Wakeup
from shared.client.reconnecting import keep_trying
from shared.client.retry import Retry
from shared.errors import BrokerError

READ_AHEAD_BYTES = 1024 * 1024
"""Bytes that may wait for whoever iterates. While there are more the connection is not read."""

Item = TypeVar("Item")


class Receiver(ClientConnection, Generic[Item]):
    """Iterates over the items that the server pushes, one by one or in batches. `_say` sends to the server.

    A lost connection raises Disconnected. With `retry_seconds` the reading task connects again instead, and
    sends `_first_words`. Items that the server pushed meanwhile are lost. After that time it raises
    Unreachable, also if servers accept connections and close them at once.
    """

    def __init__(self, loop: Loop, address: Address, retry_seconds: float | None = None) -> None:
        self._loop = loop
        self._address = address
        self._data = bytearray()
        self._begun = False
        self._arrival = Wakeup(loop)
        self._lost: Disconnected | None = None
        self._items: list[Item] = []  # in reverse order: the next item is last
        self._retry = None if retry_seconds is None else Retry(retry_seconds, loop.now())

    def _take(self, data: bytearray) -> tuple[list[Item], int]:
        """The complete items at the front of `data`, and where they end. Raises RemoteProtocolError."""
        raise NotImplementedError

    def _first_words(self) -> bytes:
        """The first bytes on a new connection: login and subscriptions."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Connect, and send the first words. Raises as `Loop.connect`."""
        self.restart()
        await self._loop.connect(self._address, self)
        self.transport.write(self._first_words())

    def restart(self, data: bytes = b"") -> None:
        """A connection is made anew; `data`: what it has said already."""
        self._data[:] = data
        self._lost = None

    @property
    def has_more(self) -> bool:
        """Whether the next item is here already."""
        return bool(self._items)

    async def batch(self) -> list[Item]:
        """All items that have arrived; waits for one. Raises Disconnected, RemoteProtocolError."""
        if self._items:
            items = self._items[::-1]
            self._items = []
            return items
        while True:
            items, end = self._take(self._data)
            del self._data[:end]
            if items:
                return items
            if self._lost is not None:
                await self._connect_again(self._lost)
                continue
            self.transport.resume_reading()
            await self._arrival.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if not self._items:
            self._items = (await self.batch())[::-1]
        return self._items.pop()

    def close(self) -> None:
        """Close the connection at once."""
        self._retry = None
        self.transport.close()
        self.ended(Disconnected("the connection broke (closed)"))

    async def _say(self, data: bytes) -> None:
        """Send. Raises Disconnected, unless the client reconnects: then `_first_words` carry the same."""
        if self._lost is None:
            self.transport.write(data)
            await self.transport.drain()
        if self._lost is not None and self._retry is None:
            raise self._lost.with_traceback(None)

    async def _connect_again(self, lost: Disconnected) -> None:
        if self._retry is None:
            raise lost.with_traceback(None)
        try:
            await keep_trying(self._loop, self._address, self._retry, self.begin, lost)
        except BaseException:
            self._lost = lost  # the next call connects again: who waited was cancelled, or gave up
            raise

    # What the loop calls.

    def received(self, data: bytes | bytearray) -> None:
        try:
            if not self._begun:
                check_plain(data)
                self._begun = True
        except BrokerError as error:
            self.transport.close()
            self.ended(Disconnected(str(error)))
            return
        self._data += data
        if len(self._data) > READ_AHEAD_BYTES:
            self.transport.pause_reading()
        if self._retry is not None:
            self._retry.heard()
        self._arrival.wake()

    def ended(self, error: Disconnected | None) -> None:
        self._lost = error or Disconnected("the server closed the connection")
        self._arrival.wake()
