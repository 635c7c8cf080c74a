"""An AMQP 0-9-1 client (CLIENTS.md): publish with confirms, consume with acknowledgements.

`publish` returns when the server has the message. It is on disk then if message and queue are durable, which
is the default. Any number of tasks may use one client at once: their requests are sent together, and answers
are handed out as they come. When the connection is lost, every call that waits raises `Disconnected`, and the
server may have its message or not. The client does not connect again.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any, Generic, Self, TypeVar, Unpack

import attrs
from pamqp import base, commands

from dmp.amqp import wire
from dmp.amqp.wire import FRAME_END, encode
from dmp.principal import PORT, Arrived, Contents, Refused, ServerFrames, error_for, logged_in
from dmp.properties import NO_PROPERTIES, PERSISTENT, unpack_readable
from dmp.refusals import Refusal
from dmp.wire import Message
from shared.client.dial import Address, Disconnected, How
from shared.client.loop import ClientConnection, Event, Loop, Wakeup
from shared.client.running import open_loop
from shared.errors import BrokerError, RemoteProtocolError

__all__ = [
    "Client",
    "Deliveries",
    "Delivery",
    "Disconnected",
    "NotTaken",
    "Properties",
    "Refused",
    "Unroutable",
    "open_amqp",
]

UNSENT_BYTES_MAX = 1024 * 1024  # while more waits to be sent, publishing waits
CLOSING_SECONDS = 5.0
CHANNELS_MAX = 1000
PREFETCH_MAX = 65535
RETURNED_MAX = 10_000
"""Messages of sinks that came back and were not looked at; further ones are dropped."""

Properties = commands.Basic.Properties
M = TypeVar("M", bound=base.Frame)
T = TypeVar("T")
Made = TypeVar("Made", bound="Client")


def _any_name(kind: type[M]) -> type[M]:
    """The same method, which takes every name: pamqp knows fewer than servers do, and refuses `jobs*`."""
    return type(kind.__name__, (kind,), {"validate": lambda _: None})


_QueueDeclare = _any_name(commands.Queue.Declare)
_QueueBind = _any_name(commands.Queue.Bind)
_QueueUnbind = _any_name(commands.Queue.Unbind)
_QueuePurge = _any_name(commands.Queue.Purge)
_QueueDelete = _any_name(commands.Queue.Delete)
_ExchangeDeclare = _any_name(commands.Exchange.Declare)
_ExchangeBind = _any_name(commands.Exchange.Bind)
_ExchangeUnbind = _any_name(commands.Exchange.Unbind)
_ExchangeDelete = _any_name(commands.Exchange.Delete)
_BasicConsume = _any_name(commands.Basic.Consume)


class Unroutable(BrokerError):
    """No queue takes the message; the server has dropped it."""


class NotTaken(BrokerError):
    """The server could not keep the message: a full queue, a disk that fails."""


_NOT_KEPT = "the server could not keep a message: a queue is full, or its disk takes nothing"


class _Answer(Generic[T]):
    """A value or an error that comes once. Whether anybody waits for it does not matter."""

    __slots__ = ("_done", "_outcome")

    def __init__(self, loop: Loop) -> None:
        self._done = loop.event()
        self._outcome: T | BrokerError | None = None

    def set(self, outcome: T | BrokerError) -> None:
        self._outcome = outcome
        self._done.set()

    async def wait(self) -> T:
        await self._done.wait()
        if isinstance(self._outcome, BrokerError):
            raise self._outcome.with_traceback(None)
        assert self._outcome is not None
        return self._outcome


@attrs.frozen
class Returned:
    """A message that could not be routed (312) or delivered at once (313)."""

    code: int
    key: str
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")


@attrs.define(eq=False)
class Delivery:
    """A message to acknowledge. `redelivered`: it may have been delivered before.

    `exchange`, `key`: what is not UTF-8 in them is U+FFFD. `properties` are without those, and without
    headers, that Python has no value for: a time after the year 9999, a text that is not UTF-8.
    """

    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")
    exchange: str
    key: str
    redelivered: bool
    properties: Properties
    _tag: int
    _channel: "_Channel"
    _said: bytes = b""

    async def ack(self) -> None:
        """The message is done with, and leaves its queue. The server does not answer: if the acknowledgement
        is lost, the message is delivered again. Raises Disconnected after the end of its `consume`, which
        returns the message.

        A message is settled once, also by a call that is cancelled. The same call again does nothing, and
        the other one raises ValueError.
        """
        await self._settle(wire.ack_frame(self._channel.number, self._tag, False))

    async def nack(self, *, requeue: bool = True) -> None:
        """The message could not be handled: it goes back to its queue, or becomes a dead letter. As `ack`."""
        await self._settle(encode(commands.Basic.Nack(self._tag, False, requeue), self._channel.number))

    async def _settle(self, frame: bytes) -> None:
        if not self._said:
            self._channel.say(frame)
            self._said = frame
        elif frame != self._said:
            raise ValueError("the message is acknowledged or given back already")
        await self._channel.connection.wait_for_room()


@attrs.define(eq=False)
class Deliveries:
    """An async iterator over what a queue delivers; made by `Client.consume`."""

    _channel: "_Channel"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next one; several tasks may ask at once. Raises Refused if the queue was deleted meanwhile, and
        Disconnected, also after the end of its `consume`."""
        return await self._channel.next_delivery()


