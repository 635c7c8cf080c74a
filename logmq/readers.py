"""Readers that wait for records: TAIL, and a FETCH that waits.

A tail that has caught up is served by its topic's `Feed`. One whose peer reads slowly leaves the feed
when its outbox is above its bound, and once that has drained reads the log by itself until it has caught up
again: it costs its own outbox, loses nothing, and slows nobody.

Source: PROTOCOL.md, "Readers that wait".
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from logmq.feeds import READ_BYTES, Feed
from logmq.metrics import Counts
from logmq.runs import message_lines
from logmq.wire import Refusal, chunk_line, refusal_for
from shared.errors import LogDeleted, StoreError
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.replies import Replies, ReplySlot
from shared.storage.store import Log


class Owner(Protocol):
    """The session to which a reader belongs."""

    connection: Connection
    replies: Replies
    counts: Counts

    def soon(self, callback: Callable[[], None]) -> None:
        """Call in the driver's next round: other connections come first."""

    def wake_by(self, deadline: float) -> None:
        """Have a look at the deadlines then, or earlier."""

    def reader_ended(self, reader: "Tail | Fetch") -> None:
        """It has said its last word, of its own accord."""


class Waiting(Protocol):
    """Who waits for a topic to be made."""

    @property
    def replies(self) -> Replies: ...

    def appeared(self, log: Log) -> None: ...


class Topics(Protocol):
    """Where readers find logs and feeds."""

    def find(self, name: str) -> Log | None: ...

    def feed(self, log: Log) -> Feed: ...

    def await_topic(self, name: str, waiting: Waiting) -> None: ...

    def forget_waiting(self, name: str, waiting: Waiting) -> None: ...


