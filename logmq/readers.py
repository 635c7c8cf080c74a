"""Readers that wait for records: TAIL, and a FETCH that waits; and what wakes them.

All readers of a topic wait in its `LogWatch`. Newly visible records are read once and encoded once, and the
same bytes go to every tail that has caught up.

A tail whose peer reads slowly leaves the watch when its outbox is above its bound. Once the outbox has
drained, the tail reads the log by itself until it has caught up. So it loses nothing and slows nobody.

One record may wake thousands of readers. To serve them is long work (`Waiters.work`). A reader may end while
it waits for its turn, and its log may move on or be deleted.

Source: PROTOCOL.md, "Readers that wait".
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from logmq.metrics import Counts
from logmq.runs import message_lines
from logmq.wire import chunk_line
from shared.budget import Account
from shared.errors import BeyondEnd, LogDeleted, StoreError
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.replies import Replies, ReplySlot
from shared.turns import LongWork

if TYPE_CHECKING:
    from shared.storage.store import Log

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

READER_BYTES = 1024
"""Memory of a waiting reader, with its slot and the longest name of a missing topic."""
READ_BYTES = 256 * 1024
"""Bytes of one read for tails; then other connections are served."""


class ReaderOwner(Protocol):
    """The session of a reader."""

    connection: Connection
    replies: Replies
    counts: Counts
    user: str

    def refused(self, error: StoreError) -> bytes:
        """The line that refuses a request, which is counted."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call in the driver's next turn, so that other connections come first."""

    def reader_ended(self, reader: "Tail | Fetch") -> None:
        """`reader` has answered by itself."""


class Waiters:
    """Where readers wait: for the next records of a log, or for a topic to be created. `logs`: by name.

    `memory`: the account of readers; ask it before creating one. `on_behind` is called when `work` is left,
    which must go on soon.
    """

    def __init__(self, logs: "Mapping[str, Log]", memory: Account) -> None:
        self._logs = logs
        self.memory = memory
        self._by_log: dict[Log, LogWatch] = {}
        self._awaited: dict[str, dict[_WaitingReader, None]] = {}
        self.on_behind: Callable[[], None] = lambda: None
        self.work = LongWork(lambda _: self.on_behind(), _report_crash)
        """Serving readers."""

    def __len__(self) -> int:
        """Logs and topics that readers wait for."""
        return len(self._by_log) + len(self._awaited)

    def find(self, topic: str) -> "Log | None":
        return self._logs.get(topic)

    def enter(self, reader: "_WaitingReader") -> None:
        """`reader.found` is called with its topic's log: now, or when that is created."""
        log = self.find(reader.topic)
        if log is not None:
            reader.found(log)
        else:
            self._awaited.setdefault(reader.topic, {})[reader] = None

    def leave(self, reader: "_WaitingReader") -> None:
        """`reader` no longer waits for its topic. Harmless if it did not."""
        awaited = self._awaited.get(reader.topic)
        if awaited is not None:
            awaited.pop(reader, None)
            if not awaited:
                del self._awaited[reader.topic]

    def topic_made(self, log: "Log") -> None:
        awaited = self._awaited.pop(log.name, None)
        if awaited is not None:
            self.work.add(_find(awaited, log))

    def of(self, log: "Log") -> "LogWatch":
        watch = self._by_log.get(log)
        if watch is None:
            watch = self._by_log[log] = LogWatch(log, self.work.add, self._by_log.pop)
        return watch


def _report_crash(error: Exception) -> None:
    logger.error("serving readers crashed: some may wait on; report this bug", exc_info=error)


def _find(readers: "Iterable[_WaitingReader]", log: "Log") -> Iterator[None]:
    for reader in readers:
        if not reader.ended:
            reader.owner.connection.attempt(reader.found, log)
            yield


