"""A log, an append-only sequence of records addressed by byte offset; its appends until they are durable, and
its tail: records that are durable and not yet in its file.

`Log.append` adds records to the batch that is being filled. A `CommitBatch` holds one `LogAppend` for each
log that was appended to, and changes of the catalog. It becomes one batch of the journal, all or nothing, and
its tickets tell the outcome. All of this belongs to the trio thread. A sealed batch no longer changes.
"""

import math
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Protocol

import attrs
import structlog
import trio
from attrs import Attribute

from shared.budget import Account, unbounded
from shared.errors import CorruptRecord, LogDeleted, StoreError
from shared.file_range import FileRange
from shared.storage.entries import ENTRY_COVERS_SECONDS, extend_by_tail
from shared.storage.files import LogFile
from shared.storage.format import ENTRY_HEADER_BYTES, EntryKind, IndexEntry
from shared.storage.lost import Lost
from shared.storage.settings import Durability, Mode, Retention

logger = structlog.stdlib.get_logger("brokers.storage")

UNKNOWN = -1
ENTRY_ENDS = (0, 0, 0)
"""In `Log.not_indexed`: the next record begins a new index entry."""


LATE_SECONDS = 1.0
"""A tail is written once its oldest record has this age."""

_NOT_INDEXED_MAX = 256
"""Commits whose records are indexed together: a bound on their list, not on the work."""


def opaque(_: type, fields: "list[Attribute[Any]]") -> "list[Attribute[Any]]":
    """For parts of the store that refer to each other: keeps their fields out of reprs, and so of tracebacks.

    Without this the log line for one exception takes seconds, while nothing is served.
    """
    return [field.evolve(repr=False) for field in fields]


