"""Who speaks to the server of an operation: blocking sockets, one thread, a class a protocol."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Self, TypeVar

from pamqp import base, body, commands, frame, header

from tests.support import dms_spec as dms
from tests.trials.fairness.served import PATIENCE_SECONDS, Served


class Peer:
    """A connection with a buffer."""

    endpoint: ClassVar[str]

    def __init__(self, served: Served, greeting: bytes = b"") -> None:
        self._socket = socket.create_connection(served.address(self.endpoint), timeout=PATIENCE_SECONDS)
        self.data = bytearray()
        self.send(greeting)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def until(self, done: Callable[[bytearray], bool]) -> None:
        """Read until the buffer holds what it has to."""
        while not done(self.data):
            received = self._socket.recv(1 << 20)
            assert received, f"closed behind {bytes(self.data[-200:])!r}"
            self.data += received

    def read(self, size: int) -> None:
        self.until(lambda data: len(data) >= size)

    def hear(self, word: bytes, count: int = 1) -> None:
        """Read until it has come so often."""
        self.until(lambda data: data.count(word) >= count)

    def has_heard(self) -> bool:
        """Anything, or it comes within a moment."""
        self._socket.settimeout(0.05)
        try:
            self.data += self._socket.recv(1 << 20)
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(PATIENCE_SECONDS)
        return bool(self.data)


AnyPeer = TypeVar("AnyPeer", bound=Peer)


@contextmanager
def crowd(count: int, connect: Callable[[int], AnyPeer]) -> Iterator[list[AnyPeer]]:
    """So many connections, each made of its number."""
    with ExitStack() as stack:
        peers = []
        for number in range(count):
            peers.append(connect(number))
            stack.callback(peers[-1].close)
        yield peers


class Pubsub(Peer):
    endpoint = "pubsub"


class Kqmsgq(Peer):
    endpoint = "kqmsgq"


class Dmp(Peer):
    """A feed or a sink, by its lease."""

    endpoint = "dmp"


class Logmq(Peer):
    endpoint = "logmq"

    def ask(self, lines: Sequence[bytes]) -> None:
        """An answer of one line each; a thousand on their way at a time."""
        for at in range(0, len(lines), 1000):
            some = lines[at : at + 1000]
            self.ask_at_once(b"".join(some), len(some))

    def ask_at_once(self, data: bytes, count: int, word: bytes = b"\n") -> None:
        """All that is asked, with so many answers that have the word."""
        self.data.clear()
        self.send(data)
        self.hear(word, count)


def ping(served: Served) -> None:
    """Everything that was to be done on the loop has begun, at least."""
    with Logmq(served, b"PING\n") as peer:
        peer.hear(b"PONG\n")


class Dms(Peer):
    """A client of DMS with its handshake made."""

    endpoint = "dms"

    def __init__(self, served: Served) -> None:
        super().__init__(served, dms.frame(dms.HANDSHAKE, 1, b"fair"))
        self.replies(1)

    def ask(self, requests: Sequence[bytes]) -> list[dms.Reply]:
        """One reply each; some hundred on their way at a time."""
        found = []
        for at in range(0, len(requests), 500):
            self.send(b"".join(requests[at : at + 500]))
            found += self.replies(len(requests[at : at + 500]))
        return found

    def create(self, *names: str, options: bytes = b"") -> None:
        self.ask([dms.frame(dms.CREATE, 1, dms.name(name, options)) for name in names])

    def delete(self, *names: str) -> None:
        self.ask([dms.frame(dms.DELETE, 1, dms.name(name)) for name in names])

    def produce(self, *names: str, body: bytes = b"x" * 100) -> None:
        self.ask([dms.frame(dms.PRODUCE, 1, dms.name(name, body)) for name in names])

    def depths(self) -> dict[str, int]:
        ((*_, payload),) = self.ask([dms.frame(dms.LIST, 1)])
        return dict(dms.listed(payload)[1])

    def replies(self, count: int) -> list[dms.Reply]:
        found = dms.parse(self.data)
        while len(found) < count:
            self.read(len(self.data) + 1)
            found += dms.parse(self.data)
        wrong = [reply for reply in found if reply[0] == dms.ERROR]
        assert not wrong, wrong[:3]
        return found


class Amqp(Peer):
    """A client of AMQP 0-9-1, on channel 1 where it does not say another."""

    endpoint = "dmp"

    def __init__(self, served: Served) -> None:
        super().__init__(served, b"AMQP\0\0\x09\x01")
        self._published = 0
        self.wait("Connection.Start")
        self.say(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), channel=0)
        tune = self.wait("Connection.Tune")
        self.say(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self.say(commands.Connection.Open("/"), channel=0)
        self.wait("Connection.OpenOk")
        self.call(commands.Channel.Open())

    def say(self, *frames: base.Frame, channel: int = 1) -> None:
        self.send(b"".join(frame.marshal(each, channel) for each in frames))

    def call(self, method: base.Frame, channel: int = 1) -> Any:
        """The answer, which says by its name that the method was taken."""
        self.say(method, channel=channel)
        return self.wait(f"{method.name}Ok")

    def wait(self, name: str, count: int = 1) -> Any:
        """The next method of this name, or the last of so many; others are passed over."""
        while True:
            self.until(_has_frame)
            size = 8 + int.from_bytes(self.data[3:7], "big")
            _, _, value = frame.unmarshal(bytes(self.data[:size]))
            del self.data[:size]
            count -= value.name == name
            if not count:
                return value
            assert value.name not in ("Channel.Close", "Connection.Close"), value

    def publish(
        self, exchange: str, key: str, count: int, payload: bytes = b"x" * 100, properties: Any = None
    ) -> None:
        """With confirms, and wait for them all."""
        self.publish_all(message(exchange, key, payload, properties) * count, count)

    def publish_all(self, messages: bytes, count: int) -> None:
        """The same for messages that differ."""
        self.call(commands.Confirm.Select())
        self._published += count
        self.send(messages)
        tag = 0
        while tag < self._published:
            tag = self.wait("Basic.Ack").delivery_tag

    def depth(self, queue: str = "q") -> int:
        answer = self.call(commands.Queue.Declare(queue=queue, passive=True))
        return int(answer.message_count or 0)

    def lease(self) -> bytes:
        """The one that it has asked for, a short string: it stands behind the method's two numbers."""
        self.until(_has_frame)
        lease = bytes(self.data[11:-1])
        self.data.clear()
        return lease


def _has_frame(data: bytearray) -> bool:
    return len(data) >= 7 and len(data) >= 8 + int.from_bytes(data[3:7], "big")


PERSISTENT = commands.Basic.Properties(delivery_mode=2)


def message(exchange: str, key: str, payload: bytes, properties: Any = None) -> bytes:
    return (
        frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), 1)
        + frame.marshal(header.ContentHeader(0, len(payload), properties or commands.Basic.Properties()), 1)
        + frame.marshal(body.ContentBody(payload), 1)
    )
