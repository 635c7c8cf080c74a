"""A client's connection on which requests are answered in order, and the client that replaces lost ones.

Any number of tasks share one stream. Requests made during a send go out together in the next. When the
connection is lost, each task that waits for an answer gets an error: its request may or may not have been
done. Protocols without answers use `Sender`.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from shared.client.dial import Address, Disconnected, Unreachable, broken, check_plain, keep_trying
from shared.client.retry import Retry
from shared.errors import RemoteProtocolError

RECEIVE_BYTES = 256 * 1024
UNANSWERED_BYTES_MAX = 4 * 1024 * 1024
"""Requests in all that may wait to be sent or to be answered."""

A = TypeVar("A")
"""The protocol's object for an awaited answer."""


class PipelinedConnection(ABC, Generic[A]):
    """One connection. `rest`: bytes read after the greeting. `lost`: why it ended; None while it is up.

    `heard`: the server has answered at least once.
    """

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
        self.heard = False

    # -- what a protocol implements

    @abstractmethod
    def receive(self, data: bytearray) -> int:
        """Take all complete answers in `data`. Returns the number of bytes taken.

        Raises RemoteProtocolError, and Disconnected if the server announces the end of the connection.
        """

    @abstractmethod
    def fail(self, answer: A, error: Disconnected) -> None:
        """The answer will not come."""

    # -- what a protocol calls

    async def ask(self, requests: bytes, answer: A) -> None:
        """Queue requests that get one `answer`. Waits while too many are unanswered. Raises Disconnected."""
        while self._unanswered_bytes > UNANSWERED_BYTES_MAX and self.lost is None:
            await self._room.wait()
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))
        self._awaited.append((answer, len(requests)))
        self._unanswered_bytes += len(requests)
        self.say(requests)

    def say(self, data: bytes) -> None:
        """Queue bytes that get no answer. The connection must not be lost."""
        self._outgoing.append(data)
        self._something.set()

    @property
    def awaited(self) -> A | None:
        """The answer object that is next in order."""
        return self._awaited[0][0] if self._awaited else None

    def answered(self) -> None:
        """Mark the next answer as complete."""
        self.heard = True
        self._unanswered_bytes -= self._awaited.popleft()[1]
        if self._unanswered_bytes <= UNANSWERED_BYTES_MAX // 2:
            self._room.set()
            self._room = trio.Event()

    def lose(self, error: Disconnected) -> None:
        """End the connection. All waiting tasks get `Disconnected`."""
        if self.lost is None:
            self.lost = error
            self._scope.cancel()
            self._room.set()
            while self._awaited:
                self.fail(self._awaited.popleft()[0], error)

    # -- running

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


_CLOSED = "the client is closed"
Link = TypeVar("Link", bound=PipelinedConnection[Any])
Result = TypeVar("Result")


class Reconnecting(Generic[Link]):
    """A connection that is made when first needed, and replaced when lost.

    `open_link` makes one. If it raises OSError or Disconnected it is called again, for up to
    `retry_seconds`. `link`: the newest, None before the first use. `closed`: no further one is made.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        address: Address,
        retry_seconds: float,
        open_link: Callable[[], Awaitable[Link]],
        link: Link | None = None,
    ) -> None:
        self._nursery = nursery
        self._address = address
        self._open_link = open_link
        self._retry = Retry(retry_seconds, trio.current_time())
        self._connecting = trio.Lock()
        self.closed = False
        self.link = link
        if link is not None:
            nursery.start_soon(link.run)

    async def connected(self) -> Link:
        """The link, replaced if it was lost. Raises Unreachable, and other errors of `open_link`."""
        if self.link is not None and self.link.lost is None:
            return self.link
        async with self._connecting:  # the first task connects, the others find the link
            if self.link is None or self.link.lost is not None:
                lost = None if self.link is None else self.link.lost
                if self.link is not None and self.link.heard:
                    self._retry.heard()
                try:
                    self.link = await keep_trying(self._address, self._retry, self._dial, lost)
                except trio.ClosedResourceError:
                    raise Unreachable(_CLOSED) from None
            return self.link

    async def _dial(self) -> Link:
        if self.closed:
            raise trio.ClosedResourceError  # an error that a new attempt would not mend
        link = self.link = await self._open_link()  # at once: `close` must find it, also after a cancellation
        self._nursery.start_soon(link.run)
        if self.closed:
            link.lose(Unreachable(_CLOSED))
        return link

    async def repeat(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Run `attempt`, again over a new connection while one is lost. It must be harmless to do twice.

        Raises the errors of `attempt`, but Unreachable in place of Disconnected.
        """
        while True:
            try:
                return await attempt()
            except Unreachable:
                raise
            except Disconnected:
                continue

    def close(self) -> None:
        """Close at once. Waiting tasks get an error."""
        self.closed = True
        if self.link is not None:
            self.link.lose(Unreachable(_CLOSED))

    def raise_if_closed(self) -> None:
        """Raises Unreachable."""
        if self.closed:
            raise Unreachable(_CLOSED)
