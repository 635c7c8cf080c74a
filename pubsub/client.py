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
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Unpack

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
    "connect",
    "open_publisher",
    "open_subscriber",
]

PORT = 7070
KIND = "pub/sub"
FULL_SECONDS = 0.001
"""How long a publisher waits where the kernel's buffer is full."""
TURN_DATAGRAMS = 64
"""So many datagrams are sent before other tasks have their turn."""


class Publisher:
    """Sends messages, as datagrams; made by `connect`."""

    def __init__(self, loop: Loop, sock: socket.socket, address: Address | None = None) -> None:
        self._loop = loop
        self._socket = sock
        self._sent = 0
        self._address = address

    async def publish(self, topic: str | bytes, kind: Kind, value: str) -> None:
        """Send a message; `value` is its printed form. Raises ValueError, and OSError if nobody listens."""
        await self.send(wire.datagram(_bytes(topic), kind, wire.payload_of(kind, value)))

    async def send(self, datagram: bytes) -> None:
        """Send a datagram made by `wire.datagram`."""
        while True:
            try:
                self._socket.send(datagram)
            except BlockingIOError:  # the kernel's buffer is full
                await self._loop.sleep(FULL_SECONDS)
            else:
                break
        self._sent += 1
        if self._sent % TURN_DATAGRAMS == 0:
            await self._loop.sleep(0)

    def check_heard(self) -> None:
        """Raise ConnectionRefusedError if the host has answered that nobody listens there.

        A near host answers at once; silence proves nothing.
        """
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))

    async def send_many(self, datagrams: Iterable[bytes]) -> None:
        for datagram in datagrams:
            await self.send(datagram)

    @asynccontextmanager
    async def subscribe(
        self, client_id: str, *topics: str | bytes, keep: bool = False, since: str | float | None = None
    ) -> AsyncIterator["Subscriber"]:
        """A subscriber to these topics over a connection of its own; see `open_subscriber`.

        `keep`, `since`: as in `Subscriber.subscribe`. With `retry_seconds` of the client a lost connection is
        made again.
        """
        assert self._address is not None
        first = _first_bytes(self._address, client_id)
        async with _subscriber(self._loop, self._address, first) as subscriber:
            await subscriber.subscribe(*topics, keep=keep, since=since)
            yield subscriber

    def close(self) -> None:
        self._socket.close()


class Subscriber(Receiver[Message]):
    """The receiving side; made by `open_subscriber`. It is an async iterator over messages.

    A subscriber that does not read loses its oldest messages or its connection, by the server's settings.
    """

    def __init__(self, loop: Loop, address: Address, first: bytes = b"") -> None:
        super().__init__(loop, address, address.retry_seconds)
        self._first = first
        self._subscriptions: dict[bytes, Command] = {}

    async def subscribe(
        self, *topics: str | bytes, keep: bool = False, since: str | float | None = None
    ) -> None:
        """Subscribe, from now on; `keep`: also to messages that arrive while this client is away.

        `since`: from so many seconds ago on, or from a time as `"10m"` or `"2026-01-31T12:00"`, to
        the whole minute before. What the server has recorded comes first, and once, also where the connection
        is made again. Raises ValueError.
        """
        command = Command.KEEP if keep else Command.SUBSCRIBE
        patterns = [_bytes(topic) for topic in topics]
        if since is None:
            said = [wire.encode_command(command, pattern) for pattern in patterns]
        else:
            minutes = wire.since_minutes(since, time.time_ns() // 1_000_000)
            said = [wire.encode_past(minutes, pattern, keep=keep) for pattern in patterns]
        self._subscriptions |= dict.fromkeys(patterns, command)
        await self._say(b"".join(said))

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
        return b"".join([self._first, *said])

    def _take(self, data: bytearray) -> tuple[list[Message], int]:
        return wire.take_frames(data)


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1", port: int = PORT, *, retry_seconds: float | None = None, **how: Unpack[How]
) -> AsyncIterator[Publisher]:
    """A publisher. Its datagrams have no login, and are not encrypted; its `subscribe` has both.

    `host` may be a URL: `pubsub+tls://ann@host:7070`. `how`: login and TLS of subscribers; `retry_seconds`:
    theirs. Raises OSError if `host` cannot be resolved.
    """
    address = Address.of(host, port, kind=KIND, protocol="pubsub", retry_seconds=retry_seconds, **how)
    async with open_loop() as loop:
        publisher = await open_datagrams(loop, address.host, address.port, address=address)
        try:
            yield publisher
        finally:
            publisher.close()


open_publisher = connect


async def open_datagrams(
    loop: Loop,
    host: str,
    port: int = PORT,
    sender: tuple[str, int] | None = None,
    address: Address | None = None,
) -> Publisher:
    """A publisher that the caller closes. `sender`: its socket's own address and port. Raises OSError."""
    try:
        places = await loop.resolve(host, port)
    except UnicodeError as error:  # no host can have that name (`a..b`)
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not the name of a host") from error
    family, kind, protocol, _, place = places[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        if sender is not None:
            sock.bind(sender)
        sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return Publisher(loop, sock, address)


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
    address = Address.of(host, port, kind=KIND, protocol="pubsub", retry_seconds=retry_seconds, **how)
    first = _first_bytes(address, client_id)
    async with open_loop() as loop, _subscriber(loop, address, first) as subscriber:
        yield subscriber


@asynccontextmanager
async def _subscriber(loop: Loop, address: Address, first: bytes) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber(loop, address, first)
    await subscriber.begin()
    try:
        yield subscriber
    finally:
        subscriber.close()


def _first_bytes(address: Address, client_id: str) -> bytes:
    """Who a subscriber is. Raises TypeError, and ValueError for an id that no server takes."""
    if not isinstance(client_id, str):
        raise TypeError(f"a client id is text, not {type(client_id).__name__}")
    first = wire.encode_id(client_id.encode())
    if address.login:
        first += wire.encode_login(address.login.user, address.login.secret)
    return first


def _bytes(topic: str | bytes) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic
