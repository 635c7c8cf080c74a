"""A client's end of a connection on which the server pushes: an async iterator over what comes."""

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

import trio

from shared.client.dial import Disconnected, Turned, broken, check_plain
from shared.client.sender import Sender

RECEIVE_BYTES = 256 * 1024

Item = TypeVar("Item")
Connect = Callable[[], Awaitable[tuple[trio.abc.Stream, bytes]]]
"""Connects anew: the stream, and what has come on it already. Raises Unreachable."""


class Receiver(Generic[Item]):
    """What the server pushes, whole items, one by one or in batches; `_say` is the other direction.

    A lost connection raises Disconnected. With `reconnect` it is made again instead, by whoever reads, and
    begins with `_first_words`; what the server had sent meanwhile is lost. Where servers take connections and
    close them at once without a word, that ends after `retry_seconds`: Unreachable.
    """

    def __init__(
        self, stream: trio.abc.Stream, reconnect: Connect | None = None, retry_seconds: float = 0.0
    ) -> None:
        self._stream = stream
        self._sender = Sender(stream)
        self._data = bytearray()
        self._heard = False
        self._items: list[Item] = []  # in reverse: the next is last
        self._reconnect = reconnect
        self._turned = Turned(retry_seconds)
        self._came = False  # something, on this connection

    def _take(self, data: bytearray) -> tuple[list[Item], int]:
        """What is whole at the front of `data`, and where it ends. Raises RemoteProtocolError."""
        raise NotImplementedError

    def _first_words(self) -> bytes:
        """What a new connection begins with: who we are, and what we are subscribed to."""
        raise NotImplementedError

    async def batch(self) -> list[Item]:
        """All that is here; waits for one. Raises Disconnected, RemoteProtocolError."""
        if self._items:
            found = self._items[::-1]
            self._items = []
            return found
        while True:
            found, end = self._take(self._data)
            del self._data[:end]
            if found:
                return found
            try:
                received = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                await self._connect_again(broken(error, "closed"))
                continue
            if received:
                if not self._heard:
                    check_plain(received)
                    self._heard = True
                self._data += received
                self._came = True
            else:
                await self._connect_again(Disconnected("the server closed the connection"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if not self._items:
            self._items = (await self.batch())[::-1]
        return self._items.pop()

    async def aclose(self) -> None:
        """Close the connection, without a word."""
        self._reconnect = None
        await trio.aclose_forcefully(self._stream)

    async def _say(self, data: bytes) -> None:
        """Send. Raises Disconnected, but where the connection is made again, which says it anew."""
        try:
            await self._sender.send(data)
        except Disconnected:
            if self._reconnect is None:
                raise

    async def _connect_again(self, lost: Disconnected) -> None:
        if self._reconnect is None:
            raise lost
        await self._turned.away(self._came, lost)
        self._came = False
        stream, data = await self._reconnect()
        self._turned.made()
        await trio.aclose_forcefully(self._stream)
        self._stream, self._sender, self._data = stream, Sender(stream), bytearray(data)
        await self._say(self._first_words())
