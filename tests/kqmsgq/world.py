"""A KqueueMsgQ without sockets: sessions over connections that the test reads by hand."""

from collections.abc import Callable

import structlog

from kqmsgq.counts import Counts
from kqmsgq.queues import Queues
from kqmsgq.session import Session
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import CONSUME, PRODUCE, Message, take_messages
from shared.checks import MemoryConnection
from shared.errors import RemoteProtocolError

LOG = structlog.stdlib.get_logger("test")


class World:
    def __init__(self, settings: KqmsgqSettings | None = None) -> None:
        self.settings = settings or KqmsgqSettings()
        self.counts = Counts()
        self.queues = Queues(self.settings, self.counts, LOG)
        self.peers = 0

    def connect(self, data: bytes = b"") -> "Peer":
        self.peers += 1
        peer = Peer(self, MemoryConnection(peer=f"127.0.0.1:{self.peers}"))
        if data:
            peer.send(data)
        return peer

    def producer(self, data: bytes = b"") -> "Peer":
        return self.connect(PRODUCE + data)

    def consumer(self, data: bytes = b"") -> "Peer":
        return self.connect(CONSUME + data)


class Peer:
    """A client's end, driven by hand. `fault`: why the server has closed it."""

    def __init__(self, world: World, connection: MemoryConnection) -> None:
        self.connection = connection
        self.session = Session(connection, world.queues)
        self.fault: RemoteProtocolError | None = None

    def send(self, *reads: bytes) -> None:
        """Each is one read of the server."""
        for data in reads:
            if data and not self.connection.finished and not self.connection.closed:
                self._call(lambda data=data: self.session.receive(data))

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

    def taken(self) -> bytes:
        return self.connection.taken()

    def messages(self) -> list[Message]:
        """All that has come since the last call; whole messages, and nothing behind them."""
        data = self.taken()
        found, end = take_messages(data, 1 << 32, 1 << 32)
        assert end == len(data)
        return found

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages()]

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
