"""DMP's client (CLIENTS.md): principal, lease and dialog behind one call.

A sink or feed opens a principal connection, which logs in and asks for the lease, and then the DMP
connection. On that nothing is answered: `send` returns once the bytes are the kernel's. What a lost
connection took with it nobody knows, so nothing is sent again: that raises `Disconnected`. A feed that is
given `retry_seconds` connects, declares and binds again; what was sent meanwhile it has missed. Any number of
tasks may share a sink; what they send at once goes out together. A cancelled send is made all the same.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Unpack

import attrs
from pamqp import base, commands

from dmp import amqp_client, wire
from dmp.amqp.wire import Direct
from dmp.amqp_client import Returned
from dmp.data_types import SHORT_BYTES_MAX, short, take_short
from dmp.principal import PORT, Dialog, Refused, error_for
from dmp.properties import NO_PROPERTIES
from dmp.wire import DMP_HEADER, Message, MessageOptions
from shared.client.dial import Address, Disconnected, How, Unreachable
from shared.client.loop import Loop
from shared.client.receiver import Receiver
from shared.client.running import open_loop
from shared.client.sender import Sender

__all__ = [
    "Client",
    "Disconnected",
    "Feed",
    "Message",
    "Refused",
    "Returned",
    "Sink",
    "Unreachable",
    "connect",
    "open_feed",
    "open_sink",
]

DIALOG_SECONDS = 30.0

Properties = commands.Basic.Properties


class Principal(amqp_client.Client):
    """A client that declares, binds and asks for leases; one connection of DMP, or more, goes with it."""

    @property
    def returned(self) -> Sequence[Returned]:
        """Messages of its sinks that came back."""
        return () if self._main is None else self._main.returned

    async def sink_lease(self, exchange: str) -> bytes:
        """Raises Refused, Disconnected; so does `feed_lease`."""
        return await self._lease(Direct.Put(exchange), Direct.PutOk)

    async def feed_lease(self, queue: str) -> bytes:
        return await self._lease(Direct.Get(queue), Direct.GetOk)

    async def _lease(self, method: base.Frame, answer: Any) -> bytes:
        lease: str = (await self._call(method, answer)).lease
        return lease.encode()


class Sink:
    """The writing side; made by `open_sink`. Keys are text or bytes, bodies bytes below 16 MiB."""

    def __init__(self, sender: Sender, principal: Principal) -> None:
        self._sender = sender
        self._principal = principal

    @property
    def returned(self) -> Sequence[Returned]:
        """What could not be routed, of messages that were mandatory or immediate.

        It is complete when the block of the sink has ended. The server drops, and counts, what a client's
        connection does not take meanwhile: a few megabytes.
        """
        return self._principal.returned

    async def send(
        self,
        key: str | bytes,
        body: bytes,
        properties: Properties | None = None,
        *,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Send a message. Raises Disconnected, Refused, and ValueError for what no server would take."""
        options = MessageOptions(mandatory * MessageOptions.MANDATORY | immediate * MessageOptions.IMMEDIATE)
        await self._sender.send(_packed(key, body, properties, options))

    async def send_many(self, messages: Iterable[tuple[str | bytes, bytes]]) -> None:
        """Send (key, body) pairs, many at a time."""
        await self._sender.send_many(_packed(key, body, None, wire.NO_OPTIONS) for key, body in messages)

    async def finish(self) -> None:
        """All is sent: wait until the server has read it. Raises Disconnected, Refused."""
        await self._sender.finish()


class Feed(Receiver[Message]):
    """The reading side; made by `open_feed`. It is an async iterator over messages.

    `queue`: its name; where the server chose it, it is another one after each reconnection. What the client
    does not read waits in the server; when the connection closes, all that was on its way is gone.
    """

    def __init__(self, loop: Loop, lessee: "_Lessee", retry_seconds: float | None) -> None:
        super().__init__(loop, lessee.address, retry_seconds)
        self._lessee = lessee

    @property
    def queue(self) -> str:
        return self._lessee.queue

    async def begin(self) -> None:
        """Lease the queue, and connect. Raises Refused, Disconnected."""
        dialog, data = await self._lessee.connect(self._loop)
        self.restart()
        dialog.hand_over(self, data)

    def _take(self, data: bytearray) -> tuple[list[Message], int]:
        return wire.take_messages(bytes(data))


class Client(amqp_client.Client):
    """AMQP's client, which also opens sinks and feeds; made by `connect`."""

    def __init__(self, connection: amqp_client.AmqpConnection, address: Address) -> None:
        super().__init__(connection)
        self._address = address

    @asynccontextmanager
    async def sink(self, exchange: str, *, declare: str | None = None) -> AsyncIterator[Sink]:
        """A sink over connections of its own; see `open_sink`."""
        async with _sink(self.loop, self._address, exchange, declare) as sink:
            yield sink

    @asynccontextmanager
    async def feed(self, bind: Iterable[tuple[str, str]], *, queue: str = "") -> AsyncIterator[Feed]:
        """A feed over connections of its own; see `open_feed`. With `retry_seconds` of the client a lost
        connection is made again."""
        async with _feed(self.loop, self._address, bind, queue) as feed:
            yield feed


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1", port: int = PORT, *, retry_seconds: float | None = None, **how: Unpack[How]
) -> AsyncIterator[Client]:
    """A client that is logged in, as `amqp_client.open_amqp`, and raises the same.

    `retry_seconds`: of its feeds. A lost connection of the client itself is not made again.
    """
    address = Address.of(
        host, port, kind="AMQP", protocol="dmp", usual_user="guest", retry_seconds=retry_seconds, **how
    )
    async with (
        open_loop() as loop,
        amqp_client.opened(loop, address, partial(Client, address=address)) as client,
    ):
        yield client