@attrs.define(eq=False)
class _Published:
    """A message that waits for its confirm. A return has no number, so it is matched by its content."""

    confirmed: _Answer[bool]
    exchange: str = ""
    key: str = ""
    body: bytes = b""
    mandatory: bool = False
    returned: bool = False


class _Channel:
    """One channel of a connection: requests and their answers in order, confirms, deliveries."""

    def __init__(self, connection: "AmqpConnection", number: int) -> None:
        self.number = number
        self.connection = connection
        self.closing = False
        """We have said that it closes. The server's answers to what was asked before still arrive."""
        self.returned: list[Returned] = []
        """What came back, and was published by a sink."""
        self._asked: deque[tuple[type[base.Frame], _Answer[Any]]] = deque()
        self._published = 0
        self._unconfirmed: dict[int, _Published] = {}
        self._delivered: deque[Delivery] = deque()
        self._arrival = Wakeup(connection.loop)
        self._lost: BrokerError | None = None
        self._contents = Contents()

    def say(self, data: bytes) -> None:
        """Send something that gets no answer. Raises Disconnected, Refused."""
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        self.connection.write(data)

    async def call(self, method: base.Frame, answer: type[M]) -> M:
        """Ask and wait. Raises Refused, Disconnected."""
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        data = encode(method, self.number)  # first: it raises for wrong arguments, and then nothing is sent
        asked: _Answer[M] = _Answer(self.connection.loop)
        self._asked.append((answer, asked))
        self.connection.write(data)
        return await asked.wait()

    async def publish_many(self, messages: Iterable[Message], mandatory: bool) -> None:
        """Publish with these properties, and wait for all confirms."""
        published = []
        loop = self.connection.loop
        for message in messages:
            method = wire.publish_frame(self.number, message.exchange, message.key, mandatory)
            if mandatory:
                exchange, key = (name.decode(errors="replace") for name in (message.exchange, message.key))
                published.append(_Published(_Answer(loop), exchange, key, message.body, mandatory=True))
            else:
                published.append(_Published(_Answer(loop)))
            self._post(method, message.properties, message.body, published[-1])
            await self.connection.wait_for_room()
        for one in published:
            await one.confirmed.wait()

    def _post(self, method: bytes, properties: bytes, body: bytes, published: _Published) -> None:
        """Send a publish. Raises Disconnected, Refused.

        The server numbers what it gets. So after all that can raise, the message is numbered and queued
        without a wait in between.
        """
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        number, payload_max = self.number, self.connection.frame_bytes - wire.FRAME_OVERHEAD
        head = wire.content_head(number, len(body), properties, payload_max)
        data = b"".join((method, head, wire.split(number, body, payload_max), FRAME_END))
        self._published += 1
        self._unconfirmed[self._published] = published
        self.connection.write(data)

    async def next_delivery(self) -> Delivery:
        while not self._delivered:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            await self._arrival.wait()
        return self._delivered.popleft()

    def lose(self, error: BrokerError) -> None:
        """Nothing more comes: every call that waits fails."""
        if self._lost is not None:
            return
        self._lost = error
        for _, asked in self._asked:
            asked.set(error)
        for published in self._unconfirmed.values():
            published.confirmed.set(error)
        self._asked.clear()
        self._unconfirmed.clear()
        self._delivered.clear()  # the server gives them to another consumer
        self._arrival.wake()

    def receive(self, kind: int, payload: bytes) -> None:
        """A frame has come. Raises RemoteProtocolError, Refusal."""
        match method := self._contents.take(kind, payload):
            case None:
                pass
            case commands.Channel.Close():
                self.lose(error_for(method.reply_code or 0, method.reply_text))
                self.connection.channel_closed(self, answer=True)
            case commands.Channel.CloseOk():
                self.connection.channel_closed(self, answer=False)
            case _ if self.closing:
                pass
            case Arrived():
                self._arrived(method)
            case commands.Basic.Ack():
                self._confirm(method.delivery_tag or 0, method.multiple, True)
            case commands.Basic.Nack():
                self._confirm(method.delivery_tag, method.multiple, NotTaken(_NOT_KEPT))
            case commands.Basic.Cancel():
                self.lose(error_for(404, "the queue was deleted"))
            case _ if self._asked and isinstance(method, self._asked[0][0]):
                self._asked.popleft()[1].set(method)
            case _:
                raise RemoteProtocolError(f"the server says {method.name}, which nobody asked for")

    def _confirm(self, tag: int, multiple: bool, outcome: bool | BrokerError) -> None:
        waiting = self._unconfirmed  # in the order of its numbers
        for each in list(takewhile(tag.__ge__, waiting)) if multiple else [tag]:
            published = waiting.pop(each, None)
            if published is None:
                continue
            said = outcome
            if published.returned:
                said = Unroutable(f"no queue takes {published.key!r} of exchange {published.exchange!r}")
            published.confirmed.set(said)

    def _arrived(self, message: Arrived) -> None:
        method = message.method
        exchange, key, body = method.exchange or "", method.routing_key or "", message.body
        if isinstance(method, commands.Basic.Deliver):
            redelivered, tag = bool(method.redelivered), method.delivery_tag or 0
            properties = unpack_readable(message.properties)
            self._delivered.append(Delivery(body, exchange, key, redelivered, properties, tag, self))
            self._arrival.wake()
        else:
            # It comes before its confirm, and in the order of publishing.
            for published in self._unconfirmed.values():
                is_it = (published.exchange, published.key, published.body) == (exchange, key, body)
                if is_it and published.mandatory and not published.returned:
                    published.returned = True
                    return
            if len(self.returned) < RETURNED_MAX:
                self.returned.append(Returned(method.reply_code or 0, key, body))


class AmqpConnection(ClientConnection):
    """A connection that is logged in, and its channels."""

    def __init__(self, loop: Loop, frame_bytes: int) -> None:
        self.loop = loop
        self.frame_bytes = frame_bytes
        self.lost: BrokerError | None = None
        self._frames = ServerFrames()
        self._unsent_bytes = 0
        self._end = loop.event()
        self._channels: dict[int, _Channel] = {}

    def has(self, channel: _Channel) -> bool:
        """Whether it is open."""
        return self._channels.get(channel.number) is channel

    async def open_channel(self) -> _Channel:
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        free = (number for number in range(1, CHANNELS_MAX + 1) if number not in self._channels)
        number = next(free, None)
        if number is None:
            raise Refused(504, f"{CHANNELS_MAX} channels are open")
        channel = self._channels[number] = _Channel(self, number)
        try:
            await channel.call(commands.Channel.Open(), commands.Channel.OpenOk)
        except BaseException:  # the caller was cancelled
            self.end_channel(channel)
            raise
        return channel

    def end_channel(self, channel: _Channel) -> None:
        """Close it, unless it is closed."""
        if self.has(channel) and not channel.closing:
            channel.closing = True
            self.write(encode(commands.Channel.Close(200, "bye", 0, 0), channel.number))

    def channel_closed(self, channel: _Channel, *, answer: bool) -> None:
        """The server closes the channel. Its number may be used again, unless our Close is on its way: then
        the answer to that comes, too."""
        if answer:
            self.write(encode(commands.Channel.CloseOk(), channel.number))
        if not answer or not channel.closing:
            del self._channels[channel.number]

    async def leave(self) -> None:
        """Say goodbye after all that is unsent, and wait until the server has closed the connection."""
        self.write(encode(commands.Connection.Close(200, "bye", 0, 0), 0))
        await self.loop.wait(self._end, CLOSING_SECONDS, shield=True)

    def write(self, data: bytes) -> None:
        self._unsent_bytes += len(data)
        self.transport.write(data)

    async def wait_for_room(self) -> None:
        if self._unsent_bytes > UNSENT_BYTES_MAX and self.lost is None:
            await self.transport.drain()
            self._unsent_bytes = 0

    # What the loop calls.

    def received(self, data: bytes | bytearray) -> None:
        if self.lost is not None:
            return
        try:
            for kind, number, payload in self._frames.feed(data):
                self._frame(kind, number, payload)
        except BrokerError as error:
            self._lose(error)
        except Refusal as error:
            self._lose(RemoteProtocolError(str(error)))

    def ended(self, error: Disconnected | None) -> None:
        self._lose(error or Disconnected("the server closed the connection"))

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if number:
            channel = self._channels.get(number)
            if channel is not None:
                channel.receive(kind, payload)
        elif kind == wire.METHOD:
            method = wire.decode_untrusted(payload)
            if isinstance(method, commands.Connection.Close):
                self.write(encode(commands.Connection.CloseOk(), 0))
                raise error_for(method.reply_code or 0, method.reply_text)

    def _lose(self, error: BrokerError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for channel in self._channels.values():
            channel.lose(error)
        self._end.set()


class Client:
    """AMQP's client; made by `open_amqp`. Names and keys are text, bodies bytes.

    What the server refuses raises Refused with AMQP's code; `NotThere` for 404.
    """

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._opening: Event | None = None
        self._main: _Channel | None = None

    @property
    def loop(self) -> Loop:
        return self._connection.loop

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        passive: bool = False,
    ) -> str:
        """Make a queue, if it is not there; returns its name, which the server chooses if none is given.

        `passive`: make none, and raise Refused if it is not there.
        """
        method = _QueueDeclare(
            queue=name,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        return (await self._call(method, commands.Queue.DeclareOk)).queue or name

    async def depth(self, name: str) -> int:
        """How many messages of a queue are ready. Raises Refused if it is not there."""
        method = _QueueDeclare(queue=name, passive=True)
        return (await self._call(method, commands.Queue.DeclareOk)).message_count or 0

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        passive: bool = False,
    ) -> None:
        """Make an exchange, if it is not there: direct, topic, fanout or headers.

        `passive`: make none, and raise Refused if it is not there.
        """
        method = _ExchangeDeclare(
            exchange=name,
            exchange_type=type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        await self._call(method, commands.Exchange.DeclareOk)

    async def bind(
        self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Have the queue take what is published to the exchange with this key.

        `arguments`: those of a headers exchange.
        """
        method = _QueueBind(queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {}))
        await self._call(method, commands.Queue.BindOk)

    async def unbind(
        self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove the binding with this key and these arguments."""
        method = _QueueUnbind(
            queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {})
        )
        await self._call(method, commands.Queue.UnbindOk)

    async def bind_exchange(
        self, to: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Have the exchange `to` take what is published to the other one with this key."""
        method = _ExchangeBind(
            destination=to, source=exchange, routing_key=key, arguments=dict(arguments or {})
        )
        await self._call(method, commands.Exchange.BindOk)

    async def unbind_exchange(
        self, to: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove that binding."""
        method = _ExchangeUnbind(
            destination=to, source=exchange, routing_key=key, arguments=dict(arguments or {})
        )
        await self._call(method, commands.Exchange.UnbindOk)

    async def purge(self, queue: str) -> int:
        """Delete a queue's messages, except unacknowledged ones; returns how many."""
        return (await self._call(_QueuePurge(queue=queue), commands.Queue.PurgeOk)).message_count or 0

    async def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, if it is there; returns how many messages went with it.

        Raises Refused if it has consumers (`if_unused`) or messages (`if_empty`).
        """
        method = _QueueDelete(queue=queue, if_unused=if_unused, if_empty=if_empty)
        return (await self._call(method, commands.Queue.DeleteOk)).message_count or 0

    async def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange, if it is there. Raises Refused if queues are bound to it (`if_unused`)."""
        method = _ExchangeDelete(exchange=exchange, if_unused=if_unused)
        await self._call(method, commands.Exchange.DeleteOk)

    async def publish(
        self,
        key: str,
        body: bytes,
        *,
        exchange: str = "",
        properties: Properties | None = None,
        mandatory: bool = True,
    ) -> None:
        """Publish, and wait until the server has it. Without an exchange the key is a queue's name.

        `properties`: without them the message is persistent. Raises Unroutable if no queue takes it (unless
        `mandatory` is False: then it is dropped silently), NotTaken, Refused, Disconnected. A refusal, for a
        missing exchange say, closes the channel that all tasks share. Their calls that wait fail too, and may
        or may not have been carried out.
        """
        packed = PERSISTENT if properties is None else properties.marshal()
        channel = await self._opened()
        message = Message(exchange.encode(), key.encode(), bytes(body), packed)
        await channel.publish_many([message], mandatory)

    async def publish_many(self, messages: Iterable[Message], *, mandatory: bool = False) -> None:
        """Publish in order, and wait until the server has them all. What no queue takes is dropped.

        A message without properties is persistent. Raises as `publish` does; then the server may have some
        of them.
        """
        channel = await self._opened()
        await channel.publish_many(map(_persistent, messages), mandatory)

    @asynccontextmanager
    async def consume(
        self, queue: str, *, prefetch: int = 16, arguments: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Deliveries]:
        """What the queue delivers, with at most `prefetch` (1 to 65,535) messages unacknowledged at a time.

        `arguments`: of the consumer, as `x-priority` and `x-consumer-timeout`; Refused where the server has
        another. At the end of the block, what is not acknowledged goes back to the queue.
        """
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise ValueError(f"prefetch is {prefetch}, and must be from 1 to {PREFETCH_MAX}")
        channel = await self._connection.open_channel()
        try:
            await channel.call(commands.Basic.Qos(0, prefetch, False), commands.Basic.QosOk)
            consume = _BasicConsume(queue=queue, arguments=dict(arguments or {}))
            await channel.call(consume, commands.Basic.ConsumeOk)
            yield Deliveries(channel)
        finally:
            self._connection.end_channel(channel)
            channel.lose(Disconnected("its consume has ended: what was not acknowledged has gone back"))

    async def _call(self, method: base.Frame, answer: type[M]) -> M:
        return await (await self._opened()).call(method, answer)

    async def _opened(self) -> _Channel:
        """The channel that all but consumers share; a new one if a refusal has closed the last."""
        while self._opening is not None:  # the first task opens it, the others find it
            await self._opening.wait()
        if self._main is None or not self._connection.has(self._main):
            self._opening = opening = self.loop.event()
            try:
                self._main = await self._connection.open_channel()
                await self._main.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
            finally:
                self._opening = None
                opening.set()
        return self._main


def _persistent(message: Message) -> Message:
    return attrs.evolve(message, properties=PERSISTENT) if message.properties == NO_PROPERTIES else message


@asynccontextmanager
async def open_amqp(
    host: str = "127.0.0.1",
    port: int = PORT,
    **how: Unpack[How],
) -> AsyncIterator[Client]:
    """A client that is logged in. At the end of the block, also by an error, it sends what is left, and says
    goodbye: without that the server may never read the last acknowledgements.

    `host`: may be a URL, `dmp+tls://ann@host:5672`. `how`: login and TLS; without a login the user is guest,
    or that of a client certificate. Raises Refused, ConnectionRefusedError if nobody answers, Disconnected,
    ssl.SSLError.
    """
    address = Address.of(host, port, kind="AMQP", protocol="dmp", usual_user="guest", **how)
    async with open_loop() as loop, opened(loop, address, Client) as client:
        yield client


@asynccontextmanager
async def opened(loop: Loop, address: Address, make: Callable[[AmqpConnection], Made]) -> AsyncIterator[Made]:
    """A client that `make` makes, over a connection."""
    async with logged_in(loop, address) as (dialog, frame_bytes):
        connection = AmqpConnection(loop, frame_bytes)
        dialog.hand_over(connection)
        try:
            yield make(connection)
        finally:
            await connection.leave()
