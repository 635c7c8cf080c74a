"""A KqueueMsgQ without sockets: sessions over connections that the test reads by hand."""

import structlog

from kqmsgq.metrics import Counts
from kqmsgq.queues import Queues
from kqmsgq.session import Session
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import CONSUME, PRODUCE, Message, take_messages
from shared.budget import Account
from tests.support.connections import MemoryConnection
from tests.support.hand_peer import HandPeer

LOG = structlog.stdlib.get_logger("test")


class World:
    def __init__(self, settings: KqmsgqSettings | None = None, budget: Account | None = None) -> None:
        self.settings = settings or KqmsgqSettings()
        self.counts = Counts()
        self.queues = Queues(self.settings, self.counts, LOG, budget=budget)
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


class Peer(HandPeer):
    """A client's end, driven by hand."""

    def __init__(self, world: World, connection: MemoryConnection) -> None:
        super().__init__(connection, Session(connection, world.queues))

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