class LogWatch:
    """The readers that wait for records of one log. It watches the log while there are any."""

    __slots__ = (
        "_closed",
        "_fetches",
        "_on_idle",
        "_position",
        "_reading",
        "_serve",
        "_tails",
        "_waking",
        "log",
    )

    def __init__(
        self, log: "Log", serve: Callable[[Iterator[None]], None], on_idle: "Callable[[Log], object]"
    ) -> None:
        self.log = log
        self._serve = serve
        self._on_idle = on_idle
        # Dicts are ordered, unlike sets: the first to come is served first.
        self._tails: dict[Tail, None] = {}
        self._fetches: dict[int, dict[Fetch, None]] = {}
        """By the offset that they wait at: the visible end, or one up to the end of what is being written."""
        self._waking = False
        """`_wake` is under way."""
        self._position = log.visible
        """Up to here the tails have been served."""
        self._reading = False
        """Records beyond `_position` are read, or the tails are being served up to it."""
        self._closed = False
        log.watchers.add(self.moved)

    def moved(self, log: "Log") -> None:
        """The log's visible end has moved, or the log was deleted."""
        if log.deleted:
            self._serve(self._refuse_all(LogDeleted()))
            return
        if not self._waking and any(offset < log.visible for offset in self._fetches):
            self._waking = True
            self._serve(self._wake())
        self._push()

    def join(self, reader: "_WaitingReader") -> None:
        """Add a fetch, or a tail that has all visible records."""
        if isinstance(reader, Fetch):
            self._fetches.setdefault(reader.next, {})[reader] = None
        elif isinstance(reader, Tail):
            if not self._tails and not self._reading:
                self._position = self.log.visible
            self._tails[reader] = None

    def leave(self, reader: "_WaitingReader") -> None:
        if isinstance(reader, Fetch):
            self._remove(reader)
        elif isinstance(reader, Tail) and reader in self._tails:
            del self._tails[reader]
            if self._position < self.log.visible and not self._reading:
                self._push_soon()  # the next push may have ended at this tail
        self._close_if_idle()

    def _remove(self, fetch: "Fetch") -> None:
        fetches = self._fetches.get(fetch.next)
        if fetches is not None:  # else it is being woken or refused
            fetches.pop(fetch, None)
            if not fetches:
                del self._fetches[fetch.next]

    def _wake(self) -> Iterator[None]:
        """Have FETCHes read whose records are visible."""
        while come := sorted(offset for offset in self._fetches if offset < self.log.visible):
            for offset in come:
                for fetch in self._fetches.pop(offset, ()):
                    if fetch.waits:
                        fetch.owner.connection.attempt(fetch.read)
                        yield
        self._waking = False
        self._close_if_idle()

    def _push(self) -> None:
        if not self._reading and self._tails and self._position < self.log.visible:
            self._reading = True
            self._serve(self._read())

    def _read(self) -> Iterator[None]:
        self.log.read(self._position, READ_BYTES, self._pushed)
        yield

    def _push_soon(self) -> None:
        for tail in self._tails:
            tail.owner.soon(self._push)
            break

    def _pushed(self, records: bytes | StoreError) -> None:
        self._serve(self._serve_tails(records))

    def _serve_tails(self, records: bytes | StoreError) -> Iterator[None]:
        if isinstance(records, StoreError):
            yield from self._refuse(tuple(self._tails), records)
        else:
            start = self._position
            lines, size = message_lines(records, start) if self._tails else (b"", len(records))
            self._position = end = start + size
            yield
            for tail in tuple(self._tails):
                if not tail.waits:
                    continue
                if tail.next == start:
                    tail.owner.connection.attempt(tail.push, lines, end)
                elif tail.next < end:
                    # It joined ahead of a push under way, or waited for an offset that is not a record's
                    # start.
                    del self._tails[tail]
                    tail.owner.connection.attempt(tail.fell_out)
                yield
        self._reading = False
        if self._position < self.log.visible:
            self._push_soon()
        self._close_if_idle()

    def _refuse_all(self, error: StoreError) -> Iterator[None]:
        while self._fetches:
            _, fetches = self._fetches.popitem()
            yield from self._refuse(fetches, error)
        yield from self._refuse(tuple(self._tails), error)
        self._close_if_idle()

    def _refuse(self, readers: "Iterable[Tail | Fetch]", error: StoreError) -> Iterator[None]:
        for reader in readers:
            if reader.waits:
                reader.owner.connection.attempt(reader.refuse, error)
                yield

    def _close_if_idle(self) -> None:
        busy = self._tails or self._fetches or self._reading or self._waking
        if not self._closed and not busy:
            self._closed = True
            self.log.watchers.discard(self.moved)
            self._on_idle(self.log)


