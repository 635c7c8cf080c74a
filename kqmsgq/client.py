"""KqueueMsgQ's clients: a producer and a consumer, each one connection.

    async with open_producer() as producer:
        await producer.send("orders", b"hello")

    async with open_consumer() as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            ...

The protocol has no answers: `send` returns once the kernel has the bytes. The end of a producer's block waits
until the server has read everything and closed. A lost connection raises `Disconnected`. It is unknown what
arrived, so nothing is sent again. `NotAllTaken` says that the server ended with a reset instead: it dropped
messages that no rule allows, or it stopped. A consumer with `retry_seconds` connects and subscribes again; it
misses messages that are sent meanwhile.

Any number of tasks may share a producer. What they send at once goes out together. A cancelled send is made
all the same.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Unpack

from kqmsgq import wire
from kqmsgq.wire import Message
from shared.client.dial import Address, Disconnected, How, Unreachable
from shared.client.login import Login
from shared.client.loop import Loop
from shared.client.receiver import Receiver
from shared.client.running import open_loop
from shared.client.sender import Sender

__all__ = [
    "Consumer",
    "Disconnected",
    "Message",
    "NotAllTaken",
    "Producer",
    "Unreachable",
    "connect",
    "open_consumer",
    "open_producer",
]

PORT = 8000
KIND = "KqueueMsgQ"
NAME_BYTES_MAX = 4096
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
LIMITS = NAME_BYTES_MAX, MESSAGE_BYTES_MAX


class NotAllTaken(Disconnected):
    """The server reset the connection at its end."""

    exit_code = 1

    def __str__(self) -> str:
        why = "as it does for messages that no rule allows (its log names the rule), and when it stops"
        return f"not all messages were taken: the server ended the connection by a reset, {why}"


class Producer:
    """The sending side; made by `open_producer`. A queue is text (UTF-8) or bytes, a message bytes."""

    def __init__(self, loop: Loop, address: Address, limits: tuple[int, int] = LIMITS) -> None:
        self._loop = loop
        self._address = address
        self._limits = limits
        self._sender = Sender(loop, secret=bool(address.login))

    async def begin(self) -> None:
        """Connect. Raises as `Loop.connect` does, and Disconnected."""
        await self._loop.connect(self._address, self._sender)
        await self._sender.send(_account(self._address.login) + wire.PRODUCE)

    async def send(self, queue: str | bytes, body: bytes) -> None:
        """Send a message. Raises Disconnected, and ValueError for a message above the server's limits."""
        await self._sender.send(self._message(queue, body))

    async def send_many(self, messages: Iterable[tuple[str | bytes, bytes]]) -> None:
        """Send (queue, message) pairs, many at a time."""
        await self._sender.send_many(self._message(queue, body) for queue, body in messages)

    async def finish(self) -> None:
        """End sending, and wait until the server has read everything and closed.

        Raises Disconnected, and NotAllTaken.
        """
        try:
            await self._sender.finish()
        except Disconnected as error:
            if self._sender.reset:
                raise NotAllTaken from error
            raise

    @asynccontextmanager
    async def consume(self, *queues: str | bytes) -> AsyncIterator["Consumer"]:
        """A consumer over a connection of its own, subscribed to these queues; for none, to all.

        With `retry_seconds` of the client a lost connection is made again; see `open_consumer`.
        """
        consumer = Consumer(self._loop, self._address, self._limits)
        await consumer.begin()
        try:
            await (consumer.subscribe(*queues) if queues else consumer.subscribe_all())
            yield consumer
        finally:
            consumer.close()

    def _message(self, queue: str | bytes, body: bytes) -> bytes:
        name_bytes_max, message_bytes_max = self._limits
        if len(body) > message_bytes_max:
            raise ValueError(f"a message of {len(body)} bytes: {message_bytes_max} at most")
        return wire.message(_name(queue, name_bytes_max), body)


