"""A client's end of a session without sockets, driven by hand: what protocols that answer nothing share."""

from collections.abc import Callable

from shared.errors import RemoteProtocolError
from shared.net.connection import Session
from tests.support.connections import MemoryConnection


class HandPeer:
    """`fault`: why the server has closed it."""

    def __init__(self, connection: MemoryConnection, session: Session) -> None:
        self.connection = connection
        self.session = session
        self.fault: RemoteProtocolError | None = None

    def send(self, *reads: bytes) -> None:
        """Each is one read of the server."""
        for data in reads:
            if data and not self.closed:
                self._call(lambda data=data: self.session.receive(data))  # type: ignore[misc]

    def close_input(self) -> None:
        self.session.receive_eof()

    def lose(self) -> None:
        self.connection.closed = True
        self.session.connection_lost()

    def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.connection.now + seconds
        while self.connection.deadline <= end:
            self.connection.now = max(self.connection.now, self.connection.deadline)
            self.connection.wake_at(float("inf"))
            self._call(lambda: self.session.on_deadline(self.connection.now))
        self.connection.now = end

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
