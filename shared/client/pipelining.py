"""A client's connection on which requests are answered in order: any number of tasks share one stream.

What tasks ask while a send is under way goes out together, in one piece. Who waits for an answer is told when
the connection is lost: what was asked then may or may not have been done. Where nothing is answered there is
`Sender`.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

import trio

from shared.client.dial import Disconnected, broken, check_plain
from shared.errors import RemoteProtocolError

RECEIVE_BYTES = 256 * 1024
UNANSWERED_BYTES_MAX = 4 * 1024 * 1024
"""Of requests: what waits to be sent, and what waits for its answer."""

A = TypeVar("A")
"""What a protocol has for an answer to come."""


class Asking(ABC, Generic[A]):
    """One connection's life. `rest`: what came behind a greeting. `lost`: why it ended, once it has."""

    def __init__(self, stream: trio.abc.Stream, rest: bytes = b"") -> None:
        self._stream = stream
        self._data = bytearray(rest)
        self._outgoing: list[bytes] = []
        self._awaited: deque[tuple[A, int]] = deque()
        self._unanswered_bytes = 0
        self._something = trio.Event()
        self._room = trio.Event()
        self._scope = trio.CancelScope()
        self.lost: Disconnected | None = None

    # -- a protocol's own

    @abstractmethod
    def receive(self, data: bytearray) -> int:
        """Take what is whole in `data`; returns how many bytes that was.

        Raises RemoteProtocolError, and Disconnected where the server says that this is the end.
        """

    @abstractmethod
    def fail(self, answer: A, error: Disconnected) -> None:
        """It will not come."""

    # -- what it may use

    async def ask(self, requests: bytes, answer: A) -> None:
        """Queue requests; their answer is told. Waits while too much is unanswered. Raises Disconnected."""
        while self._unanswered_bytes > UNANSWERED_BYTES_MAX and self.lost is None:
            await self._room.wait()
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))
        self._awaited.append((answer, len(requests)))
        self._unanswered_bytes += len(requests)
        self.say(requests)

    def say(self, data: bytes) -> None:
        """Queue what has no answer in turn. Only on a connection that is not lost."""
        self._outgoing.append(data)
        self._something.set()

    @property
    def awaited(self) -> A | None:
        """The answer that comes next."""
        return self._awaited[0][0] if self._awaited else None

    def answered(self) -> None:
        """It has come."""
        self._unanswered_bytes -= self._awaited.popleft()[1]
        if self._unanswered_bytes <= UNANSWERED_BYTES_MAX // 2:
            self._room.set()
            self._room = trio.Event()

    def lose(self, error: Disconnected) -> None:
        """Whatever waits fails."""
        if self.lost is None:
            self.lost = error
            self._scope.cancel()
            self._room.set()
            while self._awaited:
                self.fail(self._awaited.popleft()[0], error)

    # -- its life

    async def run(self) -> None:
        error = Disconnected("the server closed the connection")
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send)
                    await self._receive()
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            error = broken(group.exceptions[0])
        except* (RemoteProtocolError, Disconnected) as group:
            error = Disconnected(str(group.exceptions[0]))
        finally:
            self.lose(error)
            await trio.aclose_forcefully(self._stream)

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            self._something = trio.Event()
            while self._outgoing:
                outgoing, self._outgoing = self._outgoing, []
                await self._stream.send_all(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    async def _receive(self) -> None:
        data = self._data
        heard = bool(data)
        while True:
            del data[: self.receive(data)]
            received = await self._stream.receive_some(RECEIVE_BYTES)
            if not received:
                return
            if not heard:
                check_plain(received)
                heard = True
            data += received
