"""The channels of a connection: contents on their way in, deliveries, acknowledgements, consumers, confirms.

*Acknowledgements* are gathered over a stretch of input. At its end, or before the next method that could
notice, the queues hear of them and dispatch. Confirms go out once a stretch, too.

*Order.* Replies leave in the order of their requests, and one that waits for the disk holds those behind it.
Deliveries wait meanwhile, so that none comes before the reply that allows it. Confirms keep an order of their
own.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
from pamqp import base, commands

from dmp.amqp.consumer_timeouts import ConsumerTimeouts
from dmp.amqp.content import BodyFrames, Content, Incoming
from dmp.amqp.publishing import Publishing
from dmp.amqp.states import CHANNEL_TRANSITIONS, ChannelEvent, ChannelState
from dmp.amqp.wire import (
    BODY,
    FRAME_END,
    FRAME_HEAD,
    HEADER,
    METHOD,
    PUBLISH,
    ack_frame,
    content_head,
    content_header,
    deliver_before,
    deliver_between,
    encode,
    nack_frame,
    return_frame,
    split,
    tag_bytes,
)
from dmp.exchanges import REPLY_TO
from dmp.memory import BudgetedCache, Memory, UserMemory
from dmp.message import Head
from dmp.pacing import STOP_MEMORY, STOP_WORK, stop_until
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, shown
from shared.access import READ
from shared.net.session import SessionBase
from shared.queues import unacked
from shared.queues.runs import Run
from shared.queues.unacked import Unacked
from shared.turns import ITEMS, taken_out

if TYPE_CHECKING:
    from dmp.amqp.transactions import Transaction
    from dmp.broker import Broker
    from shared.storage.store import Ticket

PY_AMQP = "py-amqp"  # the product whose prefetch is always the channel's
_HEADS_MAX = 64  # kinds of messages of which a consumer keeps what is put around the bodies
_HEAD_BYTES_MAX = 2048  # longer ones are made each time: kept, they would cost memory for each message
# What one of these takes beside its bytes, which may stand in it three times, with the head that it keeps.
_HEAD_BYTES = 800
_NO_LIMIT = 1 << 30
# What a channel takes of memory: 470 measured, and 890 more in confirm mode or with a transaction.
CHANNEL_BYTES = 1400
# What a consumer takes beside its tag, which stands in two places: 820 measured where it is alone in its
# queue, or with its priority; 430 where it is one of thousands.
CONSUMER_BYTES = 850
# Publishes that wait for one ticket, with what the ticket calls: 280 measured where every other run has one.
RUN_BYTES = 400

# The frames of a publish, and when they are expected.
_PUBLISHING = {METHOD: ChannelState.OPEN, HEADER: ChannelState.HEADER, BODY: ChannelState.BODY}

ACK_FRAME_BYTES = 21
_ACK_BEGINNING, _ACK_BYTES = 11, 13  # up to the delivery tag; the payload
_ACK_INDEX = commands.Basic.Ack.index
_ack_fields = struct.Struct(">QBB").unpack_from

Delivery = unacked.Delivery[int, "Consumer | Got"]
"""Tags, who has what was delivered under them, and the run."""


class AmqpChannels:
    """What the channels of one connection share. `by_number`: those that are open, or closing.

    `at`, `current` and `index`: where the frame that is being handled ends, its channel, and the class and
    method id of its method. A Refusal is about these, and so is `refuse`, for what is refused later.
    `to_confirm`: who has something to say at the end of the stretch. `dispatching`: deliveries may be sent.
    `capabilities`, `product`, `client`: the client's, as it says. `payload_max`: bytes that a frame holds.
    `payer`: what its messages count in. `memory`: what is asked for room, that or the memory of all.
    """

    def __init__(self, session: SessionBase, broker: Broker, refuse: Callable[[Refusal], None]) -> None:
        self.session = session
        self.refuse = refuse
        self.connection = session.connection
        self.replies = session.replies
        self.broker = broker
        self.owner = broker.new_application("")
        self.payer: UserMemory | None = None
        self.memory: Memory | UserMemory = broker.memory
        self.capabilities: dict[str, bool] = {}
        self.product: object = None
        self.client = ""
        self.payload_max = 0
        self.by_number: dict[int, Channel] = {}
        self.at = 0
        self.current: Channel | None = None
        self.index = 0
        self.dispatching = False
        self.incoming = Incoming(session, broker.settings, broker.bodies)
        self.publishing = Publishing(self)
        self.published = self.delivered_before = 0  # messages; what was delivered on channels that are gone
        self._settled: dict[Queue, list[Run]] = {}  # acknowledged, and not told to the queues yet
        self._roomy: dict[Channel, None] = {}  # with room for more deliveries, which others waited for
        self.to_confirm: dict[Confirms, None] = {}
        self._waits_to_dispatch = False
        self._finishing = False
        self._blocked = False  # memory is full, and it has had to wait; it may hold messages since
        self._may_publish = False  # it has waited for memory, and then nothing was published yet
        self._cancelled: list[tuple[Channel, bytes]] | None = None  # what `answer_first` holds back

    def refuse_on(self, channel: Channel, refusal: Refusal) -> None:
        """Close a channel for what no frame of it has asked."""
        frame = self.current, self.index
        self.current, self.index = channel, 0
        try:
            self.refuse(refusal)
        finally:
            self.current, self.index = frame

    def open(self, user: str) -> None:
        """The client has logged in: its channels may come."""
        self.owner.user = user
        self.owner.account = self.session.user
        self._find_payer()
        self.dispatching = not self.session.hung_up

    def _find_payer(self) -> None:
        memory = self.broker.memory
        self.payer = memory.of(self.session.user)
        self.memory = self.payer or memory

    def end(self) -> None:
        """The connection ends: everything that depends on it goes."""
        self.dispatching = False
        self.broker.memory.forget(self)
        self.release(
            [channel for channel in self.by_number.values() if channel.state is not ChannelState.CLOSING]
        )
        self.owner.release()

    # -- what its user may do

    def require(self, action: str, name: bytes) -> None:
        """Raises Refusal where the user may not. `name`: of a queue, or what rules call an exchange."""
        if not self.session.identity.may(action, name):
            raise _not_allowed(name)

    def require_some(self, name: bytes) -> None:
        """Raises Refusal where the user may do nothing at all with it."""
        if not self.session.identity.may_see(name):
            raise _not_allowed(name)

    def access_changed(self) -> None:
        """Rules are others now: consumers of what may not be read any more are cancelled. What is held may be
        acknowledged.
        """
        self.publishing.forget()
        self._find_payer()
        guard, user = self.session.guard, self.session.user
        if guard is None:
            return
        lost: list[Consumer] = []
        for channel in self.by_number.values():
            for reader in channel.consumers.values():
                # Nobody can name the queue of replies.
                name = REPLY_TO if reader is channel.reply_consumer else reader.queue.name
                if not guard.may(user, READ, name):
                    lost.append(reader)
        for consumer in lost:
            consumer.channel.remove_consumer(consumer)
            consumer.channel.notify_cancelled(consumer)
        self.broker.flush()
        self.broker.store.commit_pending()

    # -- the stretch of input under way

    def end_turn_in_time(self, items: int) -> None:
        """So many messages were put into queues, or so much else was done. After enough of it other sessions
        have their turn."""
        if self.session.turn.over(items):
            self.session.yield_turn()

    def end_stretch(self) -> None:
        self.settle_now()
        if self.to_confirm:
            confirms, self.to_confirm = self.to_confirm, {}
            for one in confirms:
                one.advance()
        self.broker.flush()

    # -- out

    def reply(self, data: bytes, ticket: Ticket | None = None) -> None:
        """An answer, in its turn, once `ticket` is done."""
        if ticket is None:
            self.replies.reply(data)
        else:
            self.replies.reply_after(ticket, data)

    def room_bytes(self) -> int:
        """How much more may be delivered now; negative: nothing."""
        if self.replies.pending or not self.dispatching or self.connection.closed:
            if self.replies.pending and not self._waits_to_dispatch:
                self._waits_to_dispatch = True
                self.replies.when_empty(self.dispatch)
            return -1
        outbox = self.connection.outbox
        return outbox.bound - outbox.size

    @contextmanager
    def answer_first(self) -> Iterator[None]:
        """Whoever deletes a queue that he consumes from is answered before he hears that his consumers are
        gone, as with RabbitMQ. py-amqp raises a cancel that comes before the answer."""
        cancelled = self._cancelled = []
        try:
            yield
        finally:
            self._cancelled = None
            for channel, frame in cancelled:
                channel.send(frame)

    def holds_cancel(self, channel: Channel, frame: bytes) -> bool:
        """Whether this must wait for the answer."""
        if self._cancelled is None:
            return False
        self._cancelled.append((channel, frame))
        return True

    def dispatch(self) -> None:
        """Have the channels dispatch, the one first that has waited longest: more deliveries may be sent."""
        self._waits_to_dispatch = False
        for channel in tuple(self.by_number.values()):
            channel.dispatch()

    def finish(self) -> None:
        """Close the connection once all replies and confirms are out."""
        self._finishing = True
        self.finish_if_answered()

    def finish_if_answered(self) -> None:
        if self._finishing and not self.session.lost:
            if self.replies.pending:
                self.replies.when_empty(self.finish_if_answered)
            elif not any(channel.awaits_confirms for channel in self.by_number.values()):
                self.connection.finish()

    # -- what holds input back

    @property
    def holds_messages(self) -> bool:
        return any(
            channel.unacked or (channel.transaction is not None and channel.transaction.holds)
            for channel in self.by_number.values()
        )

    def wait_for_memory(self, *, before: bool = False) -> bool:
        """Whether it waits: its acknowledgements make room, so a connection that holds messages is read on.

        `before`: a publish waits, too; else the last one was taken.
        """
        if self.holds_messages:
            return False
        if not self.session.stopped & STOP_MEMORY:
            self.broker.counts.memory_waits += 1
            self.session.pause_input(STOP_MEMORY)
            if not self._blocked and self.capabilities.get("connection.blocked"):
                self.connection.write(encode(commands.Connection.Blocked(self.memory.why), 0))
            self._blocked = True
            ahead, self._may_publish = before and self._may_publish, False
            free = self.connection.guarded(self._memory_is_free)
            self.broker.memory.when_free(self, free, ahead=ahead, payer=self.payer)
        return True

    def holds_now(self) -> None:
        """The client has been given messages. Where its connection waits for memory it is read on: else these
        messages would be held, and take memory, as long as it waits."""
        if self.session.stopped & STOP_MEMORY:
            self.session.resume_next_turn(STOP_MEMORY)

    def keeps_back(self, kind: int, number: int, payload: bytes) -> bool:
        """Whether memory is full for it and this frame, of a publish, must wait unread until it is not.

        Not one of a large body: that goes to the disk.
        """
        channel = self.by_number.get(number)
        if channel is None or (kind == METHOD and payload[:4] != PUBLISH):
            return False
        if channel.state is not _PUBLISHING.get(kind):  # it is a fault, or its channel is closing
            return False
        content = channel.content
        if content is not None and content.head is not None and content.head.large:
            return False
        return self.wait_for_memory(before=True)

    def _memory_is_free(self) -> None:
        self._may_publish, self._blocked = True, False
        if not self.session.lost and self.capabilities.get("connection.blocked"):
            self.connection.write(encode(commands.Connection.Unblocked(), 0))
        self.session.resume_next_turn(STOP_MEMORY)

    # -- acknowledgements

    def take_acks(self, data: bytes, at: int) -> int:
        """The acknowledgements for one channel at `at`, one behind the other: a fast path. Returns where they
        end.

        Those that need a closer look are left to `methods.ack`. Raises Refusal, with `self.at` behind the
        one refused. An acknowledgement takes 0.5 us here and 7.5 there (200 a read, without sockets).
        """
        beginning = data[at : at + _ACK_BEGINNING]
        kind, number, size = FRAME_HEAD.unpack_from(beginning)
        channel = self.by_number.get(number)
        if kind != METHOD or size != _ACK_BYTES or channel is None or channel.state is not ChannelState.OPEN:
            return at
        if channel.transaction is not None:
            return at
        self.current, self.index = channel, _ACK_INDEX
        end, frame_end = len(data), FRAME_END[0]
        first = stop = 0  # tags that follow each other, acknowledged one by one and not taken yet
        while at + ACK_FRAME_BYTES <= end and data.startswith(beginning, at):
            tag, multiple, last = _ack_fields(data, at + _ACK_BEGINNING)
            if last != frame_end:
                break
            if tag != stop or multiple & 1:
                self._settle_each(channel, first, stop, at)
                first = stop = tag
            at = self.at = at + ACK_FRAME_BYTES
            if multiple & 1:
                self.settle(channel, channel.take_unacked(tag, True))
                first = stop = 0
            else:
                stop += 1
        self._settle_each(channel, first, stop, at)
        return at

    def _settle_each(self, channel: Channel, first: int, stop: int, at: int) -> None:
        """The tags from `first` to `stop` are acknowledged, each by a frame of its own; these end at `at`.
        Raises Refusal for the first that is unknown, with `self.at` behind its frame."""
        found = channel.unacked.take(range(first, stop))
        if found is None:
            found = []
            for tag in range(first, stop):
                delivery = channel.unacked.take_one(tag)
                if delivery is None:
                    self.at = at - (stop - tag - 1) * ACK_FRAME_BYTES
                    forget_unacked(found)
                    self.settle(channel, found)
                    raise _unknown(tag)
                found.append(delivery)
        forget_unacked(found)
        self.settle(channel, found)

    def settle(self, channel: Channel, deliveries: Iterable[Delivery]) -> None:
        """The deliveries are acknowledged. Their queues hear of it at the end of the stretch."""
        settled = self._settled
        for _, holder, run in deliveries:
            runs = settled.get(holder.queue)
            if runs is None:
                settled[holder.queue] = [run]
            else:
                runs.append(run)
        self._made_room(channel)

    def _made_room(self, channel: Channel) -> None:
        """The channel has fewer unacknowledged messages. Its queues hear of that when they are told
        (`settle_now`)."""
        if channel.crowded or channel.prefetch_all:  # room for one is room for all its consumers
            channel.crowded = False
            self._roomy[channel] = None

    def settle_now(self) -> None:
        """Tell the queues, and have them dispatch: first those whose consumers wait for room that they
        share."""
        if self._roomy or self._settled:
            queues = {reader.queue: None for channel in self._roomy for reader in channel.consumers.values()}
            self._roomy.clear()
            settled, self._settled = self._settled, {}
            self._in_turns(_settled(settled, queues))

    def give_back(self, channel: Channel, deliveries: Iterable[Delivery], *, requeue: bool) -> None:
        """Requeue deliveries, or reject them. Their queues deliver nothing until all are back, so that they
        keep their order."""
        left = deque(deliveries)
        give = Queue.requeue if requeue else Queue.reject
        self._in_turns(self._each_back(channel, left, _stopped(left), give))

    def _each_back(
        self,
        channel: Channel | None,
        left: deque[Delivery],
        queues: dict[Queue, None],
        give: Callable[[Queue, list[Run]], None],
    ) -> Iterator[None]:
        for batch in taken_out(left.popleft, left):
            for queue, runs in by_queue(batch).items():
                try:
                    give(queue, runs)
                except Exception as error:  # the other queues still get what is theirs
                    self.broker.report_crash(error)
            yield
        # Others of the channel's consumers may have room now, and have waited longer.
        readers = () if channel is None else channel.consumers.values()
        for queue in dict.fromkeys([reader.queue for reader in readers]) | queues:
            if queue in queues:
                queue.all_returned()
            elif not queue.deleted:
                queue.dispatch()
            yield

    def _in_turns(self, steps: Iterator[None]) -> None:
        """Take the steps of long work: now, and what is left in the next turns of the loop. The connection's
        input waits for it."""
        for _ in steps:
            if self.session.turn.over_now() and not self.broker.draining:
                stop_until(self.session, STOP_WORK, lambda go_on: self.broker.work.add(_then(steps, go_on)))
                return

    # -- channels that end

    def close(self, channel: Channel) -> None:
        """The client closes the channel."""
        channel.step(ChannelEvent.CLOSE)
        channel.fall_silent()
        self.release((channel,))
        self.delivered_before += channel.delivered
        del self.by_number[channel.number]
        channel.reply(commands.Channel.CloseOk())

    def fall_silent(self) -> None:
        """The connection ends: no more deliveries and confirms."""
        self.dispatching = False
        for channel in self.by_number.values():
            channel.fall_silent()

    def release(self, channels: Sequence[Channel]) -> None:
        """Give back all that these channels have: consumers at once, messages in turns."""
        self.settle_now()
        self.publishing.forget()
        broker = self.broker
        broker.counts.channels -= len(channels)
        broker.accounts.connections.give(len(channels) * CHANNEL_BYTES, self.session.user)
        unacked: deque[Delivery] = deque()
        oldest: set[Run] = set()
        consumers: dict[Queue, list[Consumer]] = {}
        for channel in channels:
            channel.end()
            for consumer in channel.consumers.values():
                consumers.setdefault(consumer.queue, []).append(consumer)
                consumer.end()
            channel.consumers.clear()
            held = channel.unacked.take_all()
            if held:
                tags, holder, run = held[0]
                oldest.add(first := run.part(0, 1))
                rest = [(tags[1:], holder, run.part(1, len(run)))] if len(run) > 1 else []
                held[:1] = [(tags[:1], holder, first), *rest]
            unacked += held
        queues = _stopped(unacked)
        for queue, ended in consumers.items():
            if not queue.deleted:
                queue.remove_consumers(*ended)
                broker.topology.consumer_left(queue)
        give = partial(Queue.requeue, oldest=oldest)
        self._in_turns(self._each_back(None, unacked, queues, give))


def _stopped(deliveries: Iterable[Delivery]) -> dict[Queue, None]:
    """The queues of deliveries. Each delivers nothing until it is told that all are back."""
    queues = dict.fromkeys([holder.queue for _, holder, _ in deliveries])
    for queue in queues:
        queue.await_returns()
    return queues


def _settled(runs_of: dict[Queue, list[Run]], roomy: dict[Queue, None]) -> Iterator[None]:
    """Tell queues what is acknowledged; then they dispatch, those that are `roomy` first."""
    for queue, runs in runs_of.items():
        if len(runs) <= ITEMS:
            queue.settle(runs)
            continue
        runs.reverse()
        for batch in taken_out(runs.pop, runs):
            queue.settle(batch)
            yield
    for queue in roomy | dict.fromkeys(runs_of):
        if not queue.deleted:
            queue.dispatch()
        yield


def _then(steps: Iterator[None], call: Callable[[], None]) -> Iterator[None]:
    """The steps; then the call."""
    try:
        yield from steps
    finally:
        call()


def by_queue(deliveries: Iterable[Delivery]) -> dict[Queue, list[Run]]:
    """The runs of `deliveries` by queue, in the same order."""
    of: dict[Queue, list[Run]] = {}
    for _, holder, run in deliveries:
        of.setdefault(holder.queue, []).append(run)
    return of


@attrs.define(eq=False)
class Got:
    """Who has what `basic.get` took from a queue on a channel. It does not count against prefetch, as
    RabbitMQ has it: `Channel.got` counts it."""

    channel: Channel
    queue: Queue

    @property
    def unacked(self) -> int:
        return self.channel.got

    @unacked.setter
    def unacked(self, count: int) -> None:
        self.channel.got = count


@attrs.define(eq=False, repr=False)
class Channel:
    """One channel. `delivered`: the last delivery tag. `unacked`: by tag; `got`: how many of these messages
    `basic.get` took.

    `consumers`: by tag, the one first that has waited longest for a message; so are the channels in `mux`.
    `prefetch`: for consumers to come; `prefetch_all`: for all of them together; 0: no limit. `silent`:
    nothing more is sent on it. `crowded`: some consumer found no room for more unacknowledged messages.
    `disk_awaited`: the method under way has waited for what came before it to be on disk, and not for more.
    `reply_consumer`: that of `amq.rabbitmq.reply-to`, one of `consumers`.
    """

    mux: AmqpChannels
    number: int
    state: ChannelState = ChannelState.OPEN
    silent: bool = False
    crowded: bool = False
    flowing: bool = True
    delivered: int = 0
    unacked: Unacked[int, Consumer | Got] = attrs.Factory(Unacked)
    got: int = 0
    consumers: dict[bytes, Consumer] = attrs.Factory(dict)
    reply_consumer: Consumer | None = None
    prefetch: int = 0
    prefetch_all: int = 0
    confirms: Confirms | None = None
    transaction: Transaction | None = None
    content: Content | None = None
    last_queue: bytes | None = None
    deadlines: ConsumerTimeouts | None = None
    disk_awaited: bool = False

    def step(self, event: ChannelEvent) -> None:
        """Raises Refusal (UNEXPECTED_FRAME) for what may not happen now."""
        after = CHANNEL_TRANSITIONS[self.state].get(event)
        if after is None:
            raise self._unexpected(event)
        self.state = after

    def _unexpected(self, event: ChannelEvent) -> Refusal:
        text = f"{event.value} on channel {self.number} while {self.state.value}"
        return Refusal(Code.UNEXPECTED_FRAME, text)

    @property
    def awaits_confirms(self) -> bool:
        return not self.silent and self.confirms is not None and bool(self.confirms.runs)

    def fall_silent(self) -> None:
        """Send the confirms that can be sent; then nothing more but the dialog of its end."""
        if self.confirms is not None and not self.silent:
            self.confirms.advance()
        self.silent = True

    # -- out

    def reply(self, method: base.Frame, ticket: Ticket | None = None) -> None:
        """An answer, in its turn, once `ticket` is done."""
        self.mux.reply(encode(method, self.number), ticket)

    def send(self, data: bytes) -> None:
        """What is no answer comes in its turn, too: behind answers that wait for the disk."""
        if not self.silent:
            self.mux.reply(data)

    def send_return(self, code: Code, head: Head, body: bytes) -> None:
        """Give a publish back that could not be routed, or not delivered at once."""
        self.mux.broker.counts.returned += 1
        self.reply_content(return_frame(self.number, code, head), head, body)

    def return_from_sink(self, code: Code, head: Head, body: bytes) -> None:
        """Return a message that came by a sink which was leased here. The sink never waits for this client,
        so where there is no room the return is lost, and counted."""
        mux = self.mux
        outbox = mux.connection.outbox
        if self.silent or mux.session.lost or mux.replies.full or outbox.size > outbox.bound:
            mux.broker.counts.returns_lost += 1
        else:
            self.send_return(code, head, body)

    def reply_content(self, method: bytes, head: Head, body: bytes) -> None:
        """An answer with a content, in its turn."""
        mux, number, payload_max = self.mux, self.number, self.mux.payload_max
        if head.large:
            mux.reply(method + content_header(number, head.body_bytes, head.properties))
            mux.replies.reply(self.body_frames(body))
        else:
            before = content_head(number, head.body_bytes, head.properties, payload_max)
            mux.reply(b"".join((method, before, split(number, body, payload_max), FRAME_END)))

    def body_frames(self, reference: bytes) -> BodyFrames:
        """The frames of a large body."""
        broker = self.mux.broker
        body = broker.bodies.refer(reference)
        return BodyFrames(
            self.mux.connection,
            self.number,
            self.mux.payload_max,
            body,
            release=partial(broker.body_sent, reference),
            broken=partial(broker.body_damaged, body),
        )

    # -- content on its way in

    def take_header(self, body_bytes: int, properties: bytes) -> bool:
        """Whether the content is whole, which is to say that the body is empty."""
        if self.state is not ChannelState.HEADER or self.content is None:
            raise self._unexpected(ChannelEvent.HEADER)
        reply_queue = None if self.reply_consumer is None else self.reply_consumer.queue.name
        self.content.begin(self.mux.incoming, body_bytes, properties, reply_queue)
        self.step(ChannelEvent.HEADER if body_bytes else ChannelEvent.EMPTY)
        return not body_bytes

    def take_body(self, part: bytes) -> bytes | None:
        """The body, or a reference to it, once it is whole; b"" where it could not be written."""
        if self.state is not ChannelState.BODY or self.content is None:
            raise self._unexpected(ChannelEvent.BODY_PART)
        body = self.content.take(self.mux.incoming, part)
        self.step(ChannelEvent.BODY_PART if body is None else ChannelEvent.BODY_END)
        return body

    # -- deliveries

    def room(self) -> int:
        """How many more deliveries may be unacknowledged."""
        unacked = self.unacked.count
        if self.transaction is not None:
            unacked += self.transaction.settled
        count = self.mux.broker.settings.unacked_max - unacked
        if self.prefetch_all:
            count = min(count, self.prefetch_all - unacked + self.got)
        if count <= 0:
            self.crowded = True
        return count

    def take_unacked(self, tag: int, multiple: bool) -> list[Delivery]:
        """Unacknowledged deliveries, taken out of the books. Raises Refusal for an unknown tag."""
        deliveries = self.pop_unacked(tag, multiple)
        forget_unacked(deliveries)
        return deliveries

    def pop_unacked(self, tag: int, multiple: bool) -> list[Delivery]:
        """Take the same deliveries. They still count for their consumers (`forget_unacked`)."""
        unacked = self.unacked
        if not multiple:
            found = unacked.take_one(tag)
            if found is None:
                raise _unknown(tag)
            return [found]
        if not tag:
            return unacked.take_all()
        deliveries = unacked.take_up_to(tag)
        if not deliveries or deliveries[-1][0][-1] != tag:
            unacked.put_back(deliveries)
            raise _unknown(tag)
        return deliveries

    def served(self, consumer: Consumer) -> None:
        """It was given something: where its channel or connection has no more room, others are next."""
        consumers, channels = self.consumers, self.mux.by_number
        if len(consumers) > 1 and consumer.tag in consumers:
            consumers[consumer.tag] = consumers.pop(consumer.tag)
        if len(channels) > 1 and self.number in channels:
            channels[self.number] = channels.pop(self.number)

    def dispatch(self) -> None:
        """Something allows more deliveries to its consumers."""
        for queue in {consumer.queue: None for consumer in self.consumers.values()}:
            if not queue.deleted:
                queue.dispatch()

    def must_acknowledge(self, holder: Consumer | Queue, timeout_ms: int, before: int | None = None) -> None:
        """A consumer, or who took from a queue by `basic.get`, has so long for the deliveries with tags below
        that, or for all until now."""
        if self.deadlines is None:
            self.deadlines = ConsumerTimeouts(self.mux.broker.timers, self._first_held_by, self._close_late)
        self.deadlines.delivered(holder, timeout_ms, self.delivered + 1 if before is None else before)

    def _first_held_by(self, holder: object) -> int | None:
        tags = [
            tags[0]
            for tags, who, _ in self.unacked
            if who is holder or (isinstance(who, Got) and who.queue is holder)
        ]
        return min(tags, default=None)

    def _close_late(self, timeout_ms: int) -> None:
        """RabbitMQ's text: clients may look for it."""
        mux = self.mux
        mux.broker.counts.too_late_acks += 1
        text = f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: "
        text += f"{timeout_ms} ms"
        mux.connection.guarded(mux.refuse_on)(self, Refusal(Code.PRECONDITION_FAILED, text))

    # -- consumers, and the end

    def notify_cancelled(self, consumer: Consumer) -> None:
        if self.mux.capabilities.get("consumer_cancel_notify"):
            frame = encode(commands.Basic.Cancel(consumer.tag.decode(), True), self.number)
            if not self.mux.holds_cancel(self, frame):
                self.send(frame)

    def remove_consumer(self, consumer: Consumer) -> None:
        """The client has cancelled the consumer; what it has stays unacknowledged."""
        del self.consumers[consumer.tag]
        consumer.end()
        queue = consumer.queue
        if consumer is self.reply_consumer:
            self.reply_consumer = None
            self.mux.publishing.forget()
        if not queue.deleted:
            queue.remove_consumers(consumer)
            self.mux.broker.topology.consumer_left(queue)

    def end(self) -> None:
        """What is begun is forgotten or rolled back, and nothing is dispatched to it any more."""
        if self.transaction is not None:
            self.transaction.rollback()
        if self.confirms is not None:
            self.confirms.end()
        if self.content is not None:
            self.content.drop(self.mux.incoming)
            self.content = None
        if self.deadlines is not None:
            self.deadlines.end()
        if self.state is not ChannelState.CLOSING:
            self.state = ChannelState.CLOSED
        self.flowing = False


