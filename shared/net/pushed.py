"""A client's end of a connection on which the server pushes: an async iterator over what comes."""

from typing import Generic, Self, TypeVar

import trio

from shared.net.dial import Disconnected
from shared.net.sender import Sender

RECEIVE_BYTES = 256 * 1024

Item = TypeVar("Item")


class Receiver(Generic[Item]):
    """What the server pushes, whole items, one by one or in batches; `_send` is the other direction."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._send = Sender(stream).send
        self._data = bytearray()
        self._items: list[Item] = []  # in reverse: the next is last

    def _take(self, data: bytearray) -> tuple[list[Item], int]:
        """What is whole at the front of `data`, and where it ends. Raises RemoteProtocolError."""
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
                raise Disconnected(f"the connection broke ({error.__cause__ or 'closed'})") from error
            if not received:
                raise Disconnected("the server closed the connection")
            self._data += received

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if not self._items:
            self._items = (await self.batch())[::-1]
        return self._items.pop()
