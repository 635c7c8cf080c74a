"""DMP connections to a `World`'s broker without sockets, as their clients see them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from dmp import queues, wire
from dmp.data_types import short, take_short
from dmp.declarations import ExchangeKind, QueueKind
from dmp.message import Head
from dmp.queues import Queue
from dmp.refusals import Code
from dmp.session import ProtocolHeader
from dmp.settings import DmpSettings
from dmp.wire import DMP_HEADER
from tests.dmp.world import World
from tests.support.connections import MemoryConnection
from tests.support.hand_peer import HandPeer

GREETING = wire.reply(wire.Reply.OK, wire.GREETING)


class Peer(HandPeer):
    """One DMP connection, served as by a driver."""

    def __init__(self, world: World, *, bound: int = 1 << 20) -> None:
        connection = MemoryConnection(now=world.clock.now, bound=bound)
        super().__init__(connection, ProtocolHeader(connection, world.broker))
        self.world = world
        self.over = False
        self.read = b""
        """What came behind the answer to the lease, at once."""

    def say(self, data: bytes) -> bytes:
        """Send, also where the server has paused; what it has written since."""
        if self.closed:
            return b""
        self._call(lambda: self.session.receive(data))
        return self.connection.taken()

    def wait(self, seconds: float) -> bytes:
        """Time passes, for this connection and the broker."""
        self.world.advance(seconds)
        self.connection.now = self.world.clock.now
        self.wake_if_due()
        return self.connection.taken()

    def close(self) -> None:
        """The connection is gone, with all that it has not sent."""
        if not self.over:
            self.over = True
            self.connection.abort("test")
            self.lose()


class Application:
    """A principal: what it declares and leases, and the DMP connections that it opens."""

    def __init__(self, world: World, owner: queues.Application | None = None) -> None:
        self.world = world
        self.owner = owner or world.broker.new_application("guest")
        self.returned: list[tuple[Code, bytes, bytes]] = []

    def exchange(self, name: bytes, type_: str = "topic") -> None:
        self.world.topology.declare_exchange(name, ExchangeKind(type_))

    def queue(self, name: bytes, exchange: bytes | None = None, key: bytes = b"#", **kind: Any) -> Queue:
        """An exclusive queue, bound."""
        declared = self.world.topology.declare_queue(name, QueueKind(exclusive=True, **kind), self.owner)[0]
        if exchange is not None:
            self.world.topology.bind(exchange, declared, key)
        return declared

    def sink_lease(self, name: bytes) -> bytes:
        return self.world.broker.leases.grant(
            self.owner, self.world.topology.exchange(name), self._send_return
        ).encode()

    def feed_lease(self, name: bytes) -> bytes:
        return self.world.broker.leases.grant(
            self.owner, self.world.topology.queue(name, self.owner)
        ).encode()

    def open(self, lease: bytes, *, bound: int = 1 << 20) -> Peer:
        """A connection by that lease, its dialog over."""
        peer = Peer(self.world, bound=bound)
        said = peer.say(DMP_HEADER + short(lease))
        said = said[1 + said[0] :]
        peer.read = said[1 + said[0] :]
        return peer

    def sink(self, name: bytes) -> Peer:
        return self.open(self.sink_lease(name))

    def feed(self, name: bytes) -> Peer:
        return self.open(self.feed_lease(name))

    def close(self) -> None:
        self.owner.release()

    def _send_return(self, code: Code, head: Head, body: bytes) -> None:
        self.returned.append((code, head.exchange, body))


async def opened(settings: DmpSettings | None = None) -> tuple[World, Application]:
    """A broker, and an application that has declared the exchange `quotes`."""
    world = await World.open(settings)
    app = Application(world)
    app.exchange(b"quotes")
    return world, app


def packed(
    *bodies: bytes,
    key: bytes = b"k",
    exchange: bytes = b"",
    properties: bytes = wire.NO_PROPERTIES,
    options: int = 0,
) -> bytes:
    """Messages as a sink's client writes them."""
    return b"".join(
        wire.message(wire.Message(exchange, key, body, properties, wire.MessageOptions(options)))
        for body in bodies
    )


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data, cut at these places; those beyond its end begin anew."""
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


def bodies(data: bytes) -> list[bytes]:
    """What a feed's client reads."""
    messages, end = wire.take_messages(data)
    assert end == len(data)
    return [message.body for message in messages]


def texts(data: bytes) -> Sequence[str]:
    """Short strings, one after the other."""
    found = []
    while data:
        text = take_short(data)
        assert text is not None
        found.append(text.decode())
        data = data[1 + len(text) :]
    return found
