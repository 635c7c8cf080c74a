"""What is published on a connection: a fast path for messages that are alike, and the plain path below it.

A publish is three frames: method, header, body. A producer that sends the same exchange, key and properties
with bodies of one length repeats every byte up to the body. A `PublishTemplate` is what such bytes mean,
checked and routed. The next message that begins with the same bytes belongs to the same run, so it costs one
comparison and one slice: 0.4 us where the plain path takes 18 (200 publishes of 100 bytes a read, to a
consumer without acknowledgements, without sockets). What no template is known for is decoded frame by frame
(`AmqpSession`), and `remember` makes the next one like it fast. Both give the same, as the tests show, where
a dialog is cut anywhere. What happens when memory is full: PROTOCOL.md, "Limits".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
from pamqp import commands

from dmp.amqp.content import Content
from dmp.amqp.states import ChannelState
from dmp.amqp.wire import FRAME_END, METHOD, PUBLISH, content_head, publish_frame
from dmp.exchanges import DEFAULT_IN_RULES
from dmp.memory import BudgetedCache
from dmp.message import Head
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, said_of
from dmp.wire import RECORDED_PUBLISHES, envelope
from shared.access import WRITE
from shared.errors import StoreError

if TYPE_CHECKING:
    from dmp.amqp.channel import AmqpChannels, Channel
    from shared.recording.recorder import Track
    from shared.storage.store import Ticket

# Templates that one connection keeps: a producer whose properties always change must not fill memory.
_TEMPLATES_MAX = 512
_TEMPLATE_BYTES = 800  # what one takes beside its bytes, which stand in it twice: 760 measured
# Exchanges whose tracks one connection keeps for the recording; beyond them, all are made anew.
_TRACKS_MAX = 64
# A longer beginning of a publish (method, header, head of the body) does not take the fast path.
_HEAD_BYTES_MAX = 2048
# Messages of one run, counted once for each queue. Between runs other connections may have their turn.
_RUN_MAX = 4096
_END = FRAME_END[0]
PUBLISH_INDEX = commands.Basic.Publish.index
_SIZE = struct.Struct(">I").unpack_from


@attrs.define(eq=False, repr=False)
class PublishTemplate:
    """What the bytes before a body mean. `queues` is right while `generation` is the broker's, and so are
    `rejecting`: those of them that refuse what they have no room for."""

    bytes: bytes
    channel: Channel
    content: Content
    head: Head
    generation: int = -1
    run_max: int = _RUN_MAX
    queues: Sequence[Queue] = ()
    rejecting: Sequence[Queue] = ()


class Publishing:
    """What one connection publishes, and the routes that are remembered."""

    __slots__ = ("_mux", "_templates", "_tracks")

    def __init__(self, mux: AmqpChannels) -> None:
        self._mux = mux
        self._templates: BudgetedCache[bytes, PublishTemplate] = BudgetedCache(
            mux.broker.accounts.caches, _TEMPLATES_MAX
        )
        self._tracks: dict[bytes, Track] = {}  # of the recording, by exchange

    def forget(self) -> None:
        """A channel has ended, and some templates may be its."""
        self._templates.forget()

    def take_runs(self, data: bytes, at: int) -> int:
        """Publish what stands at `at` as far as there are templates for it; returns where it stopped.

        Raises Refusal, with `mux.at` and `mux.current` at the run that is refused.
        """
        end, mux = len(data), self._mux
        session = mux.session
        while at < end and not session.stopped:
            head_end = _head_end(data, at, end)
            template = self._templates.get(data[at:head_end]) if head_end else None
            if template is None or template.channel.state is not ChannelState.OPEN:
                break
            head_bytes = template.bytes
            length, body_bytes = len(head_bytes), template.head.body_bytes
            bodies: list[bytes] = []
            body_at = at + length
            for _ in range(template.run_max):
                stop = body_at + body_bytes
                if stop >= end or data[stop] != _END:
                    break
                bodies.append(data[body_at:stop])
                at = stop + 1
                if not data.startswith(head_bytes, at):
                    break
                body_at = at + length
            if not bodies:
                break
            mux.at = at
            mux.current, mux.index = template.channel, PUBLISH_INDEX
            self.publish(template, bodies)
        return at

    def remember(self, channel: Channel, content: Content, head: Head) -> PublishTemplate:
        """The template of a publish that was decoded. It is kept where the next one may begin with the same
        bytes."""
        head.payer = self._mux.payer
        template = PublishTemplate(b"", channel, content, head)
        if head.large or not 0 < head.body_bytes <= channel.mux.payload_max:
            return template
        number, payload_max = channel.number, channel.mux.payload_max
        method = publish_frame(
            number, content.exchange, content.key, content.mandatory | content.immediate << 1
        )
        template.bytes = method + content_head(number, head.body_bytes, content.properties, payload_max)
        length = len(template.bytes)
        if length <= _HEAD_BYTES_MAX:
            self._templates.keep(template.bytes, template, _TEMPLATE_BYTES + 2 * length)
        return template

    def publish(self, template: PublishTemplate, bodies: Sequence[bytes]) -> None:
        """Messages of one template, from the fast path or the plain one. Raises Refusal."""
        mux, head, channel = self._mux, template.head, template.channel
        broker = mux.broker
        if template.generation != broker.generation:
            self._find_route(template)
        count = len(bodies)
        for observe in broker.observers:
            observe(head.exchange, head, template.queues, bodies)
        memory = mux.memory
        is_held_back = memory.full and mux.holds_messages
        if channel.transaction is not None:
            if is_held_back:
                raise Refusal(Code.RESOURCE_ERROR, memory.why)
            channel.transaction.publish(template, bodies)
            mux.end_turn_in_time(count)
            return
        counts = broker.counts
        counts.published += count
        mux.published += count
        counts.published_bytes += count * head.body_bytes
        if not template.queues:
            counts.unroutable += count
            if template.content.mandatory:
                for body in bodies:
                    channel.send_return(Code.NO_ROUTE, head, body)
            self._published(template, bodies)
        elif is_held_back:
            self.refuse(channel, count, memory.why)
        elif (
            template.rejecting
            and channel.confirms is not None
            and any(queue.capacity.room_for(head, count) < count for queue in template.rejecting)
        ):  # some queue is nearly full, and rejects what it has no room for: each has its own confirm
            for body in bodies:
                self._put(
                    template,
                    (body,),
                    rejected=any(not queue.capacity.room_for(head, 1) for queue in template.rejecting),
                )
        else:
            self._put(template, bodies)
        mux.end_turn_in_time(count * len(template.queues) or 1)
        if memory.full:
            mux.wait_for_memory()

    def _put(self, template: PublishTemplate, bodies: Sequence[bytes], *, rejected: bool = False) -> None:
        """Put messages into the queues of their template. `rejected`: some of these have no room, and the
        confirm says so."""
        channel, broker = template.channel, self._mux.broker
        send_return = channel.send_return if template.content.immediate else None
        try:
            ticket = broker.publish(template.head, template.queues, bodies, send_return)
        except StoreError as error:
            self.refuse(channel, len(bodies), said_of(error))
            return
        if rejected and channel.confirms is not None:
            channel.confirms.add(len(bodies), refused=True)
        else:
            self._published(template, bodies, ticket)

    def _published(
        self, template: PublishTemplate, bodies: Sequence[bytes], ticket: Ticket | None = None
    ) -> None:
        if self._mux.broker.recorder is not None:
            self.record(template, bodies)
        if template.channel.confirms is not None:
            template.channel.confirms.add(len(bodies), ticket)

    def _find_route(self, template: PublishTemplate) -> None:
        """Raises Refusal."""
        content, head = template.content, template.head
        broker = self._mux.broker
        self._mux.require(WRITE, content.exchange or DEFAULT_IN_RULES)
        broker.topology.open_exchange(content.exchange)
        user = head.noted.user_id
        if user is not None and user != self._mux.owner.user.encode():
            raise Refusal(Code.PRECONDITION_FAILED, "user_id property set to another than the login's user")
        template.queues = broker.route(content.exchange, head)
        template.rejecting = [
            queue for queue in template.queues if queue.capacity.capped and queue.kind.arguments.rejects
        ]
        template.generation = broker.generation
        template.run_max = max(1, _RUN_MAX // (len(template.queues) or 1))

    def record(self, template: PublishTemplate, bodies: Sequence[bytes]) -> None:
        """Record them, if that is asked for, as whole messages in the layout of DMP's own.

        A run is one block: what stands before the bodies is made once. The bytes of a large message were
        never together: it is counted as left out.
        """
        recorder, content, head = self._mux.broker.recorder, template.content, template.head
        if recorder is None:
            return
        if head.large:
            recorder.leave_out("large", len(bodies), len(bodies) * head.body_bytes)
            return
        track = self._tracks.get(content.exchange)
        if track is None:
            if len(self._tracks) >= _TRACKS_MAX:
                self._tracks.clear()
            source = self._mux.connection.peer.encode()
            track = recorder.track(RECORDED_PUBLISHES, name=content.exchange, source=source)
            self._tracks[content.exchange] = track
        before = envelope(content.exchange, content.key, content.properties, head.body_bytes)
        track.record(len(bodies), before + before.join(bodies))

    def refuse(self, channel: Channel, count: int, why: str) -> None:
        """Refuse a publish: in confirm mode by a nack. Without it, the specification has nothing softer than
        the connection's end."""
        if channel.confirms is None:
            raise Refusal(Code.RESOURCE_ERROR, why)
        channel.confirms.add(count, refused=True)


def _head_end(data: bytes, at: int, end: int) -> int:
    """Where the body of the publish at `at` begins, if it is one and that much is here; else 0."""
    if at + 11 > end or data[at] != METHOD or data[at + 7 : at + 11] != PUBLISH:
        return 0
    header_at = at + 8 + _SIZE(data, at + 3)[0]
    if header_at + 7 > end:
        return 0
    body_at = header_at + 15 + _SIZE(data, header_at + 3)[0]
    return body_at if body_at <= end and body_at - at <= _HEAD_BYTES_MAX else 0