class Tail:
    """One TAIL, from its turn among the answers to its end."""

    __slots__ = ("_feed", "_held", "_log", "_name", "_reading", "_topics", "ended", "next", "owner")

    def __init__(self, owner: Owner, topics: Topics, name: str, offset: int) -> None:
        self.owner = owner
        self.next = offset
        """The offset of the next record to send."""
        self.ended = False
        self._topics = topics
        self._name = name
        self._log: Log | None = None
        self._feed: Feed | None = None
        self._reading = False
        self._held: ReplySlot | None = None
        owner.counts.tails += 1

    @property
    def replies(self) -> Replies:
        """Of the connection that it serves."""
        return self.owner.replies

    def start(self, held: ReplySlot) -> None:
        """Everything before it is answered."""
        self._held = held
        if self.ended:
            held.resolve(self._last_line())
            return
        log = self._topics.find(self._name)
        if log is None:
            self._topics.await_topic(self._name, self)
        else:
            self.appeared(log)

    def appeared(self, log: Log) -> None:
        self._log = log
        self.catch_up()

    def catch_up(self) -> None:
        """Read the log by itself until it may share the feed, as fast as its peer takes it."""
        log = self._log
        if log is None or self.ended or self._feed is not None or self._reading or self.crowded:
            return
        if log.deleted:
            self.refuse(refusal_for(LogDeleted()))
        elif self.next >= log.visible:
            self._feed = self._topics.feed(log)
            self._feed.join(self)
        else:
            self._reading = True
            log.read(self.next, READ_BYTES, self.replies.guarded(self._caught_up))

    def push(self, lines: bytes, end: int) -> None:
        """The records from `next` up to `end`."""
        self.owner.connection.write(lines)
        self.owner.counts.bytes_tailed += len(lines)
        self.next = end
        if self._feed is not None and self.crowded:
            self.owner.counts.tails_fallen_behind += 1
            self._leave()

    def fell_out(self) -> None:
        """The feed has moved past `next` without it."""
        self._feed = None
        self.catch_up()

    @property
    def crowded(self) -> bool:
        """More waits for the peer than its outbox should hold; `drained` will be called."""
        outbox = self.owner.connection.outbox
        return outbox.size > outbox.bound

    def end(self) -> None:
        """A line came, or the end of input, or of the server."""
        if not self.ended:
            self._finish()
            if self._held is not None:
                self._held.resolve(self._last_line())

    def refuse(self, refusal: Refusal) -> None:
        if not self.ended and self._held is not None:
            self._finish()
            self.owner.counts.refused(refusal)
            self._held.resolve(refusal.line)
            self.owner.reader_ended(self)

    def abandon(self) -> None:
        """The connection is gone."""
        if not self.ended:
            self._finish()

    def _last_line(self) -> bytes:
        return b"OK %d\n" % self.next

    def _caught_up(self, records: bytes | StoreError) -> None:
        self._reading = False
        if self.ended:
            return
        if isinstance(records, StoreError):
            self.refuse(refusal_for(records))
            return
        if records:
            self.push(message_lines(records, self.next), self.next + len(records))
        if self.crowded:
            return
        if self._log is not None and self.next < self._log.visible:
            self.owner.soon(self.catch_up)
        else:
            self.catch_up()

    def _finish(self) -> None:
        self.ended = True
        self.owner.counts.tails -= 1
        self._topics.forget_waiting(self._name, self)
        self._leave()

    def _leave(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.leave(self)


class Fetch:
    """One FETCH that waits: for records at or beyond the visible end, or for its topic."""

    __slots__ = (
        "_bytes_max",
        "_feed",
        "_held",
        "_log",
        "_name",
        "_overdue",
        "_owner",
        "_topics",
        "deadline",
        "ended",
        "offset",
    )

    def __init__(
        self, owner: Owner, topics: Topics, name: str, offset: int, bytes_max: int, deadline: float
    ) -> None:
        self.offset = offset
        self.deadline = deadline
        """Monotonic seconds."""
        self.ended = False
        self._owner = owner
        self._topics = topics
        self._name = name
        self._bytes_max = bytes_max
        self._log: Log | None = None
        self._feed: Feed | None = None
        self._overdue = False
        self._held = owner.replies.slot(self._turn_has_come)
        owner.counts.fetches_waiting += 1

    def start(self) -> None:
        log = self._topics.find(self._name)
        if log is None:
            self._topics.await_topic(self._name, self)
        else:
            self.appeared(log)

    def appeared(self, log: Log) -> None:
        self._log = log
        if log.visible > self.offset:
            self.go()
        else:
            self._feed = self._topics.feed(log)
            self._feed.add_fetch(self)

    @property
    def replies(self) -> Replies:
        """Of the connection that it answers."""
        return self._owner.replies

    def go(self) -> None:
        """There is something to read."""
        assert self._log is not None
        self.deadline = math.inf  # it was in time, whatever the disk takes
        self._overdue = False
        self._leave()
        self._log.read_chunk(self.offset, self._bytes_max, self.replies.guarded(self._read))

    def expire(self) -> None:
        """Its time is over, or the server's. A read under way is let finish."""
        if self.deadline == math.inf:
            return
        if self._log is not None and self.offset < self._log.end and not self._held.in_turn:
            # Its own connection may have written that before it: it is to see it, once the disk has it.
            self.deadline = math.inf
            self._overdue = True
        else:
            self._end(b"EOF\n")

    def refuse(self, refusal: Refusal) -> None:
        self._owner.counts.refused(refusal)
        self._end(refusal.line)

    def abandon(self) -> None:
        """The connection is gone."""
        self._finish()

    def _turn_has_come(self, held: ReplySlot) -> None:
        if self._overdue:
            self._end(b"EOF\n")

    def _read(self, chunk: FileRange | StoreError) -> None:
        if self.ended:
            if isinstance(chunk, FileRange):
                chunk.release()
        elif isinstance(chunk, StoreError):
            self.refuse(refusal_for(chunk))
        else:
            self._owner.counts.bytes_fetched += chunk.length
            self._end([chunk_line(self.offset, chunk.length), chunk])

    def _end(self, answer: bytes | Sequence[bytes | FileRange]) -> None:
        self._finish()
        self._held.resolve(answer)
        self._owner.reader_ended(self)

    def _finish(self) -> None:
        if not self.ended:
            self.ended = True
            self._owner.counts.fetches_waiting -= 1
            self._topics.forget_waiting(self._name, self)
            self._leave()

    def _leave(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.drop_fetch(self)
