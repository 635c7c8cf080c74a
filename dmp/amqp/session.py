"""One AMQP connection: frames in, in order; methods to their channels; answers and deliveries out.

Theory of operation. `receive` gets what one read brought, often hundreds of frames, and goes through all that
is whole in one stretch. Publishes at speed are taken as runs (`publishing`); of acknowledgements only the tag
is unpacked, and what they free is settled and dealt once, at the end of the stretch or before the next method
that could notice; every other method is decoded by pamqp and handled. Confirms, too, are said once a stretch.

*Order.* Answers take their places in `Replies`: one that waits for the disk holds those behind it. Deliveries
wait meanwhile, so that none comes before the answer that allows it. Confirms keep an order of their own.

*Faults.* A `Refusal` closes its channel or the connection, as its code says, by the specification's dialog.
What cannot be framed at all is answered with nothing: the connection closes.

Source: PROTOCOL.md. The states are those of `states`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pamqp import commands

from dmp.amqp.channel import Channel, Content
from dmp.amqp.confirms import Confirms
from dmp.amqp.handlers import HANDLERS
from dmp.amqp.handshake import Handshake
from dmp.amqp.lifetime import Lifetime
from dmp.amqp.publishing import Publishing
from dmp.amqp.states import ChannelEvent, ChannelState, State
from dmp.amqp.wire import (
    ACK,
    BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    PUBLISH,
    decode_untrusted,
    encode,
    header_untrusted,
    publish_untrusted,
)
from dmp.bodies import Arriving
from dmp.message import Head
from dmp.pacing import WORK_PER_STRETCH, Due, Stop
from dmp.refusals import Code, Refusal
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection

if TYPE_CHECKING:
    from dmp.broker import Broker

FRAME_WORK = 4
"""A frame that is taken by itself, in messages that could have been put into a queue meanwhile. So a stretch
has a thousand at most, also of those that do nothing: heartbeats, empty bodies, what is behind a close."""
LARGE_WORK = 512
"""A large body, for which a log is made and removed again; and its channel looks at all the others."""
METHOD_WORK = 4
"""What a method takes beyond that: some ten microseconds in all. So a stretch that is all methods has a few
hundred."""
METHOD_BYTES = 2
"""The same for what a method says: a table may have a field in each byte, and it is decoded twice."""
HEADER_BYTES = 4
"""And for properties, which may hold such a table: it is gone through, and decoded where somebody asks."""
_KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_WIRING = frozenset((commands.Exchange.frame_id, commands.Queue.frame_id))
_END = FRAME_END[0]
_ACK_BYTES = 13


class AmqpSession(Lifetime):
    """The server's side of one connection. `at`: how far the stretch under way has come."""

    __slots__ = (
        "_bytes_needed",
        "_end_of_input",
        "_frame_at",
        "_gathered_bytes",
        "_held",
        "_late",
        "_partial",
        "_unfinished_bytes",
        "_work",
        "at",
        "to_confirm",
    )

    def __init__(self, connection: Connection, broker: "Broker") -> None:
        super().__init__(connection, broker)
        self.handshake = Handshake(self)
        self.publishing = Publishing(self)
        self.to_confirm: dict[Confirms, None] = {}
        self.at = 0
        self._frame_at = 0  # where the one that is being handled begins
        self._partial = bytearray()  # the beginning of a frame
        self._bytes_needed = 0  # of it, before another look is worth it
        self._held = b""  # read, not applied: input is stopped
        self._late = b""  # came although reading was paused
        self._unfinished_bytes = 0  # of content that has begun, as announced
        self._gathered_bytes = 0  # as far as it has come
        self._work = 0
        self._end_of_input = False
        connection.on_drained = self._drained
        connection.write(self.handshake.start())

    # The driver's calls; `on_deadline` is Pacing's.

    def receive(self, data: bytes) -> None:
        self._heard = self.connection.now
        if self._stops:
            self._late += data
            return
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._bytes_needed:
                self.connection.await_rest()
                self._count_held()
                return
            data = bytes(partial)
            partial.clear()
            self.due(Due.FRAME, float("inf"))
        self._stretch(data, 0)

    def receive_eof(self) -> None:
        """The peer has sent all: what it is owed is still answered, deliveries are not owed."""
        self._end_of_input = True
        if not self._stops:
            self._end()

    def connection_lost(self) -> None:
        self.lost = True
        self.replies.drop()
        self._release()
        self.broker.flush()

    # Input.

    def _stretch(self, data: bytes, at: int) -> None:
        """Apply everything whole in `data` from `at` on, as far as nothing stops it."""
        self.at = at
        self._work = 0
        while True:
            try:
                at = self._take(data)
                break
            except Refusal as refusal:
                self._refused(refusal)
        self._end_stretch()
        if self._stops:
            self._held = data[at:]
        elif at < len(data):
            self._partial += data[at:]
            self._bytes_needed = self._frame_end(data, at)
            self.connection.await_rest()
            self.due(Due.FRAME, self.connection.now + self.broker.settings.frame_seconds)
        elif self.current is not None and self.current.content is not None:
            self.connection.await_rest()  # of a publish whose frames are written one by one
        self._count_held()

    def _count_held(self) -> None:
        """What is not all there, or waits, counts with what waits to be sent."""
        self.connection.hold(self._gathered_bytes + len(self._partial) + len(self._held))

    def _take(self, data: bytes) -> int:
        """Raises Refusal, with `at` behind the frame that is refused."""
        at, end = self.at, len(data)
        while not self._stops and self.state is not State.ENDED:
            if self.state is State.OPEN:
                index = data[at + FRAME_HEAD.size : at + FRAME_HEAD.size + 4]
                if index == PUBLISH:
                    at = self.at = self.publishing.take_runs(data, at)
                elif index == ACK:
                    at = self.at = self._take_acks(data, at)
                if self._stops:
                    break
            if end - at < FRAME_HEAD.size:
                break
            kind, number, size = FRAME_HEAD.unpack_from(data, at)
            stop = at + FRAME_HEAD.size + size
            if kind not in _KINDS:
                raise RemoteProtocolError(f"a frame of type {kind}")
            if size + FRAME_OVERHEAD > self.frame_bytes_max:
                self.at = end
                text = f"a frame of {size + FRAME_OVERHEAD} bytes, frame_max is {self.frame_bytes_max}"
                raise Refusal(Code.FRAME_ERROR, text)
            if stop >= end:
                break
            if data[stop] != _END:
                raise RemoteProtocolError("a frame without its end octet")
            self._frame_at = at
            self.at = stop + 1
            self.worked(FRAME_WORK)
            self._frame(kind, number, data[at + FRAME_HEAD.size : stop])
            at = self.at
            if self.connection.outbox.size > self.connection.outbox.bound:
                self.stop(Stop.OUTBOX)
        return len(data) if self.state is State.ENDED else at

    def _take_acks(self, data: bytes, at: int) -> int:
        """As many acknowledgements as stand here for one channel; none where they are to be looked at."""
        kind, number, size = FRAME_HEAD.unpack_from(data, at)
        channel = self.channels.get(number)
        if kind != METHOD or size != _ACK_BYTES or channel is None or channel.state is not ChannelState.OPEN:
            return at
        if channel.transaction is not None:
            return at
        self.current = channel
        self._index = commands.Basic.Ack.index
        return self.settling.take_run(self, channel, data, at)

    def _frame_end(self, data: bytes, at: int) -> int:
        """How many bytes the frame that begins at `at` needs, as far as one can see."""
        if len(data) - at < FRAME_HEAD.size:
            return FRAME_HEAD.size
        return int(FRAME_HEAD.unpack_from(data, at)[2]) + FRAME_OVERHEAD

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == HEARTBEAT:
            if number or payload:
                raise Refusal(Code.FRAME_ERROR, "a heartbeat on a channel, or with a payload")
            return
        self.current = None
        if number == 0:
            self._on_connection(kind, payload)
            return
        if self.state is State.CLOSING:
            return
        if self.state is not State.OPEN:
            raise Refusal(Code.COMMAND_INVALID, f"channel {number} before connection.open")
        channel = self.current = self.channels.get(number)
        if channel is not None and channel.state is ChannelState.CLOSING:
            if kind == METHOD:
                self._while_closing(channel, payload)
        elif kind == METHOD:
            self._index = int.from_bytes(payload[:4], "big")
            self._method(channel, number, payload)
        elif channel is None:
            raise Refusal(Code.CHANNEL_ERROR, f"content on channel {number}, which is not open")
        elif kind == HEADER:
            self.worked(len(payload) // HEADER_BYTES)
            if channel.take_header(*header_untrusted(payload)):
                self._published(channel, b"")
        else:
            body = channel.take_body(payload)
            if body is not None:
                self._published(channel, body)

    def _method(self, channel: Channel | None, number: int, payload: bytes) -> None:
        index = payload[:4]
        if index == PUBLISH and channel is not None and channel.state is ChannelState.OPEN:
            channel.begin_content(Content(*publish_untrusted(payload)))
            return
        self.worked(METHOD_WORK + len(payload) // METHOD_BYTES)
        method, table = decode_untrusted(payload)
        handler = HANDLERS.get(type(method))
        if handler is None:
            raise Refusal(Code.COMMAND_INVALID, f"{method.name} is not for a server")
        if channel is None:
            if not isinstance(method, commands.Channel.Open):
                if isinstance(method, commands.Channel.CloseOk):
                    return  # the answer to a close that its own has crossed
                raise Refusal(Code.CHANNEL_ERROR, f"{method.name} on channel {number}, which is not open")
            self._open_channel(number)
            return
        if channel.state is not ChannelState.OPEN:
            raise Refusal(Code.UNEXPECTED_FRAME, f"{method.name} while {channel.state.value}")
        self.worked(self.settling.settle_now())
        if self.broker.background.busy and method.index >> 16 in _WIRING:
            self.ask_again(self.broker.background.when_idle)
            return
        handler(channel, method, table)

    def _open_channel(self, number: int) -> None:
        if number > self._channel_max:
            raise Refusal(Code.CHANNEL_ERROR, f"channel {number} is above channel_max {self._channel_max}")
        channel = self.channels[number] = Channel(self, number)
        self.broker.counts.channels += 1
        channel.reply(commands.Channel.OpenOk())

    def _while_closing(self, channel: Channel, payload: bytes) -> None:
        """Everything but the end of the dialog is thrown away."""
        index = int.from_bytes(payload[:4], "big")
        if index == commands.Channel.CloseOk.index:
            channel.step(ChannelEvent.CLOSE_OK)
            del self.channels[channel.number]
        elif index == commands.Channel.Close.index:  # they cross
            channel.reply(commands.Channel.CloseOk())

    def _published(self, channel: Channel, body: bytes) -> None:
        """A publish that came frame by frame is whole."""
        content, channel.content = channel.content, None
        assert content is not None
        assert content.head is not None
        self._index = commands.Basic.Publish.index
        if content.failed:
            self.publishing.refuse(channel, 1, content.failed)
            return
        post = self.publishing.remember(channel, content, content.head)
        try:
            self.publishing.publish(post, (body,))
        finally:
            if content.head.large:
                self.broker.bodies.let_go(body)

    # The end of a stretch.

    def _end_stretch(self) -> None:
        self.settling.settle_now()
        if self.to_confirm:
            confirms, self.to_confirm = self.to_confirm, {}
            for one in confirms:
                one.advance()
        self.broker.flush()
        if self.broker.store.congested and not self._stops & Stop.STORE and self.state is State.OPEN:
            self.stop(Stop.STORE)
            self.broker.store.when_uncongested(self.connection.guarded(self._store_has_room))

    # What others ask of it.

    @property
    def holds_messages(self) -> bool:
        return any(
            channel.unacked or (channel.transaction is not None and channel.transaction.holds)
            for channel in self.channels.values()
        )

    def room_bytes(self) -> int:
        """How much more may be delivered now; negative: nothing."""
        if self.replies.owed or self.state is not State.OPEN or self.connection.closed:
            if self.replies.owed and not self._waits_to_deal:
                self._waits_to_deal = True
                self.replies.when_empty(self._deal_again)
            return -1
        outbox = self.connection.outbox
        return outbox.bound - outbox.size

    def worked(self, amount: int) -> None:
        self._work += amount
        if self._work > WORK_PER_STRETCH and not self._stops & Stop.OTHERS:
            self.stop(Stop.OTHERS)
            self.due(Due.SOON, self.connection.now)

    def wait_for_memory(self) -> None:
        if self.holds_messages or self._stops & Stop.MEMORY:
            return
        self.broker.counts.memory_waits += 1
        self.stop(Stop.MEMORY)
        if self.handshake.capabilities.get("connection.blocked"):
            self.connection.write(encode(commands.Connection.Blocked("memory_bytes_max is reached"), 0))
        self.broker.memory.when_free(self.connection.guarded(self._memory_is_free))

    def wait_for_bodies(self) -> None:
        """What came of a large body goes to the disk: not faster than that writes."""
        bodies = self.broker.bodies
        if bodies.behind and not self._stops & Stop.BODIES:
            self.stop(Stop.BODIES)
            bodies.when_caught_up(self.connection.guarded(self._bodies_caught_up))

    def ask_again(self, when: Callable[[Callable[[], None]], None]) -> None:
        """The method that is being handled is to be taken again, once `when` calls back."""
        self.at = self._frame_at
        self.stop(Stop.READY)
        when(self.connection.guarded(self._is_ready))

    def gathered(self, count: int) -> None:
        """So many bytes of content wait for their rest (or, negative, do not any more)."""
        self._gathered_bytes += count

    def begin_large(self, head: Head) -> Arriving:
        """A large body has begun. Raises Refusal (RESOURCE_ERROR)."""
        self.worked(LARGE_WORK)
        broker = self.broker
        begun = sum(arriving.length for arriving in self._arriving())
        if begun + head.body_bytes > 2 * broker.settings.body_bytes_max:
            raise Refusal(Code.RESOURCE_ERROR, "too much content has begun on too many channels")
        self.large_came()
        return broker.bodies.begin(head.body_bytes, head.persistent)

    def large_came(self) -> None:
        """A large body has begun, or come nearer its end. Until it does, it holds what others might have."""
        self.due(Due.LARGE, self.connection.now + self.broker.settings.frame_seconds)

    def _arriving(self) -> list[Arriving]:
        contents = [channel.content for channel in self.channels.values() if channel.content is not None]
        return [content.arriving for content in contents if content.arriving is not None]

    def unfinished(self, body_bytes: int) -> None:
        """Content has begun (or, negative, is whole). Raises Refusal (RESOURCE_ERROR)."""
        self._unfinished_bytes += body_bytes
        if body_bytes > 0 and self._unfinished_bytes > 2 * self.broker.settings.message_bytes_max:
            raise Refusal(Code.RESOURCE_ERROR, "too much content has begun on too many channels")

    # Time, and input that was held back.

    def _take_up(self) -> None:
        data, self._held, self._late = self._held + self._late, b"", b""
        self._work = 0
        if data:
            self._stretch(data, 0)
        if self._end_of_input and not self._stops:
            self._end()

    def _due_now(self, what: Due, now: float) -> None:
        if what is Due.SOON:
            self.go(Stop.OTHERS)
        elif what is Due.LARGE:
            if self._arriving() and self.stopped:  # it is not the peer that is late
                self.large_came()
            elif self._arriving():
                self.broker.counts.too_late += 1
                self.current, self._index = None, commands.Basic.Publish.index
                self._refused(Refusal(Code.RESOURCE_ERROR, "a large body took too long to come"))
        else:
            super()._due_now(what, now)

    def _drained(self) -> None:
        self.go(Stop.OUTBOX)
        self._deal_again()

    def _store_has_room(self) -> None:
        self.go(Stop.STORE)

    def _bodies_caught_up(self) -> None:
        self._go_soon(Stop.BODIES)

    def _is_ready(self) -> None:
        self._go_soon(Stop.READY)

    def _memory_is_free(self) -> None:
        if not self.lost and self.handshake.capabilities.get("connection.blocked"):
            self.connection.write(encode(commands.Connection.Unblocked(), 0))
        self._go_soon(Stop.MEMORY)
