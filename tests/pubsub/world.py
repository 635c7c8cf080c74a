"""Pub/sub without sockets: sessions over connections that the test reads by hand, datagrams put in frames."""

from collections.abc import Iterator, Sequence

import structlog

from pubsub.fanout import LAYOUT, Fanout
from pubsub.metrics import Counts
from pubsub.session import Session
from pubsub.sessions import Changed, Sessions
from pubsub.settings import PubsubSettings
from pubsub.wire import Command, Kind, Message, datagram, encode_command, encode_id, take_frames
from shared.access import Guard
from shared.budget import Account
from shared.net.datagram_sink import Frames
from tests.support.connections import MemoryConnection
from tests.support.hand_peer import HandPeer

LOG = structlog.stdlib.get_logger("test")


class World:
    """`said`: the lines of standard output; `changes`: what would be saved."""

    def __init__(self, settings: PubsubSettings | None = None, budget: Account | None = None) -> None:
        self.settings = settings or PubsubSettings()
        self.counts = Counts()
        self.said: list[str] = []
        self.changes: list[Changed] = []
        self.sessions = Sessions(
            self.settings, self.counts, LOG, save=self.changes.append, say=self.said.append, budget=budget
        )
        self.fanout = Fanout(self.sessions)
        self.peers = 0
        self.turns = 0

    def connect(self, data: bytes = b"") -> "Peer":
        self.peers += 1
        peer = Peer(self, MemoryConnection(peer=f"127.0.0.1:{self.peers}"))
        if data:
            peer.send(data)
        return peer

    def subscriber(self, client_id: bytes, *topics: bytes, keep: bool = False) -> "Peer":
        command = Command.KEEP if keep else Command.SUBSCRIBE
        return self.connect(encode_id(client_id) + b"".join(encode_command(command, each) for each in topics))

    def publish(self, *topics: bytes) -> None:
        """A STRING that is the topic itself, to each; all in one batch."""
        self.receive([datagram(topic, Kind.STRING, topic) for topic in topics])

    def receive(self, datagrams: Sequence[bytes], sender: bytes = b"127.0.0.1:9") -> None:
        for _ in self.turns_of(datagrams, sender):
            self.turns += 1

    def turns_of(self, datagrams: Sequence[bytes], sender: bytes = b"127.0.0.1:9") -> Iterator[None]:
        """The same, and everybody else's turn behind each of its own."""
        frames = b"".join(framed(each, sender) for each in datagrams)
        left: Frames | None = (frames, [len(each) for each in datagrams])
        while left is not None:
            left = self.fanout.receive_frames(*left)
            yield


def framed(data: bytes, sender: bytes) -> bytes:
    """As the network layer puts a datagram into a frame."""
    frame = bytearray(LAYOUT.frame_bytes)
    frame[: len(sender)] = sender
    for offset, size in LAYOUT.parts:
        part, data = data[:size], data[size:]
        frame[offset : offset + len(part)] = part
    return bytes(frame)


class Peer(HandPeer):
    """A subscriber's end, driven by hand."""

    def __init__(self, world: World, connection: MemoryConnection, gate: Guard | None = None) -> None:
        super().__init__(connection, Session(connection, world.sessions, gate))

    def messages(self) -> list[Message]:
        """All that has come since the last call; whole frames, and nothing behind them."""
        data = self.connection.taken()
        found, end = take_frames(data)
        assert end == len(data)
        return found

    def topics(self) -> list[bytes]:
        return [message.topic for message in self.messages()]
