"""A large body on its way to a client: as frames, read from its log as fast as the client takes them.

It stands in the outbox as a range of a file does, so what is said behind it is sent behind it, and no more of
it is in memory than a few hundred kilobytes.
"""

from collections.abc import Callable

from dmp.amqp.wire import BODY, FRAME_END, FRAME_HEAD, FRAME_OVERHEAD
from dmp.bodies import Body, part_bytes
from dmp.queue_records import places
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.storage.store import Ticket

READ_BYTES = 256 << 10
"""Read from the log at once, and again when so much of it is sent that half is left."""


class BodyFrames(FileRange):
    """All body frames of one content. `release`: called when they are sent, or never will be; `broken` where
    the body cannot be read, before that is raised."""

    __slots__ = (
        "_at",
        "_body",
        "_broken",
        "_buffer",
        "_channel",
        "_connection",
        "_frame_left",
        "_left",
        "_next",
        "_over",
        "_payload_max",
        "_reading",
        "_starved",
    )

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
            self._came(ticket.error)

    def _fetch(self) -> None:
        self._body.log.read(self._next, READ_BYTES, self._came)

    def _came(self, data: bytes | StoreError) -> None:
        self._reading = False
        error = data if isinstance(data, StoreError) else None
        if isinstance(data, StoreError) or not data:
            self._over = True
            self._broken(error)
        else:
            self._next += len(data)
            sent = self.offset - self._at
            framed = [self._buffer[sent:]]
            for op, start, end in places(data):
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
