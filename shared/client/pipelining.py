"""A client's connection on which requests are answered in order.

Any number of tasks share it. Requests made at once go out together. When the connection is lost, each task
that waits for an answer gets an error: its request may or may not have been done. Protocols without answers
use `Sender`.
"""

from abc import abstractmethod
from collections import deque
from typing import Generic, TypeVar

from shared.client.dial import Disconnected, check_plain
from shared.client.loop import ClientConnection, Loop, Wakeup
from shared.errors import RemoteProtocolError

UNANSWERED_BYTES_MAX = 4 * 1024 * 1024
"""Requests in all that may wait to be sent or to be answered."""

A = TypeVar("A")
"""The protocol's object for an awaited answer."""


class PipelinedConnection(ClientConnection, Generic[A]):
    """One connection. `lost`: why it ended; None while it is up.

    `heard`: the server has answered at least once. `unanswered`: somebody waited for an answer when it ended.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._data = bytearray()
        self._begun = False
        self._awaited: deque[tuple[A, int]] = deque()
        self._unanswered_bytes = 0
        self._room = Wakeup(loop)
        self.lost: Disconnected | None = None
        self.heard = False
        self.unanswered = False

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
        while not self.ask_nowait(requests, answer):
            await self._room.wait()

    def ask_nowait(self, requests: bytes, answer: A) -> bool:
        """The same where nothing has to wait; else False."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        if self._unanswered_bytes > UNANSWERED_BYTES_MAX:
            return False
        self._awaited.append((answer, len(requests)))
        self._unanswered_bytes += len(requests)
        self.transport.write(requests)
        return True

    @property
    def awaited(self) -> A | None:
        """The answer object that is next in order."""
        return self._awaited[0][0] if self._awaited else None

    def answered(self) -> None:
        """Mark the next answer as complete."""
        self.heard = True
        self._unanswered_bytes -= self._awaited.popleft()[1]
        if self._unanswered_bytes <= UNANSWERED_BYTES_MAX // 2:
            self._room.wake()

    def lose(self, error: Disconnected) -> None:
        """End the connection. All waiting tasks get `Disconnected`."""
        if self.lost is None:
            self.lost = error
            self.transport.close()
            self._room.wake()
            self.unanswered = bool(self._awaited)
            while self._awaited:
                self.fail(self._awaited.popleft()[0], error)

    # -- what the loop calls

    def received(self, data: bytes | bytearray) -> None:
        try:
            if not self._begun:
                check_plain(data)
                self._begun = True
            self._data += data
            del self._data[: self.receive(self._data)]
        except (RemoteProtocolError, Disconnected) as error:
            self.lose(Disconnected(str(error)))

    def ended(self, error: Disconnected | None) -> None:
        self.lose(error or Disconnected("the server closed the connection"))
