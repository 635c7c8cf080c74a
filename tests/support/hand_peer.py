"""A client's end of a session without sockets, driven by hand: what all protocols' tests share."""

from collections.abc import Callable
from math import inf
from typing import Any

from shared.errors import RemoteProtocolError
from shared.net.connection import Session
from tests.support.connections import MemoryConnection


class HandPeer:
    """`fault`: why the server has closed it."""

    def __init__(self, connection: MemoryConnection, session: Session) -> None:
        self.connection = connection
        connection.hand_over(session)
        self.fault: RemoteProtocolError | None = None
        self._unread = b""

    @property
    def session(self) -> Any:
        """Who reads what this peer says."""
        return self.connection.session

    def send(self, *reads: bytes) -> None:
        """Each is one read of the server. What a paused server does not read waits, as in a socket."""
        for data in reads:
            self._unread += data
            self.pump()

    def pump(self) -> None:
        """Let the server read what waits, where it reads again."""
        self.read_on()

    def read_on(self) -> bool:
        """One read, if the server reads and there is something; whether it was."""
        if not self._unread or not self.connection.reading or self.closed:
            return False
        data, self._unread = self._unread, b""
        self._call(lambda: self.session.receive(data))
        return True

    def wake(self) -> None:
        """The session's deadline has come."""
        self.connection.wake_at(inf)
        self._call(lambda: self.session.on_deadline(self.connection.now))

    def wake_if_due(self) -> bool:
        if self.connection.deadline > self.connection.now:
            return False
        self.wake()
        return True

    def close_input(self) -> None:
        self.session.receive_eof()

    def lose(self) -> None:
        self.connection.closed = self.connection.mute = True
        self.connection.outbox.clear()
        self.session.connection_lost()

    def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.connection.now + seconds
        while self.connection.deadline <= end:
            self.now_is(max(self.connection.now, self.connection.deadline))
            self.wake()
            self.pump()
        self.now_is(end)

    def now_is(self, now: float) -> None:
        self.connection.now = now

    @property
    def closed(self) -> bool:
        return self.connection.finished or self.connection.closed

    def _call(self, call: Callable[[], None]) -> None:
        """As the driver does it."""
        try:
            call()
        except RemoteProtocolError as error:
            self.fault = error
            self.connection.write(error.reply)
            self.connection.finish()