class Ticket:
    """Tells when an append is as durable as its mode asks. All appends of a batch in one mode share a ticket.

    `error`: None if it is durable, else why not. `callbacks` may be added to directly while it is not `done`.
    """

    __slots__ = ("callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: StoreError | None = None
        self.callbacks: list[Callable[[Ticket], None]] = []

    def when_done(self, callback: "Callable[[Ticket], None]") -> None:
        """Call exactly once, in the trio thread, which may be now. The callback must not raise."""
        if self.done:
            callback(self)
        else:
            self.callbacks.append(callback)

    def resolve(self, error: StoreError | None) -> None:
        """Mark as done, and call everybody who waits."""
        self.done = True
        self.error = error
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # `call`, inlined: every answer passes here
                logger.exception(_CALLBACK_FAILED, callback=repr(callback))


_CALLBACK_FAILED = (
    "a bug in what waits for the store: one answer may be missing, all others are sent; report it"
)


def call(callback: Callable[..., None], *arguments: Any) -> None:
    """Call, and log what is raised: one waiter's bug must not keep the others from being called."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception(_CALLBACK_FAILED, callback=repr(callback))


@attrs.define(eq=False, weakref_slot=False, repr=False, field_transformer=opaque)
class LogAppend:
    """The records of one log in one batch, in order, from `offset` on.

    `chunks`: whole records; `counts`: how many in each. A chunk with count 0 begins a record that the next
    one ends.
    """

    log: "Log"
    batch: "CommitBatch"
    ticket: Ticket
    offset: int
    end: int
    chunks: list[bytes | memoryview] = attrs.Factory(list)
    counts: list[int] = attrs.Factory(list)
    records: int = 0  # total of `counts`, once the batch is taken and this is not light
    by_reference: bool = False  # written to the log's own file, and the journal only refers to them
    written: memoryview | None = None  # the records inside the journal's batch, if they are there

    def add(self, records: bytes, count: int) -> int:
        """Add records promised to the batch by `Log.gather`; returns their offset."""
        log = self.log
        offset = log.end
        self.chunks.append(records)
        self.counts.append(count)
        self.batch.room -= len(records)
        log.end = offset + len(records)
        if log.fold is not None:
            log.fold(offset, records)
        return offset


LightAppend = tuple["Log", int, bytes, int]
"""A small append: log, offset, records, how many. Only the log's tail gets it. A row of plain values, because
a batch may have a thousand."""
_LOG_OF = itemgetter(0)


@attrs.define(eq=False)
class Change:
    """A change of the catalog: CREATE, DELETE, FIRST or MODE. `before`: what FIRST or MODE replaced."""

    kind: EntryKind
    log: "Log"
    offset: int = 0
    body: bytes = b""
    before: object = None


@attrs.define(eq=False, weakref_slot=False, repr=False, field_transformer=opaque)
class CommitBatch:
    """Becomes one batch of the journal. `room`: bytes of `bytes_max` that are left.

    `gathering`: callbacks that add promised records when the batch is sealed. `broken`: what one of them
    raised: promised records are missing, so the batch must not be written. A ticket for
    `Mode.SYNCED` has it synced.
    """

    bytes_max: int
    room: int
    began: float  # monotonic
    appends: "dict[Log, LogAppend]" = attrs.Factory(dict)
    light: list[LightAppend] = attrs.Factory(list)  # of logs that are not in `appends`, once it is taken
    records: dict[str, int] = attrs.Factory(dict)  # by namespace, once it was written
    changes: list[Change] = attrs.Factory(list)
    gathering: list[Callable[[], None]] = attrs.Factory(list)
    broken: Exception | None = None
    tickets: defaultdict[Mode, Ticket] = attrs.Factory(partial(defaultdict, Ticket))
    with_files: int = 0  # logs whose own files the commit must touch
    created_lsn: int = 0  # the largest of its logs
    sealed: bool = False
    interval_seconds: float = math.inf  # within this time it must be synced, though nobody waits

    @property
    def bytes(self) -> int:
        """Its size so far: records, changes and the headers of both."""
        return self.bytes_max - self.room

    @property
    def awaited_bytes(self) -> int:
        """The bytes without those of unawaited logs."""
        idle = (part for log, part in self.appends.items() if log.unawaited)
        return self.bytes - sum((part.end if self.sealed else part.log.end) - part.offset for part in idle)

    @property
    def logs(self) -> "list[Log]":
        """The logs with appends in this batch."""
        return [*self.appends, *(log for log, _, _, _ in self.light)]

    @property
    def strictest(self) -> Ticket | None:
        """Done when the batch is as durable as its strictest part asks; None if it is empty."""
        return self.tickets[min(self.tickets)] if self.tickets else None

    def append_to(self, log: "Log", mode: Mode) -> LogAppend:
        """The log's append in this batch, made if there is none, with the ticket for this mode."""
        ticket = self.tickets[mode]
        if mode is Mode.SHIPPED:
            self.tickets[Mode.SYNCED]  # first it is synced
        part = self.appends.get(log)
        if part is None:
            end = log.end
            part = self.appends[log] = LogAppend(log, self, ticket, end, end, [], [])
            self.room -= ENTRY_HEADER_BYTES
            if log.entries_written == UNKNOWN:
                self.with_files += 1
            if log.created_lsn > self.created_lsn:
                self.created_lsn = log.created_lsn
        else:
            part.ticket = ticket
        if log.mode.mode == "interval":
            self.interval_seconds = min(self.interval_seconds, log.mode.seconds)
        return part

    def add(self, change: Change) -> None:
        """Add a change of the catalog."""
        self.changes.append(change)
        self.room -= ENTRY_HEADER_BYTES + len(change.body)

    def seal(self) -> None:
        """Take nothing more: the batch is full, or about to be committed."""
        if self.sealed:
            return
        for complete in self.gathering:
            try:
                complete()
            except Exception as error:
                self.broken = error
        self.gathering.clear()
        self.sealed = True
        for log, part in self.appends.items():
            log.pending = None
            part.end = log.end

    def end(self, error: StoreError | None) -> None:
        """The batch is over: tell those who wait, of the strictest mode first. `error`: nothing of it is
        durable.
        """
        for _, ticket in sorted(self.tickets.items()):
            if not ticket.done:
                ticket.resolve(error)
        # Batches and their appends refer to each other: break the cycle, for the garbage collector would come
        # late for few large objects.
        self.appends.clear()
        self.light.clear()


class Appender(Protocol):
    """What takes a log's appends: the committer. `congested`: as `Store.congested`."""

    congested: bool

    def begin(self, log: "Log", size: int, reserved: bool) -> LogAppend: ...

    def drop_below(self, log: "Log", offset: int) -> Ticket: ...


class RecordReader(Protocol):
    """What serves a log's reads; methods as in `Log`."""

    def read(
        self, log: "Log", offset: int, max_bytes: int, done: Callable[[bytes | StoreError], None]
    ) -> None: ...

    def read_chunk(
        self, log: "Log", offset: int, max_bytes: int, done: Callable[[FileRange | StoreError], None]
    ) -> None: ...

    def is_record_start(self, log: "Log", offset: int, done: Callable[[bool | StoreError], None]) -> None: ...

    def index_entries(self, log: "Log", start: int, stop: int) -> list[IndexEntry]: ...

    def seek(self, log: "Log", unix_ms: int) -> int: ...


@attrs.define(eq=False, repr=False, weakref_slot=False, field_transformer=opaque)
class Log:
    """One log of a store. Offsets never change. `Namespace.create` and `delete` begin and end it.

    `first`: the first kept offset. `local`: from here on its bytes are on this disk; those below are in the
    bucket only. `end`: where the next record goes; what is below may not be durable yet.
    `visible`: how far readers may read (mode `always`: synced; else written). `watchers` are called with the
    log after `visible` has advanced and when it is deleted, before tickets resolve.
    """

    committer: Appender
    _reader: RecordReader
    id: int
    namespace: str
    name: str
    path: str
    """The path of the log's files, without `.log` and `.idx`."""
    mode: Durability
    created_ms: int
    first: int = 0
    end: int = 0
    visible: int = attrs.field(init=False)
    deleted: bool = False
    watchers: "set[Callable[[Log], None]]" = attrs.Factory(set)
    retention: Retention | None = None
    """This log's retention, where it differs from its namespace's."""
    local: int = 0
    local_retention: Retention = attrs.Factory(Retention)
    """What stays on this disk of what the bucket has."""
    fold: Callable[[int, bytes], None] | None = None
    """Called with offset and records of every append before it is durable: for state that is a fold over the
    records."""
    advanced: "Callable[[Log], None] | None" = None
    """Called like a watcher, for the appender itself, which keeps the log's content in another form."""
    rolled_back: "Callable[[Log], None] | None" = None
    """Called when appends were rolled back: `end` is `visible` again."""
    unawaited: bool = False
    """Nobody waits for these records: however many wait for the disk, the store is not congested."""

    # The rest belongs to the storage core, which changes it in the trio thread only.
    file: LogFile = attrs.field(init=False)
    index_file: LogFile = attrs.field(init=False)
    pending: LogAppend | None = None  # its append in the batch being filled
    busy: bool = False  # the commit under way holds part of it
    fresh: bool = False  # created in this process; it has no file yet
    created_lsn: int = 0  # once the journal is synced up to there, it has the log's CREATE
    first_kept: int = attrs.field(init=False)  # `first` as durable: space below may be freed
    local_kept: int = attrs.field(init=False)  # `local` as durable: space below may be freed
    mode_kept: Durability = attrs.field(init=False)  # `mode` as known to be durable
    ahead_lsn: int = UNKNOWN  # of the last batch that says that the file may be ahead of the journal
    named: bool = False  # the file's name is known to be durable
    referred_from: int = sys.maxsize  # from here on the journal may refer to the file's bytes
    entries_written: int = attrs.field(init=False)  # entries in the index file
    open_since: float = math.inf  # monotonic: since when an entry is open; inf: none is
    last_ms: int = 0
    tail_bytes: int = 0  # of the newest visible records, not yet in the file
    tail_new: list[bytes | memoryview] = attrs.field(init=False, factory=list)
    """The end of the tail, joined to it when it is read: a buffer that grows is copied again and again. A log
    with 1 KiB a commit had each byte copied nine times on the way to 64 KiB."""
    not_indexed: list[tuple[int, int, int]] = attrs.field(init=False, factory=list)
    """The newest commits in the tail, whose index entries are not made yet: time in ms, bytes, records.
    `ENTRY_ENDS` stands where an entry ends."""
    tail_lent: bool = False  # `tail` was given away to be written, and must not change in place
    users: list[int] | None = None  # offsets at which the file is being read
    _tail: bytearray = attrs.field(init=False, factory=bytearray)
    _closed_entries: list[IndexEntry] = attrs.field(init=False, factory=list)
    _open_entry: IndexEntry | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.visible = self.end
        self.file, self.index_file = LogFile(self.path + ".log"), LogFile(self.path + ".idx")
        self.first_kept, self.local_kept, self.mode_kept = self.first, self.local, self.mode
        self.entries_written = UNKNOWN if self.end else 0

    def __repr__(self) -> str:
        return f"<Log {self.id} {self.namespace}/{self.name} {self.first}..{self.visible}..{self.end}>"

    @property
    def gone(self) -> bool:
        """Whether its deletion is durable; one that is not may be rolled back, or lost in a crash."""
        return self.file.gone

    def append(self, records: bytes, count: int, reserved: bool = False) -> tuple[int, Ticket]:
        """Add `count` whole encoded records; returns the offset of the first, and the ticket of their commit.

        Does no IO: call `Store.commit_pending` or `Store.wait` afterwards. `reserved`: may use the space
        reserved for acknowledgements and administration. Raises StoreReadOnly, StoreFull, LogDeleted,
        StoreClosed.
        """
        size = len(records)
        part = self.pending
        if part is None or size > part.batch.room:
            part = self.committer.begin(self, size, reserved)
        part.chunks.append(records)
        part.counts.append(count)
        part.batch.room -= size
        offset = self.end
        self.end = offset + size
        if self.fold is not None:
            self.fold(offset, records)
        return offset, part.ticket

    def append_framed(self, head: bytes, rest: bytes | memoryview) -> tuple[int, Ticket]:
        """Add one encoded record in two pieces, `head` and `rest`. They are not copied, and must not change
        until the ticket is done. For large records in logs without a fold; otherwise as `append`.
        """
        size = len(head) + len(rest)
        part = self.pending
        if part is None or size > part.batch.room:
            part = self.committer.begin(self, size, False)
        part.chunks += (head, rest)
        part.counts += (0, 1)
        part.batch.room -= size
        offset = self.end
        self.end = offset + size
        return offset, part.ticket

    def gather(self, size: int, complete: Callable[[], None], reserved: bool = False) -> LogAppend:
        """Reserve `size` bytes of the batch being filled, for records that are packed when it is complete.

        `complete` is called when the batch is sealed, and adds the records (`LogAppend.add`). They share the
        returned part's ticket while that part is `pending`. To gather more, reduce `batch.room`; give
        reserved bytes back before adding. `reserved`, errors: as for `append`.
        """
        part = self.pending
        if part is None or size > part.batch.room:
            part = self.committer.begin(self, size, reserved)
        part.batch.room -= size
        part.batch.gathering.append(complete)
        return part

    def drop_below(self, offset: int) -> Ticket:
        """Drop the records below `offset`, a record's start or the end; durable with the ticket.

        Their space is freed later, when nobody reads there any more. Raises as `append`.
        """
        return self.committer.drop_below(self, offset)

    def read(self, offset: int, max_bytes: int, done: Callable[[bytes | StoreError], None]) -> None:
        """Read whole records from `offset` on, at least one, else at most `max_bytes`; b"" at the visible
        end.

        `done` is called in the trio thread, at once if the bytes are in memory. It may get OutOfRange,
        NotARecord, CorruptRecord or LogDeleted.
        """
        self._reader.read(self, offset, max_bytes, done)

    def read_chunk(self, offset: int, max_bytes: int, done: Callable[[FileRange | StoreError], None]) -> None:
        """As `read`, but a verified range of the file, to be released by the caller; length 0 at the end."""
        self._reader.read_chunk(self, offset, max_bytes, done)

    def is_record_start(self, offset: int, done: Callable[[bool | StoreError], None]) -> None:
        """True if `offset` is a record's start or the visible end; else an error as in `read`."""
        self._reader.is_record_start(self, offset, done)

    def index_entries(self, start: int, stop: int) -> list[IndexEntry]:
        """The visible index entries that overlap [start, stop). May read the index file.

        Raises LogDeleted, CorruptRecord.
        """
        if self.deleted:
            raise LogDeleted
        return self._reader.index_entries(self, start, stop)

    def lost_at(self, offset: int) -> Lost:
        """The range that cannot be read, from `offset` on, where a read raised CorruptRecord. May read the
        index file. Raises LogDeleted.
        """
        try:
            (entry,) = self.index_entries(offset, offset + 1)
        except CorruptRecord:
            return Lost(offset, self.visible - offset, 0)
        return Lost(offset, min(entry.end, self.visible) - offset, entry.records)

    def was_written(self, offset: int) -> bool:
        """Whether the bytes at `offset` are known to be those that were written, not only those found by
        recovery. Raises as `index_entries`.
        """
        return not any(entry.unverified for entry in self.index_entries(offset, offset + 1))

    def seek(self, unix_ms: int) -> int:
        """The start of the first index entry that ends at `unix_ms` or later; the visible end if there is
        none.

        May read the index file. Raises LogDeleted, CorruptRecord.
        """
        if self.deleted:
            raise LogDeleted
        return self._reader.seek(self, unix_ms)

    # -- for the storage core: the tail, and the index entries that the index file lacks

    @property
    def closed_entries(self) -> list[IndexEntry]:
        """Entries that the index file lacks, without the open one."""
        if self.not_indexed:
            self.make_entries()
        return self._closed_entries

    @property
    def open_entry(self) -> IndexEntry | None:
        """The newest entry, which still grows."""
        if self.not_indexed:
            self.make_entries()
        return self._open_entry

    @open_entry.setter
    def open_entry(self, entry: IndexEntry | None) -> None:
        self._open_entry = entry
        if entry is None:
            self.open_since = math.inf
        elif self.open_since == math.inf:  # from before a restart
            self.open_since = 0.0

    @property
    def indexed(self) -> bool:
        """Whether the index file has all entries."""
        return self._open_entry is None and not self._closed_entries and not self.not_indexed

    def entries_below(self, end: int) -> list[IndexEntry]:
        """The closed entries that cover nothing at or behind `end`."""
        closed = self._closed_entries if end <= self.tail_start else self.closed_entries
        if closed and closed[-1].end > end:
            return [entry for entry in closed if entry.end <= end]
        return closed[:]

    def make_entries(self) -> None:
        """Make the index entries of the commits in `not_indexed`: summing up many small ones costs a tenth of
        an entry for each.
        """
        commits, tail = self.not_indexed, self.tail
        start = len(tail) - sum([size for _, size, _ in commits])
        offset = self.visible - len(tail)
        while commits:
            end = commits.index(ENTRY_ENDS) if ENTRY_ENDS in commits else len(commits)
            group, ended = commits[:end], end < len(commits)
            stop = start + sum([size for _, size, _ in group])
            closed, newest = extend_by_tail(self._open_entry, offset + stop, tail[start:stop], group)
            # There may have been no memory for it: from here on nothing large is made.
            del commits[: end + 1]  # a new list for each of 50,000 logs is work for the garbage collector
            self._closed_entries += closed
            self._open_entry = newest
            if ended and self._open_entry is not None:
                self._closed_entries.append(self._open_entry)
                self._open_entry = None
            start = stop
        if self._open_entry is None:
            self.open_since = math.inf

    @property
    def tail(self) -> bytearray:
        """The newest visible records, not yet in the file."""
        if self.tail_new:
            if self.tail_lent:
                self._tail, self.tail_lent = bytearray().join((self._tail, *self.tail_new)), False
            elif self._tail:
                self._tail += b"".join(self.tail_new)
            else:
                self._tail = bytearray().join(self.tail_new)
            self.tail_new.clear()
        return self._tail

    def cut_tail(self, size: int) -> None:
        """The file has the first `size` bytes of what `tail` was."""
        if size == len(self._tail) or self.tail_lent:
            self._tail, self.tail_lent = self._tail[size:], False
        else:
            del self._tail[:size]
        self.tail_bytes -= size

    def drop_tail(self) -> None:
        """Drop the tail: the log is deleted."""
        self._tail, self.tail_new, self.tail_bytes = bytearray(), [], 0
        self.not_indexed = []

    @property
    def entries_start(self) -> int:
        """Where the entries in memory begin; earlier ones are in the index file."""
        if self.closed_entries:
            return self.closed_entries[0].offset
        return self.visible if self.open_entry is None else self.open_entry.offset

    @property
    def tail_start(self) -> int:
        """Where the records in memory begin; earlier ones are in the log's file."""
        return self.visible - self.tail_bytes

    def close_entry(self) -> None:
        """Close the open entry: the next record begins a new one."""
        if self.not_indexed:
            if self.not_indexed[-1] is not ENTRY_ENDS:
                self.not_indexed.append(ENTRY_ENDS)
        elif self._open_entry is not None:
            self._closed_entries.append(self._open_entry)
            self._open_entry = None
        self.open_since = math.inf

    def entries_reached(self, number: int) -> None:
        """The index file has the first `number` entries."""
        new = number - self.entries_written
        if new > 0:
            self.entries_written = number
            del self._closed_entries[:new]


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Tails:
    """The tails of all logs: their newest records, durable in the journal and not yet in the logs' own files.

    A commit writes only the journal, however many logs it touches. The `LogWriter` writes tails to the files
    later, many together. Readers get a tail's records from memory.

    `log_bytes`: a tail of this length is written. `bytes_max`: bound on all together.

    `failing`: logs whose files refuse their tails. Those stay in memory, and no checkpoint is made, so that
    they stay in the journal too.
    """

    log_bytes: int
    bytes_max: int
    wake: Callable[[], None] = lambda: None
    """Called when something is due before its time."""
    account: Account = attrs.Factory(unbounded)
    bytes: int = 0
    failing: dict[Log, None] = attrs.Factory(dict)
    nameless: dict[Log, None] = attrs.Factory(dict)
    """Logs of which a file was removed or replaced. Nothing is written to them until it is there again, and
    no checkpoint is made, so that their records stay in the journal too."""
    unlooked: dict[Log, None] = attrs.Factory(dict)
    """Logs that got records since `FileNames` looked at their files."""
    unindexed: dict[Log, None] = attrs.Factory(dict)
    """Logs with entries that their index files lack."""
    dirty: dict[Log, None] = attrs.Factory(dict)
    """Logs that changed since the last checkpoint's snapshot."""
    writing: set[Log] = attrs.Factory(set)
    """Logs whose tails the `LogWriter` is writing."""
    crowded: bool = False
    """There are too many bytes, as of the last `charge`: commits wait until some are written."""
    _since: dict[Log, float] = attrs.Factory(dict)  # monotonic; the oldest first
    _long: dict[Log, None] = attrs.Factory(dict)
    _charged: int = 0

    def takes(self, log: Log, size: int) -> bool:
        """Whether so many new bytes go to the tail. Many go to the log's file with their commit, behind the
        tail: that is one large write anyway, and saves two copies.
        """
        return (
            size < self.log_bytes // 8 or log in self.writing or log in self.failing or log in self.nameless
        )

    def add(self, log: Log, data: memoryview, now: float) -> None:
        """Add visible bytes to the end of a log's tail. Call `charge` when all logs have theirs."""
        if not log.tail_bytes:
            self._since[log] = now
        try:
            log.tail_new.append(bytes(data))
        except MemoryError:  # it keeps the journal's batch in memory, and needs no more
            log.tail_new.append(data)
        log.tail_bytes += len(data)
        self.bytes += len(data)
        if log.tail_bytes >= self.log_bytes and log not in self.unwritable:
            self._long[log] = None

    def add_light(self, appends: Sequence[LightAppend], now_ms: int, now: float) -> list[Log]:
        """Add light appends that are durable now, and make them visible. `now`: monotonic seconds. Returns
        the logs that somebody watches.

        One loop, without a call for each of a thousand logs. Index entries are made later
        (`Log.make_entries`).
        """
        moved = dict.fromkeys(map(_LOG_OF, appends))
        self.unindexed |= moved
        self.dirty |= moved
        self.unlooked |= moved
        watched: list[Log] = []
        for log, offset, records, count in appends:
            size = len(records)
            if not log.tail_bytes:
                self._since[log] = now
            log.tail_new.append(records)
            log.tail_bytes += size
            log.visible = offset + size
            if now_ms > log.last_ms:
                log.last_ms = now_ms
            if now - log.open_since >= ENTRY_COVERS_SECONDS:
                log.close_entry()
            log.not_indexed.append((log.last_ms, size, count))
            if log.open_since == math.inf:
                log.open_since = now
            elif len(log.not_indexed) >= _NOT_INDEXED_MAX:
                with suppress(MemoryError):
                    log.make_entries()
            self.bytes += size
            if log.tail_bytes >= self.log_bytes and log not in self.unwritable:
                self._long[log] = None
            if log.watchers or log.advanced is not None:
                watched.append(log)
        self.charge()
        return watched

    def charge(self) -> None:
        """Update the account, and wake the writer if something is due."""
        over = self.account.charge(self.bytes - self._charged)
        self._charged = self.bytes
        self.crowded = self.bytes > self.bytes_max or (over and self.bytes > 0)
        if self._long or self.crowded or self._filling:
            self.wake()

    @property
    def _filling(self) -> bool:
        """The oldest are written before commits must wait. Not where files take nothing: each commit would
        try again."""
        return self.bytes > self.bytes_max * 3 // 4 and not self.unwritable

    @property
    def unwritable(self) -> dict[Log, None]:
        """Logs whose files take nothing for now."""
        return self.failing | self.nameless

    @property
    def failing_bytes(self) -> int:
        """Bytes of tails that their files refuse."""
        return sum(log.tail_bytes for log in self.unwritable)

    def due(self, now: float) -> Iterator[Log]:
        """Logs to be written now: failing, long and old tails; of many bytes also the oldest others. Commits
        may go on between two of them.
        """
        first = self.failing | self._long
        left = self.bytes - sum(log.tail_bytes for log in first)
        many = self.crowded or self._filling
        wanted = 0 if self.account.over else self.bytes_max // 2 if many else self.bytes
        yield from first
        for log in list(self._since):
            since = self._since.get(log, math.inf)
            if since > now:
                continue  # it was written or deleted meanwhile
            if now - since < LATE_SECONDS and left <= wanted:
                break
            if log not in first:
                left -= log.tail_bytes
                yield log

    def written(self, log: Log, size: int, now: float) -> None:
        """The log's file has the first `size` bytes of its tail."""
        if log not in self._since:
            return  # it was deleted meanwhile
        log.cut_tail(size)
        self.bytes -= size
        del self._since[log]
        self.failing.pop(log, None)
        if log.tail_bytes:
            self._since[log] = now  # the rest came during the write
        if log.tail_bytes < self.log_bytes:
            self._long.pop(log, None)
        self.charge()

    def failed(self, log: Log) -> None:
        """The log's file refused its tail."""
        if log in self._since:
            self.failing[log] = None
            self._long.pop(log, None)

    def named(self, log: Log) -> None:
        """The log's files have their names."""
        if self.nameless.pop(log, log) is None:
            self.unindexed[log] = self.dirty[log] = None
            self.wake()

    def drop(self, log: Log) -> None:
        """The log is deleted."""
        self.unindexed.pop(log, None)
        self.dirty.pop(log, None)
        self.unlooked.pop(log, None)
        self.nameless.pop(log, None)
        if log in self._since:
            self.bytes -= log.tail_bytes
            log.drop_tail()
            del self._since[log]
            self._long.pop(log, None)
            self.failing.pop(log, None)
            self.charge()


async def read_records(log: Log, offset: int, bytes_max: int) -> bytes:
    """`Log.read`, awaited: whole records from `offset` on. Raises StoreError."""
    records: bytes = await _answer(partial(log.read, offset, bytes_max))
    return records


async def require_record_start(log: Log, offset: int) -> None:
    """`Log.is_record_start`, awaited. Raises StoreError."""
    await _answer(partial(log.is_record_start, offset))


async def _answer(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    found: list[Any] = []
    ready = trio.Event()

    def done(result: Any) -> None:
        found.append(result)
        ready.set()

    ask(done)
    await ready.wait()
    if isinstance(found[0], StoreError):
        raise found[0]
    return found[0]


class RecordTimes:
    """When the records in [start, stop) of a log were appended, by its index: to 0.2 s."""

    def __init__(self, log: Log, start: int, stop: int) -> None:
        """May read the index file."""
        self._entries: list[IndexEntry] = []
        with suppress(StoreError, OSError):
            self._entries = log.index_entries(start, stop)

    def at(self, offset: int) -> int | None:
        """Unix ms of the record at `offset`; None if the index does not tell."""
        number = bisect_right(self._entries, offset, key=attrgetter("offset")) - 1
        return self._entries[number].first_ms if number >= 0 else None

    @property
    def last(self) -> int | None:
        """Unix ms of the last of them."""
        return self._entries[-1].last_ms if self._entries else None


class WholeRecords:
    """Reads all readable records of a log, from `start` on. `offset`: where the last ones read begin. `lost`:
    the ranges that cannot be read, joined where they touch.
    """

    def __init__(self, log: Log, start: int, bytes_max: int) -> None:
        self.offset = max(start, log.first)
        self.lost: list[Lost] = []
        self._log = log
        self._bytes_max = bytes_max
        self._following = self.offset

    async def read(self) -> bytes:
        """The next whole records; b"" at the end. Raises StoreError for anything but a corrupt record."""
        log = self._log
        while self._following < log.visible:
            self.offset = self._following
            try:
                data = await read_records(log, self.offset, self._bytes_max)
            except CorruptRecord:
                self.pass_over(log.lost_at(self.offset))
                self._following = self.lost[-1].end
            else:
                self._following += len(data)
                return data
        return b""

    def pass_over(self, found: Lost) -> None:
        """Add a range to `lost`."""
        if self.lost and self.lost[-1].end == found.offset:
            before = self.lost.pop()
            found = Lost(before.offset, before.length + found.length, before.records + found.records)
        self.lost.append(found)
