"""A client's end of an AMQP connection, driven by hand, without a socket."""

from typing import Any

from pamqp import base, body, commands, frame, header, heartbeat

from dmp.amqp.wire import METHODS, encode
from dmp.properties import NO_PROPERTIES
from dmp.session import ProtocolHeader
from dmp.settings import DmpSettings
from dmp.wire import AMQP_HEADER
from tests.dmp.world import World
from tests.support.connections import MemoryConnection
from tests.support.hand_peer import HandPeer

Frames = list[tuple[int, Any]]


class Peer(HandPeer):
    """One connection of a world."""

    def __init__(self, world: World, **options: Any) -> None:
        connection = MemoryConnection(now=world.clock.now, **options)
        super().__init__(connection, ProtocolHeader(connection, world.broker))
        self.world = world

    def pump(self) -> None:
        while self.read_on() or self.wake_if_due():
            pass

    def method(self, method: base.Frame, channel: int = 1) -> None:
        self.send(encode(method, channel))

    def publish(
        self,
        exchange: str,
        key: str,
        *bodies: bytes,
        properties: bytes = NO_PROPERTIES,
        channel: int = 1,
        **options: bool,
    ) -> None:
        self.send(publish(exchange, key, *bodies, properties=properties, channel=channel, **options))

    def say(self, method: base.Frame, channel: int = 1) -> Frames:
        """What the server answers to a method, and whatever else it says then."""
        self.method(method, channel)
        return self.frames()

    def frames(self) -> Frames:
        """What the server has said since, decoded by pamqp."""
        self.pump()
        return decoded(self.connection.taken())

    def frames_now(self) -> Frames:
        """The same, without time for more."""
        return decoded(self.connection.taken())

    def names(self) -> list[str]:
        return [value.name for _, value in self.frames()]

    def ask(self, method: base.Frame, channel: int = 1) -> Any:
        """The one answer to a method, once the disk has caught up."""
        self.method(method, channel)
        self.world.settle()
        found = self.frames()
        assert len(found) == 1, [value.name for _, value in found]
        return found[0][1]

    def ask_get(self, queue: str) -> bytes:
        """The next message of a queue, by basic.get without acknowledgement."""
        frames = self.say(commands.Basic.Get(0, queue, True))
        assert "Basic.GetOk" in [value.name for _, value in frames]
        return b"".join(bodies(frames))

    def login(self, *, capabilities: dict[str, Any] | None = None, frame_max: int = 0) -> "Peer":
        """As far as an open channel 1."""
        self.send(login(capabilities, frame_max) + encode(commands.Channel.Open(), 1))
        names = self.names()
        assert names == [
            "Connection.Start",
            "Connection.Tune",
            "Connection.OpenOk",
            "Channel.OpenOk",
        ]
        return self

    def now_is(self, now: float) -> None:
        self.connection.now = self.world.clock.now = now


def start_ok(
    capabilities: dict[str, Any] | None = None, response: str = "\0guest\0guest", mechanism: str = "PLAIN"
) -> commands.Connection.StartOk:
    return commands.Connection.StartOk({"capabilities": capabilities or {}}, mechanism, response, "en_US")


def login(capabilities: dict[str, Any] | None = None, frame_max: int = 0, heartbeat: int = 0) -> bytes:
    """What a client says until its connection is open."""
    methods = (
        start_ok(capabilities),
        commands.Connection.TuneOk(0, frame_max, heartbeat),
        commands.Connection.Open("/"),
    )
    return AMQP_HEADER + b"".join(encode(method, 0) for method in methods)


def publish(
    exchange: str,
    key: str,
    *bodies: bytes,
    properties: bytes = NO_PROPERTIES,
    channel: int = 1,
    part: int = 1 << 30,
    **options: bool,
) -> bytes:
    method = encode(commands.Basic.Publish(0, exchange, key, **options), channel)
    parts: list[bytes] = []
    for content in bodies:
        parts += [method, content_header(len(content), properties, channel)]
        for start in range(0, len(content), part):
            parts.append(frame.marshal(body.ContentBody(content[start : start + part]), channel))
    return b"".join(parts)


def content_header(size: int, properties: bytes = NO_PROPERTIES, channel: int = 1) -> bytes:
    payload = b"\0\x3c\0\0" + size.to_bytes(8, "big") + properties
    return b"\x02" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def decoded(data: bytes) -> Frames:
    found: Frames = []
    end = 0
    while end < len(data):
        start, end = end, end + 8 + int.from_bytes(data[end + 3 : end + 7], "big")
        whole = data[start:end]
        assert whole[-1] == 0xCE, whole
        if whole[0] == 1:
            method = METHODS[int.from_bytes(whole[7:11], "big")]()
            method.unmarshal(whole[11:-1])
            found.append((int.from_bytes(whole[1:3], "big"), method))
        else:
            _, channel, value = frame.unmarshal(whole)
            assert isinstance(value, header.ContentHeader | body.ContentBody | heartbeat.Heartbeat)
            found.append((channel, value))
    return found


def bodies(frames: Frames) -> list[bytes]:
    return [value.value for _, value in frames if isinstance(value, body.ContentBody)]


async def opened(settings: DmpSettings | None = None) -> tuple[World, Peer]:
    """A world, and a peer in it that has logged in and opened channel 1."""
    world = await World.open(settings)
    return world, Peer(world).login()


def closed(peer: Peer) -> tuple[str, int]:
    """The close that the server has said last, and its code."""
    close = close_of(peer)
    return close.name, close.reply_code


def close_of(peer: Peer) -> Any:
    """The close that the server has said last."""
    return [value for _, value in peer.frames() if value.name.endswith(".Close")][-1]
