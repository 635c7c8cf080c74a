"""A client's connection on which the server pushes: an async iterator over what arrives."""

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

import trio

from shared.client.dial import Address, Disconnected, broken, check_plain, keep_trying
from shared.client.retry import Retry
from shared.client.sender import Sender

RECEIVE_BYTES = 256 * 1024

Item = TypeVar("Item")
Connect = Callable[[], Awaitable[tuple[trio.abc.Stream, bytes]]]
"""Connects once; returns the stream and bytes already read from it. Raises OSError and Disconnected."""


class Receiver(Generic[Item]):
    """Iterates over the items that the server pushes, one by one or in batches. `_say` sends to the server.

    A lost connection raises Disconnected. With `retry_seconds` the reading task connects again instead, and
    sends `_first_words`. Items that the server pushed meanwhile are lost. After that time it raises
    Unreachable, also if servers accept connections and close them at once. `connect` replaces `Address.open`.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: Address | None = None,
        retry_seconds: float | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._stream = stream
        self._sender = Sender(stream)
        self._data = bytearray()
        self._heard = False
        self._items: list[Item] = []  # in reverse order: the next item is last
        self._address = address
        self._connect = connect
        self._retry = None if retry_seconds is None else Retry(retry_seconds, trio.current_time())

    def _take(self, data: bytearray) -> tuple[list[Item], int]:
        """The complete items at the front of `data`, and where they end. Raises RemoteProtocolError."""
        raise NotImplementedError

    def _first_words(self) -> bytes:
        """The first bytes on a new connection: login and subscriptions."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Send the first words on the first connection. Raises Disconnected."""
        await self._say(self._first_words())

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
                if self._retry is not None:
                    self._retry.heard()
            else:
                await self._connect_again(Disconnected("the server closed the connection"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if not self._items:
            self._items = (await self.batch())[::-1]
        return self._items.pop()

    async def aclose(self) -> None:
        """Close the connection at once."""
        self._retry = None
        await trio.aclose_forcefully(self._stream)

    async def _say(self, data: bytes) -> None:
        """Send. Raises Disconnected, unless the client reconnects: then `_first_words` carry the same."""
        try:
            await self._sender.send(data)
        except Disconnected:
            if self._retry is None:
                raise

    async def _connect_again(self, lost: Disconnected) -> None:
        if self._retry is None or self._address is None:
            raise lost
        connect = self._connect or self._open
        stream, data = await keep_trying(self._address, self._retry, connect, lost)
        await trio.aclose_forcefully(self._stream)
        self._stream, self._sender, self._data = stream, Sender(stream), bytearray(data)
        await self.begin()

    async def _open(self) -> tuple[trio.abc.Stream, bytes]:
        assert self._address is not None
        return await self._address.open(), b""
