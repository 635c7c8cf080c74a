"""A consumer: what takes messages from a queue and packs them for its channel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dmp.amqp.wire import FRAME_END, KEPT_BYTES_MAX, deliver_before, deliver_between, split, tag_bytes
from dmp.message import Head, Message
from dmp.queues import Queue

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel

_NO_LIMIT = 1 << 30
_HEADS_MAX = 64
"""Kinds of messages of which a consumer keeps what is put around the bodies."""


class Consumer:
    """One `basic.consume`. `prefetch`: unacknowledged messages it may have, 0: as many as the channel.

    `priority`: those of the queue with a higher one are served first.
    """

    __slots__ = (
        "_before",
        "_between",
        "_end_before",
        "_head",
        "_heads",
        "channel",
        "no_ack",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        channel: "Channel",
        queue: Queue,
        tag: bytes,
        *,
        no_ack: bool,
        prefetch: int,
        priority: int = 0,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.priority = priority
        self.unacked = 0
        self._heads: dict[Head, tuple[bytes, bytes]] = {}
        self._head: Head | None = None
        self._before = self._between = self._end_before = b""

    def room(self) -> tuple[int, int]:
        channel = self.channel
        room_bytes = channel.session.room_bytes()
        if room_bytes < 0 or not channel.flowing:
            return 0, 0
        if self.no_ack:
            return _NO_LIMIT, room_bytes
        count = channel.room()
        if self.prefetch:
            count = min(count, self.prefetch - self.unacked)
        return max(count, 0), room_bytes

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        if head is not self._head:
            self._begin(head)
        channel = self.channel
        if head.body_bytes > channel.payload_max:
            bodies = [split(channel.number, body, channel.payload_max) for body in bodies]
        between, end_before = self._between, self._end_before
        parts = [self._before]
        tag = channel.delivered
        for tag, body in enumerate(bodies, tag + 1):  # noqa: B020 - it goes on where it was
            parts += (tag_bytes(tag), between, body, end_before)
        channel.delivered = tag
        parts[-1] = FRAME_END
        channel.session.connection.write(b"".join(parts))

    def deliver(self, messages: list[Message]) -> None:
        channel = self.channel
        tag = channel.delivered
        number, payload_max = channel.number, channel.payload_max
        if not self.no_ack:  # first of all, so that none is lost should the rest fail
            queue = self.queue
            channel.unacked.update(
                [(tag, (self, queue, message)) for tag, message in enumerate(messages, tag + 1)]
            )
            self.unacked += len(messages)
        parts: list[bytes] = []
        for message in messages:
            tag += 1
            head = message.head
            if head is not self._head:
                self._begin(head)
            between = self._between
            if message.redelivered:
                channel.session.broker.counts.redelivered += 1
                between = deliver_between(number, head, True, payload_max)
            if head.large:
                parts += (self._before, tag_bytes(tag), between)
                channel.session.connection.write(b"".join(parts))
                parts.clear()
                channel.session.connection.write_file(channel.body_frames(message.body))
                continue
            body = message.body
            if head.body_bytes > payload_max:
                body = split(number, body, payload_max)
            parts += (self._before, tag_bytes(tag), between, body, FRAME_END)
        channel.delivered = tag
        channel.session.connection.write(b"".join(parts))

    def cancelled(self) -> None:
        self.channel.consumer_cancelled(self)

    def crashed(self, error: Exception) -> None:
        self.channel.session.connection.crashed(error)

    def _begin(self, head: Head) -> None:
        """Find, or make, what is put around the bodies of `head`."""
        found = self._heads.get(head)
        if found is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            number, payload_max = self.channel.number, self.channel.payload_max
            between = deliver_between(number, head, False, payload_max)
            found = deliver_before(number, self.tag, head), between
            if len(between) <= KEPT_BYTES_MAX:
                self._heads[head] = found
        self._head = head
        self._before, self._between = found
        self._end_before = FRAME_END + self._before