def forget_unacked(deliveries: Iterable[Delivery]) -> None:
    """The deliveries do not count for who had them any more."""
    for tags, holder, _ in deliveries:
        holder.unacked -= len(tags)


def _not_allowed(name: bytes) -> Refusal:
    return Refusal(Code.ACCESS_REFUSED, f"access to {shown(name)} in vhost '/' is not allowed")


def _unknown(tag: int) -> Refusal:
    return Refusal(Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")


def consumer_bytes(tag: bytes) -> int:
    """What a consumer takes of memory."""
    return CONSUMER_BYTES + 2 * len(tag)


@attrs.define(eq=False, repr=False)
class Consumer:
    """One `basic.consume`: takes messages from its queue and packs them for its channel.

    `prefetch`: unacknowledged messages it may have, 0: as many as the channel. `priority`: the queue serves
    those with a higher one first. `timeout_ms`: it must acknowledge a delivery so soon; 0: whenever.
    """

    channel: Channel
    queue: Queue
    tag: bytes
    no_ack: bool
    prefetch: int
    priority: int
    timeout_ms: int = 0
    unacked: int = 0
    delivered: int = 0
    # What is put around the bodies of messages by their heads, and of the last head.
    _heads: BudgetedCache[Head, tuple[bytes, bytes]] = attrs.field(init=False)
    _head: Head | None = None
    _before: bytes = b""
    _between: bytes = b""

    def __attrs_post_init__(self) -> None:
        broker = self.channel.mux.broker
        broker.accounts.connections.charge(consumer_bytes(self.tag), self.channel.mux.session.user)
        broker.counts.consumers += 1
        self._heads = BudgetedCache(broker.accounts.caches, _HEADS_MAX)

    def end(self) -> None:
        """The consumer ends, and gives back the memory that it was charged."""
        broker = self.channel.mux.broker
        broker.accounts.connections.give(consumer_bytes(self.tag), self.channel.mux.session.user)
        broker.counts.consumers -= 1
        self._heads.forget()

    @property
    def pool(self) -> Channel | None:
        return self.channel if self.channel.prefetch_all and not self.no_ack else None

    def room(self) -> tuple[int, int]:
        channel = self.channel
        room_bytes = channel.mux.room_bytes()
        if room_bytes < 0 or not channel.flowing:
            return 0, 0
        if self.no_ack:
            # As with RabbitMQ a full channel gives it nothing, though it adds nothing. py-amqp did not ask
            # for that, and a client that awaits a reply while it holds a message would wait for ever.
            asked = channel.prefetch_all and channel.mux.product != PY_AMQP
            waits = asked and self is not channel.reply_consumer and channel.room() <= 0
            return 0 if waits else _NO_LIMIT, room_bytes
        count = channel.room()
        if self.prefetch:
            count = min(count, self.prefetch - self.unacked)
        return max(count, 0), room_bytes

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        if head is not self._head:
            self._begin(head)
        channel = self.channel
        if head.body_bytes > channel.mux.payload_max:
            bodies = [split(channel.number, body, channel.mux.payload_max) for body in bodies]
        between, end_before = self._between, FRAME_END + self._before
        parts = [self._before]
        tag = channel.delivered
        for tag, body in enumerate(bodies, tag + 1):  # noqa: B020 - it goes on where it was
            parts += (tag_bytes(tag), between, body, end_before)
        channel.delivered = tag
        self.delivered += len(bodies)
        channel.served(self)
        parts[-1] = FRAME_END
        channel.mux.connection.write(b"".join(parts))

    def deliver(self, runs: list[Run]) -> None:
        channel = self.channel
        connection = channel.mux.connection
        tag = channel.delivered
        number, payload_max = channel.number, channel.mux.payload_max
        if not self.no_ack:  # first of all, so that none is lost should the rest fail
            following = tag + 1
            for run in runs:
                first, following = following, following + len(run.bodies)
                channel.unacked.add(range(first, following), self, run)
            self.unacked += following - tag - 1
            if self.timeout_ms:
                channel.must_acknowledge(self, self.timeout_ms, following)
            channel.mux.holds_now()
        parts: list[bytes] = []
        for run in runs:
            head, bodies = run.head, run.bodies
            if head is not self._head:
                self._begin(head)
            between = self._between
            if run.tries:
                self.queue.count_again(run, channel.mux.broker.counts.redelivered)
                between = deliver_between(number, head, True, payload_max)
            if head.large:
                for tag, reference in enumerate(bodies, tag + 1):  # noqa: B020 - it goes on where it was
                    parts += (self._before, tag_bytes(tag), between)
                    connection.write(b"".join(parts))
                    parts.clear()
                    connection.write_file(channel.body_frames(reference))
                continue
            if head.body_bytes > payload_max:
                bodies = [split(number, body, payload_max) for body in bodies]
            before = self._before
            for tag, body in enumerate(bodies, tag + 1):  # noqa: B020 - likewise
                parts += (before, tag_bytes(tag), between, body, FRAME_END)
        self.delivered += tag - channel.delivered
        channel.delivered = tag
        channel.served(self)
        connection.write(b"".join(parts))

    def cancelled(self) -> None:
        channel = self.channel
        if channel.consumers.get(self.tag) is self:  # of very many it may have gone before it hears of this
            del channel.consumers[self.tag]
            self.end()
            channel.notify_cancelled(self)

    def fail(self, error: Exception) -> None:
        self.channel.mux.connection.fail(error)

    def _begin(self, head: Head) -> None:
        """Find, or make, what is put around the bodies of `head`."""
        found = self._heads.get(head)
        if found is None:
            number, payload_max = self.channel.number, self.channel.mux.payload_max
            between = deliver_between(number, head, False, payload_max)
            found = deliver_before(number, self.tag, head), between
            if len(between) <= _HEAD_BYTES_MAX:
                self._heads.keep(head, found, _HEAD_BYTES + 3 * len(between))
        self._head = head
        self._before, self._between = found


@attrs.define(eq=False)
class _WaitingPublishes:
    """Publishes up to `last` that wait for one ticket (None: for nothing); `refused`: they were not taken."""

    ticket: Ticket | None
    last: int
    refused: bool


@attrs.define(eq=False, repr=False)
class Confirms:
    """Publisher confirms of one channel (`confirm.select`).

    Publishes are numbered from 1 on, and confirmed in order. A confirm of number n with `multiple` set stands
    for all before it, so several go out as one. What waits for the disk holds those behind it.
    """

    _channel: Channel
    _published: int = 0
    _done: int = 0
    runs: deque[_WaitingPublishes] = attrs.Factory(deque)
    _run_bytes: int = RUN_BYTES

    def add(self, count: int, ticket: Ticket | None = None, *, refused: bool = False) -> None:
        """Add `count` publishes. They are answered at the end of the stretch, or once `ticket` is done."""
        self._published += count
        if ticket is None:
            self._channel.mux.to_confirm[self] = None
        runs = self.runs
        if runs and runs[-1].ticket is ticket and runs[-1].refused == refused:
            runs[-1].last = self._published
            return
        runs.append(_WaitingPublishes(ticket, self._published, refused))
        self._channel.mux.broker.memory.take(self._run_bytes)
        if ticket is not None:
            ticket.when_done(self._channel.mux.connection.guarded(self._ticket_done))

    def end(self) -> None:
        """The channel ends: what is on its way does not count any more."""
        self._channel.mux.broker.memory.give(len(self.runs) * self._run_bytes)
        self._run_bytes = 0

    def _ticket_done(self, _: Ticket) -> None:
        self.advance()
        self._channel.mux.finish_if_answered()

    def advance(self) -> None:
        """Confirm what can be."""
        runs, first, taken = self.runs, self._done, 0
        frames = []
        number, counts = self._channel.number, self._channel.mux.broker.counts
        memory = self._channel.mux.broker.memory
        while runs:
            run = runs[0]
            if run.ticket is not None and not run.ticket.done:
                break
            runs.popleft()
            if run.refused or (run.ticket is not None and run.ticket.error is not None):
                if first < self._done:
                    frames.append(ack_frame(number, self._done, self._done - first > 1))
                frames.append(nack_frame(number, run.last, run.last - self._done > 1))
                counts.refused_publishes += run.last - self._done
                first = run.last
            else:
                taken += run.last - self._done
            self._done = run.last
            memory.give(self._run_bytes)
        if first < self._done:
            frames.append(ack_frame(number, self._done, self._done - first > 1))
        if frames:
            counts.confirmed += taken
            self._channel.send(b"".join(frames))
