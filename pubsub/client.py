"""Pub/sub's clients: a publisher that sends datagrams, and a subscriber with one connection.

    async with open_publisher() as publisher:
        await publisher.publish("hall/3/temperature", Kind.FLOAT, "21.50")

    async with open_subscriber("A") as subscriber:
        await subscriber.subscribe("hall/+/temperature")
        async for message in subscriber:
            print(message.topic, message.value)

A datagram may be lost, and no error tells. A subscriber's commands get no answers; a lost connection raises
`Disconnected`. The server remembers the subscriptions of a client id, so a client that returns with it need
not subscribe again. A subscriber with `retry_seconds` reconnects by itself.
"""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Unpack

import trio

from pubsub import wire
from pubsub.wire import Command, Kind, Message
from shared.client.dial import Address, Disconnected, How, Unreachable
from shared.client.loop import Loop
from shared.client.receiver import Receiver
from shared.client.running import open_loop

__all__ = [
    "Disconnected",
    "Kind",
    "Message",
    "Publisher",
    "Subscriber",
    "Unreachable",
    "open_publisher",
    "open_subscriber",
]

PORT = 7070


class Publisher:
    """Sends messages; made by `open_publisher`."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock

    async def publish(self, topic: str | bytes, kind: Kind, value: str) -> None:
        """Send a message; `value` is its printed form. Raises ValueError, and OSError if nobody listens."""
        await self.send(wire.datagram(_bytes(topic), kind, wire.payload_of(kind, value)))

    async def send(self, datagram: bytes) -> None:
        """Send a datagram made by `wire.datagram`."""
        await self._socket.send(datagram)

    def check_heard(self) -> None:
        """Raise ConnectionRefusedError if the host has answered that nobody listens there.

        A near host answers at once; silence proves nothing.
        """
        number = self._socket.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))

    async def send_many(self, datagrams: Iterable[bytes]) -> None:
        for each in datagrams:
            await self._socket.send(each)


class Subscriber(Receiver[Message]):
    """The receiving side; made by `open_subscriber`. It is an async iterator over messages.

    A subscriber that does not read loses its oldest messages or its connection, by the server's settings.
    """

    def __init__(
        self, loop: Loop, address: Address, client_id: bytes = b"", retry_seconds: float | None = None
    ) -> None:
        super().__init__(loop, address, retry_seconds)
        self._id = client_id
        self._subscriptions: dict[bytes, Command] = {}

    async def subscribe(self, *topics: str | bytes, keep: bool = False) -> None:
        """Subscribe, from now on; `keep`: also to messages that arrive while this client is away."""
        command = Command.KEEP if keep else Command.SUBSCRIBE
        patterns = [_bytes(topic) for topic in topics]
        said = b"".join(wire.encode_command(command, pattern) for pattern in patterns)
        self._subscriptions |= dict.fromkeys(patterns, command)
        await self._say(said)

    async def unsubscribe(self, *topics: str | bytes) -> None:
        """End the subscriptions to these patterns; messages under way still arrive."""
        patterns = [_bytes(topic) for topic in topics]
        for pattern in patterns:
            self._subscriptions.pop(pattern, None)
        await self._say(b"".join(wire.encode_command(Command.UNSUBSCRIBE, each) for each in patterns))

    async def disconnect(self) -> None:
        """Ask the server to close the connection. Subscriptions stay."""
        self._retry = None
        await self._say(wire.encode_command(Command.DISCONNECT))

    def _first_words(self) -> bytes:
        """The id and the subscriptions; a server that restarted without its folder needs these."""
        said = (wire.encode_command(command, pattern) for pattern, command in self._subscriptions.items())
        return b"".join([self._id, *said])

    def _take(self, data: bytearray) -> tuple[list[Message], int]:
        return wire.take_frames(data)


@asynccontextmanager
async def open_publisher(host: str = "127.0.0.1", port: int = PORT) -> AsyncIterator[Publisher]:
    """Open a publisher. Raises OSError if `host` cannot be resolved."""
    with await open_datagrams(host, port) as sock:
        yield Publisher(sock)


async def open_datagrams(
    host: str, port: int = PORT, sender: tuple[str, int] | None = None
) -> trio.socket.SocketType:
    """A UDP socket to a server. `sender`: the socket's own address and port. Raises OSError."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
    except UnicodeError as error:  # no host can have that name (`a..b`)
        raise trio.socket.gaierror(trio.socket.EAI_NONAME, f"{host!r} is not the name of a host") from error
    family, kind, protocol, _, address = found[0]
    sock = trio.socket.socket(family, kind, protocol)
    try:
        if sender is not None:
            await sock.bind(sender)
        await sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


@asynccontextmanager
async def open_subscriber(
    client_id: str,
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    retry_seconds: float | None = None,
    **how: Unpack[How],
) -> AsyncIterator[Subscriber]:
    """Connect a subscriber; the end of the block closes it. `client_id`: 1 to 10 printable ASCII characters.

    The server refuses an id that is connected already, and a wrong login: the first read raises Disconnected.
    `host` may be a URL: `pubsub+tls://ann@host:7070`. `how`: login and TLS. `retry_seconds`: for so long the
    reading task tries to replace a lost connection; messages sent meanwhile are lost unless they are kept.
    Without it a lost connection raises Disconnected. Raises ValueError for a malformed id,
    ConnectionRefusedError if nobody listens, and ssl.SSLError.
    """
    if not isinstance(client_id, str):
        raise TypeError(f"a client id is text, not {type(client_id).__name__}")
    first = wire.encode_id(client_id.encode())
    address = Address.of(host, port, kind="pub/sub", protocol="pubsub", **how)
    if address.login:
        first += wire.encode_login(address.login.user, address.login.secret)
    async with open_loop() as loop:
        subscriber = Subscriber(loop, address, first, retry_seconds)
        await subscriber.begin()
        try:
            yield subscriber
        finally:
            subscriber.close()


def _bytes(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic
