"""A channel: its deliveries and what became of them, its consumers, and content on its way in.

Its methods' handlers are in `basic_methods` and `wiring_methods`; publishing at speed is in `publishing`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from pamqp import base

from dmp.amqp.confirms import Confirms
from dmp.amqp.consumers import Consumer
from dmp.amqp.large import BodyFrames
from dmp.amqp.states import CHANNEL_TRANSITIONS, ChannelEvent, ChannelState
from dmp.amqp.transactions import Transaction
from dmp.amqp.wire import FRAME_OVERHEAD, content_head, content_header, encode, return_frame, split
from dmp.bodies import PART_BYTES, REFERENCE_BYTES, Arriving
from dmp.copies import without_bcc
from dmp.data_types import short
from dmp.message import Head, Message
from dmp.properties import note_untrusted
from dmp.queues import Queue
from dmp.refusals import Code, Refusal
from dmp.topology import REPLY_TO
from shared.errors import StoreError
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from dmp.amqp.session import AmqpSession
    from dmp.broker import Broker

RETURNED_AT_ONCE = 512
"""Half a millisecond."""
CONSUMERS_DEALT = 2
"""To so many consumers nothing is dealt in the time that it takes to put a message into a queue."""

Delivery = tuple[Consumer | None, Queue, Message]
"""What is unacknowledged, and who has it: a consumer, or None for `basic.get`."""
_QUEUE = itemgetter(1)
_NUMBER = attrgetter("number")


class Content:
    """A publish whose content is coming."""

    __slots__ = (
        "arriving",
        "body",
        "exchange",
        "failed",
        "head",
        "immediate",
        "key",
        "mandatory",
        "missing",
        "properties",
    )

    def __init__(self, exchange: bytes, key: bytes, mandatory: bool, immediate: bool) -> None:
        self.exchange = exchange
        self.key = key
        self.mandatory = mandatory
        self.immediate = immediate
        self.head: Head | None = None
        self.properties = b""  # as they were sent; those of the head are as they are delivered
        self.body = bytearray()  # as far as it has come, where it comes in several frames
        self.missing = 0
        self.arriving: Arriving | None = None  # a large body, which is written as it comes
        self.failed = ""  # why that is not so


class Channel:
    """One open channel of a session.

    `delivered`: the last delivery tag. `unacked`: by tag, the oldest first. `prefetch`: for consumers to
    come; `prefetch_all`: for all together; 0: none.
    """

    __slots__ = (
        "confirms",
        "consumers",
        "content",
        "crowded",
        "delivered",
        "flowing",
        "last_queue",
        "number",
        "payload_max",
        "prefetch",
        "prefetch_all",
        "reply_consumer",
        "session",
        "silent",
        "state",
        "transaction",
        "unacked",
    )

    def __init__(self, session: "AmqpSession", number: int) -> None:
        self.session = session
        self.number = number
        self.payload_max = session.frame_bytes_max - FRAME_OVERHEAD
        self.state = ChannelState.OPEN
        self.silent = False
        """Nothing more may be sent on it."""
        self.crowded = False
        """Some consumer found no room for more unacknowledged messages on the channel."""
        self.delivered = 0
        self.unacked: dict[int, Delivery] = {}
        self.consumers: dict[bytes, Consumer] = {}
        self.reply_consumer: Consumer | None = None
        """That of `amq.rabbitmq.reply-to`, one of these."""
        self.prefetch = 0
        self.prefetch_all = 0
        self.flowing = True
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.content: Content | None = None
        self.last_queue: bytes | None = None

    def step(self, event: ChannelEvent) -> None:
        """Raises Refusal (UNEXPECTED_FRAME) for what may not happen now."""
        after = CHANNEL_TRANSITIONS[self.state].get(event)
        if after is None:
            text = f"{event.value} on channel {self.number} while {self.state.value}"
            raise Refusal(Code.UNEXPECTED_FRAME, text)
        self.state = after

    @property
    def owes_confirms(self) -> bool:
        return not self.silent and self.confirms is not None and self.confirms.owed

    def fall_silent(self) -> None:
        """Say what can be confirmed; then nothing more is sent on it, but the dialog of its end."""
        if self.confirms is not None and not self.silent:
            self.confirms.advance()
        self.silent = True

    # -- out

    def send(self, data: bytes) -> None:
        """What keeps no order with replies."""
        if not self.silent:
            self.session.connection.write(data)

    def reply(self, method: base.Frame, ticket: Ticket | None = None) -> None:
        """An answer, in its turn, once `ticket` allows."""
        self.session.reply(encode(method, self.number), ticket)

    def room(self) -> int:
        """How many more deliveries may be unacknowledged."""
        unacked = len(self.unacked)
        if self.transaction is not None:
            unacked += self.transaction.settled
        count = self.session.broker.settings.unacked_max - unacked
        if self.prefetch_all:
            count = min(count, self.prefetch_all - unacked)
        if count <= 0:
            self.crowded = True
        return count

    def send_return(self, code: Code, head: Head, body: bytes) -> None:
        """Give a publish back that could not be routed, or not delivered at once."""
        self.session.broker.counts.returned += 1
        self.reply_content(return_frame(self.number, code, head), head, body)

    def return_from_sink(self, code: Code, head: Head, body: bytes) -> None:
        """The same for what came by a sink that was leased here: it never waits for this client to read."""
        self.session.connection.attempt(self._return_from_sink, code, head, body)

    def _return_from_sink(self, code: Code, head: Head, body: bytes) -> None:
        session = self.session
        outbox = session.connection.outbox
        if self.silent or session.lost or session.replies.full or outbox.size > outbox.bound:
            session.broker.counts.returns_lost += 1
        else:
            self.send_return(code, head, body)

    def reply_content(self, method: bytes, head: Head, body: bytes) -> None:
        """An answer with a content, in its turn."""
        session, number, payload_max = self.session, self.number, self.payload_max
        if head.large:
            session.reply(method + content_header(number, head))
            session.replies.reply(self.body_frames(body))
        else:
            content = content_head(number, head, payload_max), split(number, body, payload_max), b"\xce"
            session.reply(b"".join((method, *content)))

    def body_frames(self, reference: bytes) -> BodyFrames:
        """Of a large body."""
        connection, broker = self.session.connection, self.session.broker
        body = broker.bodies.refer(reference)
        return BodyFrames(
            connection,
            self.number,
            self.payload_max,
            body,
            release=partial(broker.bodies.let_go, reference),
            broken=partial(broker.body_damaged, body),
        )

    # -- content on its way in

    def begin_content(self, content: Content) -> None:
        self.step(ChannelEvent.PUBLISH)
        self.content = content

    def take_header(self, body_bytes: int, properties: bytes) -> bool:
        """True: the body is empty, and so the content is whole."""
        content = self.content
        if self.state is not ChannelState.HEADER or content is None:
            self.step(ChannelEvent.HEADER)
            raise AssertionError("a header is taken in one state only")
        settings = self.session.broker.settings
        if body_bytes > settings.body_bytes_max:
            text = f"message size {body_bytes} is larger than configured max size {settings.body_bytes_max}"
            raise Refusal(Code.PRECONDITION_FAILED, text)
        content.properties = properties
        content.head = self._head(content, body_bytes)
        content.missing = body_bytes
        self.step(ChannelEvent.HEADER if body_bytes else ChannelEvent.EMPTY)
        if content.head.large:
            content.arriving = self.session.begin_large(content.head)
        else:
            self.session.unfinished(body_bytes)
        return not body_bytes

    def _head(self, content: Content, body_bytes: int) -> Head:
        """As it is delivered: a reply-to that stands for the channel's reply consumer names its queue, and
        nobody sees `BCC`. Raises Refusal."""
        properties = content.properties
        noted = note_untrusted(properties)
        if noted.reply_to is not None:
            start, end = noted.reply_to
            if properties[start + 1 : end] == REPLY_TO:
                if self.reply_consumer is None:
                    raise Refusal(Code.PRECONDITION_FAILED, "fast reply consumer does not exist")
                reply_to = short(self.reply_consumer.queue.name)
                properties = b"".join((properties[:start], reply_to, properties[end:]))
                noted = note_untrusted(properties)
        delivered, keys = without_bcc(properties, noted)
        if delivered is not properties:
            noted = note_untrusted(delivered)
        large = body_bytes > self.session.broker.settings.message_bytes_max
        reference_bytes = REFERENCE_BYTES if large else 0
        head = Head(content.exchange, content.key, body_bytes, delivered, noted, reference_bytes)
        head.more_keys = keys
        return head

    def take_body(self, part: bytes) -> bytes | None:
        """The body, or a reference to it, once it is whole; b"" where it could not be written."""
        content = self.content
        if self.state is not ChannelState.BODY or content is None:
            self.step(ChannelEvent.BODY_PART)
            raise AssertionError("a body is taken in one state only")
        content.missing -= len(part)
        if content.missing < 0:
            raise Refusal(Code.UNEXPECTED_FRAME, "more body than its header has announced", hard=True)
        if content.head is not None and content.head.large:
            return self._take_large(content, part)
        if content.missing or content.body:
            content.body += part
            self.session.gathered(len(part))
        if content.missing:
            self.step(ChannelEvent.BODY_PART)
            return None
        self.step(ChannelEvent.BODY_END)
        if content.body:
            part = bytes(content.body)
            self.session.gathered(-len(part))
        self.session.unfinished(-len(part))
        return part

    def _take_large(self, content: Content, part: bytes) -> bytes | None:
        """What could not be written is read all the same, and then refused."""
        arriving = content.arriving
        if arriving is not None:
            content.body += part
            self.session.gathered(len(part))
            if not content.missing or len(content.body) >= PART_BYTES:
                self.session.gathered(-len(content.body))
                part, content.body = bytes(content.body), bytearray()
                try:
                    arriving.add(part)
                except StoreError as error:
                    content.arriving = None
                    content.failed = str(error) or "the store takes no writes"
                    arriving.give_up()
                self.session.large_came()
                self.session.wait_for_bodies()
        if content.missing:
            self.step(ChannelEvent.BODY_PART)
            return None
        self.step(ChannelEvent.BODY_END)
        return b"" if content.arriving is None else content.arriving.finish()

    # -- consumers, and the end

    def deal(self) -> None:
        """Something allows more deliveries to its consumers."""
        self.session.worked(len(self.consumers) // CONSUMERS_DEALT)
        for queue in {consumer.queue: None for consumer in self.consumers.values()}:
            if not queue.deleted:
                queue.deal()

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Its queue is gone."""
        self.consumers.pop(consumer.tag, None)
        self.session.consumer_cancelled(self, consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Its client has cancelled it, or the channel ends; what it has stays unacknowledged."""
        del self.consumers[consumer.tag]
        queue = consumer.queue
        if consumer is self.reply_consumer:
            self.reply_consumer = None
            self.session.publishing.forget()
        if not queue.deleted:
            queue.remove_consumer(consumer)
            self.session.broker.topology.consumer_left(queue)

    def let_go(self) -> None:
        """Its end: what is begun is forgotten or rolled back, nothing is dealt to it any more."""
        if self.transaction is not None:
            self.transaction.rollback()
        content = self.content
        if content is not None and content.head is not None:
            if not content.head.large:
                self.session.unfinished(-content.head.body_bytes)
            elif content.arriving is not None:
                content.arriving.give_up()
            self.session.gathered(-len(content.body))
        self.content = None
        self.state = ChannelState.CLOSED if self.state is not ChannelState.CLOSING else self.state
        self.flowing = False


def release(broker: "Broker", channels: Sequence[Channel]) -> None:
    """Give back all that channels of one session have: consumers at once, messages in turns.

    Until all have come back their queues give nothing, so that they do so in their order.
    """
    unacked: list[dict[int, Delivery]] = []
    consumers: dict[Queue, list[Consumer]] = {}
    queues: set[Queue] = set()
    for channel in channels:
        channel.let_go()
        for consumer in channel.consumers.values():
            consumers.setdefault(consumer.queue, []).append(consumer)
        channel.consumers.clear()
        if channel.unacked:
            queues.update(map(_QUEUE, channel.unacked.values()))
            unacked.append(channel.unacked)
            channel.unacked = {}
    for queue in queues:
        queue.await_returns()
    for queue, those in consumers.items():
        broker.counts.consumers -= len(those)
        if not queue.deleted:
            queue.remove_consumers(those)
            broker.topology.consumer_left(queue)
    if queues:
        broker.background.add(_come_back(broker, unacked, queues))


def _come_back(
    broker: "Broker", unacked: Sequence[dict[int, Delivery]], queues: Iterable[Queue]
) -> Iterator[None]:
    """The newest come back first, so that each finds its place at the front."""
    of: dict[Queue, dict[int, list[Message]]] = {queue: {} for queue in queues}
    try:
        taken = ((number, each.popitem()[1]) for number, each in enumerate(unacked) for _ in range(len(each)))
        for count, (number, (_, queue, message)) in enumerate(taken, 1):
            of[queue].setdefault(number, []).append(message)
            if count % RETURNED_AT_ONCE == 0:
                yield
        for queue, rows in of.items():
            merged = merge(*rows.values(), key=_NUMBER, reverse=True)
            while some := list(islice(merged, RETURNED_AT_ONCE)):
                broker.counts.requeued += len(some)
                queue.requeue(some)
                if len(some) == RETURNED_AT_ONCE:
                    yield
    finally:
        for queue in of:
            queue.all_returned()