class Consumer(Receiver[Message]):
    """The receiving side; made by `open_consumer`. It is an async iterator over messages.

    A consumer that does not read loses its oldest messages or its connection, by the server's settings.
    """

    def __init__(self, loop: Loop, address: Address, limits: tuple[int, int] = LIMITS) -> None:
        super().__init__(loop, address, address.retry_seconds)
        self._limits = limits
        self._login = address.login
        self._subscriptions: dict[bytes, None] = {}
        self._all = False

    async def subscribe(self, *queues: str | bytes) -> None:
        """Subscribe to queues, for messages from now on."""
        names = [self._named(queue) for queue in queues]
        self._subscriptions |= dict.fromkeys(names)
        await self._say(b"".join(map(wire.subscribe, names)))

    async def subscribe_all(self) -> None:
        """Subscribe to all queues, present and future."""
        self._all = True
        await self._say(wire.subscribe())

    async def unsubscribe(self, *queues: str | bytes) -> None:
        """End subscriptions; messages under way still arrive. A `subscribe_all` stays."""
        names = [self._named(queue) for queue in queues]
        for name in names:
            self._subscriptions.pop(name, None)
        await self._say(b"".join(map(wire.unsubscribe, names)))

    async def unsubscribe_all(self) -> None:
        """End every subscription, also that to all queues."""
        self._subscriptions.clear()
        self._all = False
        await self._say(wire.unsubscribe())

    def _first_words(self) -> bytes:
        every = wire.subscribe() if self._all else b""
        first = _account(self._login) + wire.CONSUME
        return b"".join([first, every, *map(wire.subscribe, self._subscriptions)])

    def _take(self, data: bytearray) -> tuple[list[Message], int]:
        return wire.take_messages(data, *self._limits)

    def _named(self, queue: str | bytes) -> bytes:
        name = _name(queue, self._limits[0])
        if not name:
            raise ValueError("a subscription without a name is one to all queues: subscribe_all")
        return name


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    name_bytes_max: int = NAME_BYTES_MAX,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    retry_seconds: float | None = None,
    **how: Unpack[How],
) -> AsyncIterator[Producer]:
    """Connect a producer. The end of the block waits until the server has read everything.

    `name_bytes_max`, `message_bytes_max`: the server's limits, if they are not the defaults. The server
    closes the connection silently on larger ones. `host` may be a URL: `kqmsgq+tls://ann@host:8000`. `how`:
    login and TLS; a refused login closes the connection. `retry_seconds`: for what it consumes. Raises
    ConnectionRefusedError if nobody listens, and ssl.SSLError.
    """
    address = Address.of(host, port, kind=KIND, protocol="kqmsgq", retry_seconds=retry_seconds, **how)
    async with open_loop() as loop:
        producer = Producer(loop, address, (name_bytes_max, message_bytes_max))
        await producer.begin()
        yield producer
        await producer.finish()


open_producer = connect


@asynccontextmanager
async def open_consumer(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    name_bytes_max: int = NAME_BYTES_MAX,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    retry_seconds: float | None = None,
    **how: Unpack[How],
) -> AsyncIterator[Consumer]:
    """Connect a consumer, without subscriptions yet; the end of the block closes it.

    `name_bytes_max`, `message_bytes_max`: the server's limits, if they are not the defaults. `retry_seconds`:
    for so long the reading task tries to replace a lost connection, and then subscribes again; messages sent
    meanwhile are lost. Without it a lost connection raises Disconnected.
    """
    address = Address.of(host, port, kind=KIND, protocol="kqmsgq", retry_seconds=retry_seconds, **how)
    async with open_loop() as loop:
        consumer = Consumer(loop, address, (name_bytes_max, message_bytes_max))
        await consumer.begin()
        try:
            yield consumer
        finally:
            consumer.close()


def _account(login: Login) -> bytes:
    return wire.account(login.user, login.secret) if login else b""


def _name(queue: str | bytes, bytes_max: int) -> bytes:
    name = queue.encode() if isinstance(queue, str) else queue
    if len(name) > bytes_max:
        raise ValueError(f"a queue's name of {len(name)} bytes: {bytes_max} at most")
    return name
