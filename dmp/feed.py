"""The reading end of a DMP connection: a queue's messages, written as they come.

A feed takes all that its outbox has room for, and what it has taken is gone from the queue. When the
connection goes, messages in the outbox whose first byte was never written go back to their old places. So a
message is delivered at most once, and a reader that comes back misses none but those that were on their way.

A message that came by a sink is written with its envelope as the sink's client wrote it; one that came by
`basic.publish` names its exchange. What goes back to the queue has the exchange that its envelope names.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from dmp import wire
from dmp.message import Head
from dmp.queues import Application, Queue
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.net.session import SessionBase
from shared.queues.runs import Run
from shared.turns import ITEMS

if TYPE_CHECKING:
    from dmp.broker import Broker
    from shared.net.outbox import Chunk

IDLE = 1
IDLE_SECONDS = 5.0  # silence after which a null message is written
_NO_LIMIT = 1 << 30


@attrs.define(eq=False)
class Feed:
    """A `dmp.takers.FeedTaker`; a session passes its input to it. The answer to the lease is written.

    `gone`: called when the queue is.
    """

    _session: SessionBase
    _broker: "Broker"
    _queue: Queue
    _owner: Application
    _gone: Callable[[], None]
    connection: Connection = attrs.field(init=False)
    _pushed: int = attrs.field(default=0, init=False)  # bytes written, sent or not
    _unsent: tuple[Sequence["Chunk"], "Chunk | None"] = attrs.field(default=((), None), init=False)
    _wrote: float = attrs.field(init=False)
    delivered: int = attrs.field(default=0, init=False)  # messages written, sent or not
    no_ack: bool = attrs.field(default=True, init=False)
    priority: int = attrs.field(default=0, init=False)
    pool: None = attrs.field(default=None, init=False)
    ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        connection = self.connection = self._session.connection
        self._wrote = connection.now
        outbox = connection.outbox
        outbox.bound = self._broker.settings.feed_bytes_max
        outbox.on_clear = self._left
        connection.on_drained = self._drained
        self._owner.hold()
        self._broker.counts.feeds += 1
        self._session.deadline(IDLE, self._wrote + IDLE_SECONDS)
        self._queue.set_feed(self)

    # What the queue gives.

    def room(self) -> tuple[int, int]:
        outbox = self.connection.outbox
        left = outbox.bound - outbox.size
        over = self.ended or self._session.hung_up or self.connection.closed
        return (0, 0) if left < 0 or over else (_NO_LIMIT, left)

    def deliver(self, runs: list[Run]) -> None:
        self.delivered += sum([len(run) for run in runs])
        self._push(b"".join([_envelope(run.head).join((b"", *run.bodies)) for run in runs]))

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        self.delivered += len(bodies)
        self._push(_envelope(head).join((b"", *bodies)))

    def deliver_whole(self, chunk: bytes | memoryview, count: int) -> None:
        self.delivered += count
        self._push(chunk)

    def cancelled(self) -> None:
        """The queue is gone: what is in the outbox is still sent."""
        self.ended = True
        self._gone()
        self.connection.finish()

    def fail(self, error: Exception) -> None:
        self.connection.fail(error)

    def _push(self, data: bytes | memoryview) -> None:
        connection = self.connection
        self._pushed += len(data)
        if connection.closed:  # with what was written before this, a moment ago
            chunks, begun = self._unsent
            self._unsent = (*chunks, data), begun
            return
        self._wrote = connection.now
        connection.write(data)

    # What the session passes on.

    def apply(self, data: bytes, at: int) -> int:
        """A feed's client has nothing to say but null messages. Raises RemoteProtocolError."""
        if data[at:].strip(b"\0"):
            # What it reads are messages: a text between them would be taken for one.
            error = wire.wire_error(wire.Reply.INVALID, "a feed is read, not written to")
            error.reply = b""
            raise error
        return len(data)

    def idle(self, now: float) -> None:
        """Send a null message if nothing was written for a while."""
        idle_at = self._wrote + IDLE_SECONDS
        if now >= idle_at:
            if not self.connection.outbox.size:  # else it is not idle, but slow
                self._push(wire.NULL_MESSAGE)
            idle_at = now + IDLE_SECONDS
        self._session.deadline(IDLE, idle_at)

    def release(self) -> None:
        """Take nothing more. The queue gives out nothing until what was not sent is back, before all there
        is."""
        self.ended = True
        if self._queue.takers.feed is self:
            self._queue.await_returns()
            self._queue.set_feed(None)

    def connection_lost(self) -> None:
        """Give back to the queue what was not sent."""
        queue, broker = self._queue, self._broker
        broker.counts.feeds -= 1
        if not queue.deleted:
            queue.feed_lease = None
            broker.work.add(self._come_back(self._not_begun()))
            broker.topology.consumer_left(queue)
        self._owner.release()

    def _come_back(self, messages: bytes) -> Iterator[None]:
        """Messages to their queue, which gives out nothing meanwhile: the last one first."""
        queue, broker = self._queue, self._broker
        back: list[tuple[Head, list[bytes]]] = []
        for before, bodies in wire.runs(messages, ITEMS):
            exchange, key, properties, body_bytes = wire.read_envelope(before)
            head = Head(exchange, key, body_bytes, properties)
            head.envelope = before
            back.append((head, bodies))
            yield
        while back and not queue.deleted:
            head, bodies = back.pop()
            following = _first_number(queue)
            run = queue.number(head, bodies, following - len(bodies))
            queue.charge_runs((run,))
            broker.memory.changed()
            broker.counts.delivered -= len(bodies)
            queue.return_front((run,), taken=False)
            yield
        queue.all_returned()

    def _drained(self) -> None:
        if not self.ended:
            self._queue.dispatch()

    # What goes back.

    def _left(self, chunks: "Sequence[Chunk]", begun: "Chunk | None") -> None:
        """The connection has closed, maybe from within a call of the queue's: look at it later."""
        self._unsent = chunks, begun

    def _not_begun(self) -> bytes:
        """Whole messages that nothing was written of, in order."""
        (chunks, begun), self._unsent = self._unsent, ((), None)
        data = b"".join(chunk for chunk in chunks if not isinstance(chunk, FileRange))
        skip = max(0, len(data) - self._pushed)  # the answer to the lease is not even out
        if begun is not None:
            first = chunks[0]
            assert not isinstance(begun, FileRange)
            assert not isinstance(first, FileRange)
            written = len(begun) - len(first)
            if not written:  # how far it came is not known: all of it may be out, also behind the answer
                skip = max(skip, len(begun))
            elif not skip:
                skip = _next_message(begun, written)
        return data[skip:]


def _first_number(queue: Queue) -> int:
    """The smallest number of what is ready in memory, or waits for the disk; else the next message's."""
    if queue.ready:
        return queue.ready.first_number()
    return queue.arrivals.waiting[0][1][0].first if queue.arrivals.waiting else queue.numbered


def _next_message(whole: bytes | memoryview, written: int) -> int:
    """How many bytes of a chunk, behind those that are written, belong to a message that has begun too."""
    at = 0
    while at < written:
        at += wire.SIZE_BYTES + wire.read_u32(whole, at)[0]
    return at - written


def _envelope(head: Head) -> bytes:
    if head.envelope is None:
        head.envelope = wire.envelope(head.exchange, head.key, head.properties, head.body_bytes)
    return head.envelope