class _WaitingReader:
    """A reader that waits at an offset of a topic, which may not exist yet.

    `next`: the offset of the next record to send.
    """

    __slots__ = ("_log", "_user", "_waiters", "_watch", "ended", "next", "owner", "topic")

    def __init__(self, owner: ReaderOwner, waiters: Waiters, topic: str, offset: int) -> None:
        self.owner = owner
        self.topic = topic
        self.next = offset
        self.ended = False
        self._waiters = waiters
        self._log: Log | None = None
        self._watch: LogWatch | None = None
        self._user = owner.user
        waiters.memory.charge(READER_BYTES, self._user)

    def found(self, log: "Log") -> None:
        """The topic exists."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """Whether it waits for records of its log, and does not read them by itself."""
        return self._watch is not None

    def abandon(self) -> None:
        """End without an answer: the connection is lost, or another call answers. May be called twice."""
        if not self.ended:
            self.ended = True
            self._waiters.memory.give(READER_BYTES, self._user)
            self._waiters.leave(self)
            self._leave_watch()

    def refuse(self, error: StoreError) -> None:
        """Answer with an error, which ends the reader."""
        raise NotImplementedError

    def _join_watch(self, log: "Log") -> None:
        if self.next > log.end:  # only now, where the topic was missing or is another by that name
            self.refuse(BeyondEnd(log.end))
            return
        self._watch = self._waiters.of(log)
        self._watch.join(self)

    def _leave_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leave(self)


class Tail(_WaitingReader):
    """One TAIL, from its turn among the answers to its end."""

    __slots__ = ("_reading", "_slot")

    def __init__(self, owner: ReaderOwner, waiters: Waiters, topic: str, offset: int) -> None:
        super().__init__(owner, waiters, topic, offset)
        self._reading = False
        self._slot: ReplySlot | None = None
        owner.counts.tails += 1

    def start(self, slot: ReplySlot) -> None:
        """Begin, once all earlier requests are answered."""
        self._slot = slot
        if self.ended:
            self._answer_ended(slot)
        else:
            self._waiters.enter(self)

    def _answer_ended(self, slot: ReplySlot) -> None:
        """Answer a tail that ended before its turn: its offset is checked all the same."""

        def checked(result: bool | StoreError) -> None:
            if isinstance(result, StoreError):
                slot.resolve(self.owner.refused(result))
            else:
                slot.resolve(b"OK %d\n" % self.next)

        log = self._waiters.find(self.topic)
        if log is not None and self.next > log.end:
            checked(BeyondEnd(log.end))
        elif log is None or self.next >= log.visible:
            checked(True)
        else:
            log.is_record_start(self.next, self.owner.connection.guarded(checked))

    def found(self, log: "Log") -> None:
        self._log = log
        self.catch_up()

    def catch_up(self) -> None:
        """Read the log alone, as fast as the peer reads, until the tail may share its watch."""
        log = self._log
        if log is None or self.ended or self._watch is not None or self._reading or self.crowded:
            return
        if log.deleted:
            self.refuse(LogDeleted())
        elif self.next >= log.visible:
            self._join_watch(log)
        else:
            self._reading = True
            log.read(self.next, READ_BYTES, self.owner.connection.guarded(self._caught_up))

    def push(self, lines: bytes, end: int) -> None:
        """The records from `next` up to `end`."""
        self.owner.connection.write(lines)
        self.owner.counts.bytes_tailed += len(lines)
        self.next = end
        if self._watch is not None and self.crowded:
            self.owner.counts.tails_fallen_behind += 1
            self._leave_watch()

    def fell_out(self) -> None:
        """The watch has moved past `next` without this tail."""
        self._watch = None
        self.catch_up()

    @property
    def crowded(self) -> bool:
        """The outbox is above its bound. `catch_up` is called when it has drained."""
        outbox = self.owner.connection.outbox
        return outbox.size > outbox.bound

    def end(self) -> None:
        """A line ends it, or the end of input, or a drain."""
        if not self.ended:
            self.abandon()
            if self._slot is not None:
                self._slot.resolve(b"OK %d\n" % self.next)

    def refuse(self, error: StoreError) -> None:
        if not self.ended and self._slot is not None:
            self.abandon()
            self._slot.resolve(self.owner.refused(error))
            self.owner.reader_ended(self)

    def abandon(self) -> None:
        self.owner.counts.tails -= not self.ended
        super().abandon()

    def _caught_up(self, records: bytes | StoreError) -> None:
        self._reading = False
        if self.ended:
            return
        if isinstance(records, StoreError):
            self.refuse(records)
            return
        if records:
            lines, size = message_lines(records, self.next)
            self.push(lines, self.next + size)
        if self.crowded:
            return
        if self._log is not None and self.next < self._log.visible:
            self.owner.soon(self.catch_up)
        else:
            self.catch_up()


class Fetch(_WaitingReader):
    """A FETCH that waits: for records at the end, or for its topic.

    `deadline`: monotonic seconds; inf once it can no longer be late.
    """

    __slots__ = ("_bytes_max", "_overdue", "_slot", "deadline")

    def __init__(
        self, owner: ReaderOwner, waiters: Waiters, topic: str, offset: int, bytes_max: int, deadline: float
    ) -> None:
        super().__init__(owner, waiters, topic, offset)
        self.deadline = deadline
        self._bytes_max = bytes_max
        self._overdue = False
        owner.counts.fetches_waiting += 1
        self._slot = owner.replies.slot(self._turn_has_come)

    def start(self) -> None:
        self._waiters.enter(self)

    def found(self, log: "Log") -> None:
        self._log = log
        if log.deleted:
            self.refuse(LogDeleted())
        elif self._has_come:
            self.read()
        else:
            self._join_watch(log)

    def read(self) -> None:
        """Records are visible: read them."""
        assert self._log is not None
        self.deadline = math.inf  # it is in time, however long the disk takes
        self._overdue = False
        self._leave_watch()
        self._log.read_chunk(self.next, self._bytes_max, self.owner.connection.guarded(self.answer))

    def answer(self, chunk: FileRange | StoreError) -> None:
        """What was read."""
        if self.ended:
            if isinstance(chunk, FileRange):
                chunk.release()
        elif isinstance(chunk, StoreError):
            self.refuse(chunk)
        else:
            self.owner.counts.bytes_fetched += chunk.length
            self._end([chunk_line(self.next, chunk.length), chunk.chunk()])

    def expire(self) -> None:
        """The reader's time is over, or the server drains. It still gets records that have become visible in
        time."""
        if self.deadline != math.inf and self._has_come:
            self.read()
        else:
            self.end()

    def end(self) -> None:
        """End without records. A read under way is finished."""
        if self.deadline == math.inf:
            return
        if self._log is not None and self.next < self._log.end and not self._slot.in_turn:
            # Its own connection may have written those records before it: they belong to its answer.
            self.deadline = math.inf
            self._overdue = True
        else:
            self._end(b"EOF\n")

    def refuse(self, error: StoreError) -> None:
        self._end(self.owner.refused(error))

    def abandon(self) -> None:
        self.owner.counts.fetches_waiting -= not self.ended
        super().abandon()

    @property
    def _has_come(self) -> bool:
        """Whether its records are visible."""
        return self._log is not None and self._log.visible > self.next

    def _turn_has_come(self, slot: ReplySlot) -> None:
        if self._overdue:
            if self._has_come:
                self.read()
            else:
                self._end(b"EOF\n")

    def _end(self, answer: bytes | Sequence[bytes | FileRange]) -> None:
        self.abandon()
        self._slot.resolve(answer)
        self.owner.reader_ended(self)
