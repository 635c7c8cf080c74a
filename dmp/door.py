"""The first eight bytes of a connection say what it speaks; then a session of that kind has it.

A table maps each header to what opens its session. Anything else is answered with the header of AMQP 0-9-1,
as that specification wants it, and the connection closes.
"""

from collections.abc import Callable, Mapping

from dmp.broker import Broker
from dmp.wire import AMQP_HEADER
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection, Session

HEADER_BYTES = len(AMQP_HEADER)

OpenSession = Callable[[Connection, Broker], Session]


class Door:
    """A session until the header is there; from then on it hands everything on."""

    __slots__ = ("_broker", "_connection", "_doors", "_header", "_session")

    def __init__(self, connection: Connection, broker: Broker, doors: Mapping[bytes, OpenSession]) -> None:
        self._connection = connection
        self._broker = broker
        self._doors = doors
        self._header = b""
        self._session: Session | None = None
        connection.wake_at(connection.now + broker.settings.login_seconds)

    def receive(self, data: bytes) -> None:
        session = self._session
        if session is None:
            missing = HEADER_BYTES - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if not any(header.startswith(self._header) for header in self._doors):
                raise RemoteProtocolError("not a protocol header", AMQP_HEADER)
            if len(self._header) < HEADER_BYTES:
                self._connection.await_rest()
                return
            session = self._session = self._doors[self._header](self._connection, self._broker)
            if not data:
                return
        session.receive(data)

    def receive_eof(self) -> None:
        if self._session is None:
            self._connection.finish()
        else:
            self._session.receive_eof()

    def on_deadline(self, now: float) -> None:
        if self._session is None:
            self._broker.counts.too_late += 1
            self._connection.finish()
        else:
            self._session.on_deadline(now)

    def connection_lost(self) -> None:
        if self._session is not None:
            self._session.connection_lost()
