"""Contents of messages, frame by frame: those that come in, and large ones on their way out.

A large body is never in memory as a whole. What comes in is written to a log of its own; what goes out is
read from that log as fast as the client takes it. In the outbox it stands as a range of a file does, so what
is written behind it is sent behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from dmp.amqp.wire import BODY, FRAME_END, FRAME_HEAD, FRAME_OVERHEAD
from dmp.bodies import PART_BYTES, REFERENCE_BYTES, Arriving, Bodies, Body, part_bytes
from dmp.data_types import short
from dmp.exchanges import REPLY_TO
from dmp.message import Head
from dmp.pacing import STOP_BODIES, stop_until
from dmp.properties import note_untrusted, without_bcc
from dmp.queue_records import operations
from dmp.refusals import Code, Refusal, said_of
from dmp.settings import DmpSettings
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.net.session import SessionBase

if TYPE_CHECKING:
    from shared.storage.store import Ticket

READ_BYTES = 256 << 10  # read from the log at once, and again when half of it is sent
BEGUN_BYTES = 1000  # what a content takes whose header is here, beside its properties: 750 measured


LARGE = 4  # the deadline of a session for its large bodies


@attrs.define(eq=False, repr=False)
class Incoming:
    """What has begun to come on all channels of one connection.

    What is here of contents that are not whole, and not written yet, counts with the session's input
    (`SessionBase.gathered_bytes`). So do the properties, which alone could be 128 KiB on each channel.
    `announced_bytes`: of bodies that are gathered in memory, as their headers say.
    """

    session: SessionBase
    settings: DmpSettings
    bodies: Bodies
    announced_bytes: int = 0
    large: dict[Arriving, None] = attrs.Factory(dict)

    def announce(self, body_bytes: int) -> None:
        """Raises Refusal (RESOURCE_ERROR)."""
        self.announced_bytes += body_bytes
        self._check(self.announced_bytes, self.settings.message_bytes_max)

    def begin_large(self, head: Head) -> Arriving:
        """Raises Refusal (RESOURCE_ERROR)."""
        begun = sum(arriving.length for arriving in self.large)
        self._check(begun + head.body_bytes, self.settings.body_bytes_max)
        arriving = self.bodies.begin(head.body_bytes, head.persistent)
        self.large[arriving] = None
        self.large_progressed()
        return arriving

    def large_progressed(self) -> None:
        """A large body has begun, or came nearer its end: until it does, it holds what others might have.

        It comes no faster than the disk writes it.
        """
        session, bodies = self.session, self.bodies
        session.deadline(LARGE, session.connection.now + self.settings.frame_seconds)
        if bodies.behind and not session.stopped & STOP_BODIES:
            stop_until(session, STOP_BODIES, bodies.when_caught_up)

    def _check(self, begun: int, bytes_max: int) -> None:
        if begun > 2 * bytes_max:
            raise Refusal(Code.RESOURCE_ERROR, "too much content has begun on too many channels")


@attrs.define(eq=False, repr=False)
class Content:
    """A publish whose content is coming. `head`: as it is delivered; `properties`: as they came.

    `failed`: why a large body could not be written.
    """

    exchange: bytes
    key: bytes
    mandatory: bool
    immediate: bool
    head: Head | None = None
    properties: bytes = b""
    missing: int = 0
    failed: str = ""
    _gathered: bytearray = attrs.Factory(bytearray)  # what is here of a body in several frames
    _arriving: Arriving | None = None  # a large body, which is written as it comes
    _counted_bytes: int = 0  # with the session's input

    def begin(
        self, incoming: Incoming, body_bytes: int, properties: bytes, reply_queue: bytes | None
    ) -> None:
        """The content header has come. Raises Refusal."""
        bytes_max = incoming.settings.body_bytes_max
        if body_bytes > bytes_max:
            text = f"message size {body_bytes} is larger than configured max size {bytes_max}"
            raise Refusal(Code.PRECONDITION_FAILED, text)
        self.properties = properties
        large = body_bytes > incoming.settings.message_bytes_max
        self.head = head = self._head(body_bytes, reply_queue, REFERENCE_BYTES if large else 0)
        self.missing = body_bytes
        if large:
            self._arriving = incoming.begin_large(head)
        else:
            incoming.announce(body_bytes)
        if body_bytes:
            self._count(incoming, BEGUN_BYTES + len(properties))

    def _head(self, body_bytes: int, reply_queue: bytes | None, reference_bytes: int) -> Head:
        """The head as it is delivered: the reply queue's own name in place of `REPLY_TO`, and no `BCC`."""
        properties = self.properties
        noted = note_untrusted(properties)
        if noted.reply_to is not None:
            start, end = noted.reply_to
            if properties[start + 1 : end] == REPLY_TO:
                if reply_queue is None:
                    raise Refusal(Code.PRECONDITION_FAILED, "fast reply consumer does not exist")
                properties = b"".join((properties[:start], short(reply_queue), properties[end:]))
                noted = note_untrusted(properties)
        delivered, keys = without_bcc(properties, noted)
        if delivered is not properties:
            noted = note_untrusted(delivered)
        head = Head(self.exchange, self.key, body_bytes, delivered, noted, reference_bytes)
        head.more_keys = keys
        return head

    def take(self, incoming: Incoming, part: bytes) -> bytes | None:
        """The body, or a reference to a large one, once it is whole; b"" where that could not be written.

        Raises Refusal.
        """
        self.missing -= len(part)
        if self.missing < 0:
            raise Refusal(Code.UNEXPECTED_FRAME, "more body than its header has announced", hard=True)
        if self.head is not None and self.head.large:
            return self._take_large(incoming, part)
        if self.missing or self._gathered:
            self._gathered += part
            self._count(incoming, len(part))
        if self.missing:
            return None
        if self._gathered:
            part = bytes(self._gathered)
        self._count(incoming, -self._counted_bytes)
        incoming.announced_bytes -= len(part)
        return part

    def _take_large(self, incoming: Incoming, part: bytes) -> bytes | None:
        """The rest of a body that cannot be written is read all the same, and the publish then refused."""
        arriving = self._arriving
        if arriving is not None:
            self._gathered += part
            self._count(incoming, len(part))
            if not self.missing or len(self._gathered) >= PART_BYTES:
                self._count(incoming, -len(self._gathered))
                part, self._gathered = bytes(self._gathered), bytearray()
                try:
                    arriving.add(part)
                except StoreError as error:
                    self.failed = said_of(error)
                    self._give_up(incoming)
                incoming.large_progressed()
        if self.missing:
            return None
        self._count(incoming, -self._counted_bytes)
        if self._arriving is None:
            return b""
        del incoming.large[self._arriving]
        return self._arriving.finish()

    def drop(self, incoming: Incoming) -> None:
        """The channel ends before the content is whole."""
        if self.head is not None and not self.head.large:
            incoming.announced_bytes -= self.head.body_bytes
        self._give_up(incoming)
        self._count(incoming, -self._counted_bytes)

    def _count(self, incoming: Incoming, size: int) -> None:
        """Count `size` more bytes of content, or fewer."""
        self._counted_bytes += size
        incoming.session.gathered_bytes += size

    def _give_up(self, incoming: Incoming) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            del incoming.large[arriving]
            arriving.give_up()