@asynccontextmanager
async def open_sink(
    exchange: str,
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    declare: str | None = None,
    **how: Unpack[How],
) -> AsyncIterator[Sink]:
    """A sink, connected; the end of the block waits until the server has read everything.

    `declare`: its type (direct, topic, fanout, headers), where it may not be there yet. `host`: also a
    URL, `dmp+tls://ann@host:5672`. `how`: login and TLS; without a login it is guest, or the user
    of a client certificate. Raises Refused, ConnectionRefusedError where nobody answers, Disconnected,
    ssl.SSLError.
    """
    address = Address.of(host, port, kind="DMP", protocol="dmp", usual_user="guest", **how)
    async with open_loop() as loop, _sink(loop, address, exchange, declare) as sink:
        yield sink


@asynccontextmanager
async def open_feed(
    bind: Iterable[tuple[str, str]],
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    queue: str = "",
    retry_seconds: float | None = None,
    **how: Unpack[How],
) -> AsyncIterator[Feed]:
    """A feed of (exchange, key) bindings, connected; its queue goes with the block.

    `queue`: a name for it; without one the server has its choice. `retry_seconds`: a lost connection is made
    again, tried for so long, by whoever reads. Without it that raises Disconnected. Raises what `open_sink`
    does.
    """
    address = Address.of(
        host, port, kind="DMP", protocol="dmp", usual_user="guest", retry_seconds=retry_seconds, **how
    )
    async with open_loop() as loop, _feed(loop, address, bind, queue) as feed:
        yield feed


@asynccontextmanager
async def _sink(loop: Loop, address: Address, exchange: str, declare: str | None) -> AsyncIterator[Sink]:
    async with amqp_client.opened(loop, address, Principal) as principal:
        if declare is not None:
            await principal.declare_exchange(exchange, declare, durable=False)
        lease = await principal.sink_lease(exchange)
        dialog, data = await _open_leased(loop, address, lease)
        sender = Sender(loop, _refusal_in)
        dialog.hand_over(sender, data)
        try:
            sink = Sink(sender, principal)
            yield sink
            await sink.finish()
        finally:
            dialog.transport.close()


@asynccontextmanager
async def _feed(
    loop: Loop, address: Address, bind: Iterable[tuple[str, str]], queue: str
) -> AsyncIterator[Feed]:
    lessee = _Lessee(address, queue, tuple(bind))
    try:
        feed = Feed(loop, lessee, address.retry_seconds)
        await feed.begin()
        try:
            yield feed
        finally:
            feed.close()
    finally:
        await lessee.principal.aclose()


@attrs.define(eq=False)
class _Lessee:
    """Declares, binds and leases a feed's queue, as often as its connection is lost."""

    address: Address
    asked: str
    bindings: Sequence[tuple[str, str]]
    queue: str = ""
    principal: AsyncExitStack = attrs.field(factory=AsyncExitStack)

    async def connect(self, loop: Loop) -> tuple[Dialog, bytes]:
        await self.principal.aclose()
        self.principal = AsyncExitStack()
        opening = amqp_client.opened(loop, self.address, Principal)
        principal = await self.principal.enter_async_context(opening)
        self.queue = await principal.declare_queue(self.asked, durable=False, exclusive=True)
        for exchange, key in self.bindings:
            await principal.bind(self.queue, exchange, key)
        return await _open_leased(loop, self.address, await principal.feed_lease(self.queue))


async def _open_leased(loop: Loop, address: Address, lease: bytes) -> tuple[Dialog, bytes]:
    """A DMP connection by that lease, and what has come behind its answer. Raises Refused, Disconnected."""
    dialog = Dialog(loop)
    await loop.connect(address, dialog)
    try:
        deadline = loop.now() + DIALOG_SECONDS
        dialog.send(DMP_HEADER + short(lease))
        data = b""
        for _ in ("the greeting", "the answer to the lease"):
            while (text := take_short(data)) is None:
                received = await dialog.receive(deadline)
                if received is None:
                    raise Disconnected(f"the server did not answer in {DIALOG_SECONDS:g} s")
                data += received
            code, _ = wire.read_reply(text)
            if code != wire.Reply.OK:
                raise error_for(code, text.decode(errors="backslashreplace"))
            data = data[1 + len(text) :]
        return dialog, data
    except BaseException:
        dialog.transport.close()
        raise


def _refusal_in(said: bytes) -> Refused | None:
    """What the server has said to a sink: nothing, or why it goes."""
    text = take_short(said)
    if text is None:
        return None
    return error_for(wire.read_reply(text)[0], text.decode(errors="backslashreplace"))


def _packed(key: str | bytes, body: bytes, properties: Properties | None, options: MessageOptions) -> bytes:
    name = key.encode() if isinstance(key, str) else key
    if len(name) > SHORT_BYTES_MAX:
        raise ValueError(f"a routing key of {len(name)} bytes: {SHORT_BYTES_MAX} at most")
    if len(body) > wire.BODY_BYTES_MAX:
        raise ValueError("a body has less than 16 MiB")
    packed = NO_PROPERTIES if properties is None else properties.marshal()
    return wire.message(Message(b"", name, body, packed, options))