class BodyFrames(FileRange):
    """All body frames of one content. `release`: called when they are sent, or never will be; `broken` where
    the body cannot be read, before that is raised."""

    def __init__(
        self,
        connection: Connection,
        channel: int,
        payload_max: int,
        body: Body,
        *,
        release: Callable[[], None],
        broken: Callable[[StoreError | None], None],
    ) -> None:
        frames = -(-body.length // payload_max)
        super().__init__(-1, 0, body.length + frames * FRAME_OVERHEAD, release)
        self._connection = connection
        self._channel = channel
        self._payload_max = payload_max
        self._body = body
        self._broken = broken
        self._buffer = b""  # framed, from `_at` on
        self._at = 0
        self._left = body.length  # not framed yet
        self._frame_left = 0  # of the frame that is begun
        self._next = body.log.first  # where in the log it goes on
        self._reading = False
        self._starved = False  # `read` had nothing
        self._over = False  # nothing more can be read

    def read(self, bytes_max: int) -> bytes:
        start = self.offset - self._at
        if len(self._buffer) - start < READ_BYTES // 2 and self._left and not (self._reading or self._over):
            self._reading = True
            written = self._body.written
            if written is None or written.done:
                self._fetch()
            else:
                written.when_done(self._written)
            start = self.offset - self._at
        data = self._buffer[start : start + min(bytes_max, self.length)]
        if not data:
            if self._over:
                raise EOFError("a body cannot be read")
            self._starved = True
            raise BlockingIOError
        return data

    def _written(self, ticket: Ticket) -> None:
        if ticket.error is None:
            self._fetch()
        else:
            self._read_on(ticket.error)

    def _fetch(self) -> None:
        self._body.log.read(self._next, READ_BYTES, self._read_on)

    def _read_on(self, data: bytes | StoreError) -> None:
        self._reading = False
        error = data if isinstance(data, StoreError) else None
        if isinstance(data, StoreError) or not data:
            self._over = True
            self._broken(error)
        else:
            self._next += len(data)
            sent = self.offset - self._at
            framed = [self._buffer[sent:]]
            for op, start, end in operations(data):
                self._frame(part_bytes(op, data, start, end), framed)
            self._buffer = b"".join(framed)
            self._at = self.offset
        if self._starved:
            self._starved = False
            self._connection.go_on()

    def _frame(self, part: bytes, framed: list[bytes]) -> None:
        at, left = 0, min(len(part), self._left)
        self._left -= left
        while left:
            if not self._frame_left:
                self._frame_left = min(self._left + left, self._payload_max)
                framed.append(FRAME_HEAD.pack(BODY, self._channel, self._frame_left))
            taken = min(self._frame_left, left)
            framed.append(part[at : at + taken])
            at += taken
            left -= taken
            self._frame_left -= taken
            if not self._frame_left:
                framed.append(FRAME_END)
