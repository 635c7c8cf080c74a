"""A log, an append-only sequence of records addressed by byte offset; and what is appended until it is
durable.

`Log.append` notes records in the batch that is being filled. A `CommitBatch` holds one `LogAppend` for each
log that was appended to, and changes of the catalog. It becomes one batch of the journal, all or nothing, and
its tickets tell what became of it. All of this belongs to the trio thread, and a sealed batch no longer
changes.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Protocol

import attrs
import structlog
import trio
from attrs import Attribute

from shared.errors import CorruptRecord, LogDeleted, StoreError
from shared.file_range import FileRange
from shared.storage.entries import ENTRY_COVERS_SECONDS, extend_by_tail
from shared.storage.files import LogFile
from shared.storage.format import ENTRY_HEADER_BYTES, EntryKind, IndexEntry
from shared.storage.lost import Lost
from shared.storage.settings import Durability, Mode, Retention

logger = structlog.stdlib.get_logger("brokers.storage")

UNKNOWN = -1

_NOT_INDEXED_MAX = 256
"""Commits whose records are indexed together: this bounds their list, not the work."""


def opaque(_: type, fields: "list[Attribute[Any]]") -> "list[Attribute[Any]]":
    """For parts of the store that refer to each other: a traceback with local values does not spell them out.

    Without this the log line for one exception takes seconds, while nothing is served.
    """
    return [field.evolve(repr=False) for field in fields]


class Ticket:
    """Tells when an append is durable, as far as its mode asks. One is shared by all appends of a batch in
    one mode.

    `error`: None once it is durable, else why it is not.
    """

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: StoreError | None = None
        self._callbacks: list[Callable[[Ticket], None]] = []

    def when_done(self, callback: "Callable[[Ticket], None]") -> None:
        """Call it exactly once, in the trio thread; at once if it is done. It must not raise."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def resolve(self, error: StoreError | None) -> None:
        """It is done: call everybody who waits."""
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # what `call` does, without a call for each: every answer passes here
                logger.exception(_CALLBACK_FAILED, callback=repr(callback))


_CALLBACK_FAILED = "a callback of the store raised; the others are still called; report this bug"


def call(callback: Callable[..., None], *arguments: Any) -> None:
    """Call it, and log what it raises: one waiter's bug must not keep the others from being called."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception(_CALLBACK_FAILED, callback=repr(callback))


@attrs.define(eq=False, weakref_slot=False, repr=False, field_transformer=opaque)
class LogAppend:
    """The records of one log in one batch, in order, from `offset` on.

    `chunks`: whole records each, `counts`: how many; 0 where it begins one that ends with the next chunk.
    """

    log: "Log"
    batch: "CommitBatch"
    ticket: Ticket
    journaled: bool
    offset: int
    end: int
    chunks: list[bytes | memoryview] = attrs.Factory(list)
    counts: list[int] = attrs.Factory(list)
    records: int = 0  # in all of them, once the batch is sealed
    by_reference: bool = False  # they are to be in the log's own file before the journal refers to them
    written: memoryview | None = None  # its records, as they stand in the journal's batch, if they do

    def add(self, records: bytes, count: int) -> int:
        """Add what was promised to the batch (`Log.gather`), which has room for it; returns its offset."""
        log = self.log
        offset = log.end
        self.chunks.append(records)
        self.counts.append(count)
        self.batch.room -= len(records)
        log.end = offset + len(records)
        if log.fold is not None:
            log.fold(offset, records)
        return offset


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
    """Becomes one batch of the journal. `room`: bytes that still fit of `bytes_max`.

    `gathering`: who adds more when the batch is sealed. `broken`: what one of them raised: the batch lacks
    what was promised, so it must not be written.
    """

    bytes_max: int
    room: int
    began: float  # monotonic
    appends: "dict[Log, LogAppend]" = attrs.Factory(dict)
    light: "list[LogAppend]" = attrs.Factory(list)  # set apart from them: only their logs' tails get these
    changes: list[Change] = attrs.Factory(list)
    gathering: list[Callable[[], None]] = attrs.Factory(list)
    broken: Exception | None = None
    tickets: dict[Mode, Ticket] = attrs.Factory(dict)
    with_files: int = 0  # of the logs, those whose own files the commit must look at
    sync: bool = False
    sealed: bool = False
    unawaited: bool = False  # it holds what nobody waits for
    interval_seconds: float = math.inf  # by when it must be synced if nobody waits for that

    @staticmethod
    def size_of(parts: "Iterable[tuple[Log, bytes, int]]") -> int:
        """What `Store.append_all` adds for these."""
        return sum(len(records) + ENTRY_HEADER_BYTES for _, records, _ in parts)

    @property
    def bytes(self) -> int:
        return self.bytes_max - self.room

    @property
    def awaited_bytes(self) -> int:
        """The bytes without those of unawaited logs."""
        if not self.unawaited:
            return self.bytes
        idle = (part for log, part in self.appends.items() if log.unawaited)
        return self.bytes - sum((part.end if self.sealed else part.log.end) - part.offset for part in idle)

    @property
    def logs(self) -> "list[Log]":
        """That it has appends to."""
        return [*self.appends, *(part.log for part in self.light)]

    def ticket(self, mode: Mode) -> Ticket:
        ticket = self.tickets.get(mode)
        if ticket is None:
            ticket = self.tickets[mode] = Ticket()
            if mode is Mode.SYNCED:
                self.sync = True
        return ticket

    @property
    def strictest(self) -> Ticket | None:
        """Done when all of the batch is as durable as any of it asks; None: nothing is in it."""
        return self.tickets[min(self.tickets)] if self.tickets else None

    def append_to(self, log: "Log", mode: Mode) -> LogAppend:
        """What is appended to the log, made if it is not there. The stricter of its modes counts."""
        part = self.appends.get(log)
        if part is None:
            part = self.appends[log] = LogAppend(
                log, self, self.ticket(mode), mode is not Mode.DIRECT, log.end, log.end
            )
            self.room -= ENTRY_HEADER_BYTES
            if mode is Mode.DIRECT or log.entries_written == UNKNOWN:
                self.with_files += 1
        else:
            part.ticket = self.ticket(mode)
        if log.unawaited:
            self.unawaited = True
        if log.mode.mode == "interval":
            self.interval_seconds = min(self.interval_seconds, log.mode.seconds)
        return part

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self.room -= ENTRY_HEADER_BYTES + len(change.body)

    def seal(self) -> None:
        """Nothing more is added: it is full, or on its way to the disk."""
        if not self.sealed:
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
                counts = part.counts
                part.records = counts[0] if len(counts) == 1 else sum(counts)

    def resolve(self, error: StoreError | None, direct_error: StoreError | None = None) -> None:
        """Tell everybody who still waits. `direct_error`: for what goes around the journal, where that
        failed."""
        for mode in sorted(self.tickets):
            ticket = self.tickets[mode]
            if not ticket.done:
                ticket.resolve(direct_error or error if mode is Mode.DIRECT else error)


class Appender(Protocol):
    """What takes a log's appends: the committer."""

    def begin(self, log: "Log", size: int, reserved: bool) -> LogAppend: ...

    def drop_below(self, log: "Log", offset: int) -> Ticket: ...


class RecordReader(Protocol):
    """What serves a log's reads; each call as `Log` has it."""

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
    """One log of a store. Its offsets never change; see `Namespace.create` and `delete` for its life.

    `first`: the first kept offset. `end`: where the next record will go (appended, maybe not durable yet).
    `visible`: what readers may see (mode `always`: synced; else written). `watchers` are called with the log
    after `visible` has advanced, and when it is deleted, before anybody's ticket is done.
    """

    _committer: Appender
    _reader: RecordReader
    id: int
    namespace: str
    name: str
    path: str
    """Of its files, without `.log` and `.idx`."""
    mode: Durability
    created_ms: int
    first: int = 0
    end: int = 0
    visible: int = attrs.field(init=False)
    deleted: bool = False
    watchers: "set[Callable[[Log], None]]" = attrs.Factory(set)
    retention: Retention | None = None
    """What this log keeps, where it differs from its namespace's others."""
    fold: Callable[[int, bytes], None] | None = None
    """Called with the offset and records of every append, before it is durable: for state that is a fold over
    the records."""
    advanced: "Callable[[Log], None] | None" = None
    """Called as watchers are, for the one who appends here and keeps what is in the log in another form: for
    readers what has just come is kept in memory for a while, not for this."""
    rolled_back: "Callable[[Log], None] | None" = None
    """Called when appended bytes were taken back: `end` is `visible` again."""
    unawaited: bool = False
    """Nobody waits for its records, nor reads them soon: the loop's time and the system's memory are not
    spent on them."""

    # The rest belongs to the storage core. It is changed in the trio thread alone.
    file: LogFile = attrs.field(init=False)
    index_file: LogFile = attrs.field(init=False)
    pending: LogAppend | None = None  # its part of the batch that is being filled
    busy: bool = False  # a commit under way holds some of it
    fresh: bool = False  # made in this process, and has no file yet
    first_kept: int = attrs.field(init=False)  # `first` as it is durable: what lies below may become a hole
    mode_kept: Durability = attrs.field(init=False)  # `mode` as it is known to be durable
    direct_dirty: bool = False  # bytes went around the journal since the file's last sync
    ahead_lsn: int = UNKNOWN  # of the last batch which says that the file may be ahead of the journal
    named: bool = False  # the file's name is known to be durable
    referred_from: int = sys.maxsize  # the journal may refer to the file's bytes from here on
    entries_written: int = attrs.field(init=False)  # entries in the index file
    open_since: float = 0.0  # monotonic
    last_ms: int = 0
    tail: bytearray = attrs.Factory(bytearray)  # the newest visible records, which the file lacks
    users: list[int] | None = None  # offsets from which somebody reads the file just now
    _closed_entries: list[IndexEntry] = attrs.field(init=False, factory=list)
    _open_entry: IndexEntry | None = attrs.field(init=False, default=None)
    _not_indexed: list[tuple[int, int, int]] = attrs.field(init=False, factory=list)
    """Of what the newest commits brought to the tail's end: time in ms, bytes, records."""

    def __attrs_post_init__(self) -> None:
        self.visible = self.end
        self.file, self.index_file = LogFile(self.path + ".log"), LogFile(self.path + ".idx")
        self.first_kept, self.mode_kept = self.first, self.mode
        self.entries_written = UNKNOWN if self.end else 0

    def __repr__(self) -> str:
        return f"<Log {self.id} {self.namespace}/{self.name} {self.first}..{self.visible}..{self.end}>"

    @property
    def closed_entries(self) -> list[IndexEntry]:
        """The entries that are not in the index file yet, but for the open one."""
        if self._not_indexed:
            self._index()
        return self._closed_entries

    @property
    def open_entry(self) -> IndexEntry | None:
        """The newest entry, which grows."""
        if self._not_indexed:
            self._index()
        return self._open_entry

    @open_entry.setter
    def open_entry(self, entry: IndexEntry | None) -> None:
        self._open_entry = entry

    @property
    def indexed(self) -> bool:
        """Its index file has all that it will get of what is there."""
        return self._open_entry is None and not self._closed_entries and not self._not_indexed

    def entries_below(self, end: int) -> list[IndexEntry]:
        """The closed entries that cover nothing behind `end`."""
        closed = self._closed_entries if end <= self.tail_start else self.closed_entries
        if closed and closed[-1].end > end:
            return [entry for entry in closed if entry.end <= end]
        return closed[:]

    def took_light(self, part: LogAppend, now_ms: int, now: float) -> None:
        """A light append is durable. `now`: monotonic seconds.

        Its index entry is made when somebody asks for entries: a sum over many small commits costs a tenth of
        one for each.
        """
        chunks = part.chunks
        self.tail += chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.visible = part.end
        not_indexed = self._not_indexed
        if not not_indexed and self._open_entry is None:
            self.open_since = now
        if now_ms > self.last_ms:
            self.last_ms = now_ms
        not_indexed.append((self.last_ms, part.end - part.offset, part.records))
        if now - self.open_since >= ENTRY_COVERS_SECONDS:
            self.close_entry()
        elif len(not_indexed) >= _NOT_INDEXED_MAX:
            self._index()

    def _index(self) -> None:
        commits, self._not_indexed = self._not_indexed, []
        closed, self._open_entry = extend_by_tail(self._open_entry, self.visible, self.tail, commits)
        self._closed_entries += closed

    def drop_tail(self) -> None:
        """The log is deleted."""
        self.tail = bytearray()
        self._not_indexed = []

    @property
    def entries_start(self) -> int:
        """Where the entries in memory begin; all below is in the index file."""
        if self.closed_entries:
            return self.closed_entries[0].offset
        return self.visible if self.open_entry is None else self.open_entry.offset

    @property
    def tail_start(self) -> int:
        """Where the records in memory begin; all below is in the log's file."""
        return self.visible - len(self.tail)

    def close_entry(self) -> None:
        """The next record begins a new index entry."""
        entry = self.open_entry
        if entry is not None:
            self._closed_entries.append(entry)
            self._open_entry = None

    def entries_reached(self, number: int) -> None:
        """The index file has all entries below that number."""
        new = number - self.entries_written
        if new > 0:
            self.entries_written = number
            del self.closed_entries[:new]

    @property
    def gone(self) -> bool:
        """Its deletion is durable. While it is only `deleted`, that may be taken back, or lost in a crash."""
        return self.file.gone

    @property
    def direct(self) -> bool:
        """Its bytes go around the journal."""
        return self.mode.direct

    def append(self, records: bytes, count: int, reserved: bool = False) -> tuple[int, Ticket]:
        """Add `count` whole encoded records; returns the offset of the first, and what says when they count.

        Synchronous, does no IO: call `Store.commit_pending` or `Store.wait` afterwards. `reserved`: may use
        the space kept back for acknowledgements and administration. Raises StoreReadOnly, StoreFull,
        LogDeleted, StoreClosed.
        """
        part = self.pending
        if part is None or len(records) > part.batch.room:
            part = self._committer.begin(self, len(records), reserved)
        part.chunks.append(records)
        part.counts.append(count)
        size = len(records)
        part.batch.room -= size
        offset = self.end
        self.end = offset + size
        if self.fold is not None:
            self.fold(offset, records)
        return offset, part.ticket

    def append_framed(self, head: bytes, rest: bytes | memoryview) -> tuple[int, Ticket]:
        """Add one encoded record in two pieces, a head and `rest`. They are not copied, and must stay as they
        are until the ticket is done. For large records, in logs without a fold; otherwise as `append`."""
        size = len(head) + len(rest)
        part = self.pending
        if part is None or size > part.batch.room:
            part = self._committer.begin(self, size, False)
        part.chunks += (head, rest)
        part.counts += (0, 1)
        part.batch.room -= size
        offset = self.end
        self.end = offset + size
        return offset, part.ticket

    def gather(self, size: int, complete: Callable[[], None], reserved: bool = False) -> LogAppend:
        """Promise `size` bytes of records to the batch that is being filled, instead of an append for each.

        `complete` is called when that batch is sealed, and adds what was gathered (`LogAppend.add`). The
        ticket is that of all that is gathered for as long as `pending` is the part returned. To gather more,
        take its size from `batch.room`; give back what was taken before adding. `reserved`, errors: as for
        `append`.
        """
        part = self.pending
        if part is None or size > part.batch.room:
            part = self._committer.begin(self, size, reserved)
        part.batch.room -= size
        part.batch.gathering.append(complete)
        return part

    def drop_below(self, offset: int) -> Ticket:
        """Drop the records below `offset`, a record's start or the end; it is durable with the ticket.

        Their space is given back later, when nobody reads there any more. Raises what `append` raises.
        """
        return self._committer.drop_below(self, offset)

    def read(self, offset: int, max_bytes: int, done: Callable[[bytes | StoreError], None]) -> None:
        """Whole records from `offset` on, at most `max_bytes` but at least one; b"" at the visible end.

        `done` is called at once where the bytes are in memory, else later, in the trio thread; with
        OutOfRange, NotARecord, CorruptRecord or LogDeleted where it cannot be.
        """
        self._reader.read(self, offset, max_bytes, done)

    def read_chunk(self, offset: int, max_bytes: int, done: Callable[[FileRange | StoreError], None]) -> None:
        """The same without the bytes: a range of the file, verified, to be released; length 0 at the end."""
        self._reader.read_chunk(self, offset, max_bytes, done)

    def is_record_start(self, offset: int, done: Callable[[bool | StoreError], None]) -> None:
        """True if `offset` is a record's start, or the visible end; else an error as `read` has it."""
        self._reader.is_record_start(self, offset, done)

    def index_entries(self, start: int, stop: int) -> list[IndexEntry]:
        """The index entries that touch [start, stop), as far as visible. May read the index file.

        Raises LogDeleted, CorruptRecord.
        """
        if self.deleted:
            raise LogDeleted
        return self._reader.index_entries(self, start, stop)

    def lost_at(self, offset: int) -> Lost:
        """The range that a read at `offset`, where it was refused with CorruptRecord, cannot get past but by
        going on behind it. May read the index file. Raises LogDeleted."""
        try:
            (entry,) = self.index_entries(offset, offset + 1)
        except CorruptRecord:
            return Lost(offset, self.visible - offset, 0)
        return Lost(offset, min(entry.end, self.visible) - offset, entry.records)

    def was_written(self, offset: int) -> bool:
        """Whether what can be read at `offset` is known to be what was written there; else it is only what
        was found. Raises as `entries` does."""
        return not any(entry.unverified for entry in self.index_entries(offset, offset + 1))

    def seek(self, unix_ms: int) -> int:
        """Where the first index entry begins that ends at `unix_ms` or later; the visible end without one.

        May read the index file. Raises LogDeleted, CorruptRecord.
        """
        if self.deleted:
            raise LogDeleted
        return self._reader.seek(self, unix_ms)


async def read_records(log: Log, offset: int, bytes_max: int) -> bytes:
    """`Log.read`, awaited: whole records from `offset` on. Raises StoreError."""
    found: list[bytes | StoreError] = []
    ready = trio.Event()

    def done(result: bytes | StoreError) -> None:
        found.append(result)
        ready.set()

    log.read(offset, bytes_max, done)
    await ready.wait()
    if isinstance(found[0], StoreError):
        raise found[0]
    return found[0]


class RecordTimes:
    """When the records came that stand in [start, stop) of a log, by its index: to a fifth of a second."""

    def __init__(self, log: Log, start: int, stop: int) -> None:
        """May read the index file."""
        self._entries: list[IndexEntry] = []
        with suppress(StoreError, OSError):
            self._entries = log.index_entries(start, stop)

    def at(self, offset: int) -> int | None:
        """Of the record at `offset`, in Unix ms; None where the index does not say."""
        number = bisect_right(self._entries, offset, key=attrgetter("offset")) - 1
        return self._entries[number].first_ms if number >= 0 else None

    @property
    def last(self) -> int | None:
        """Of the last of them."""
        return self._entries[-1].last_ms if self._entries else None


class WholeRecords:
    """All of a log that can be read, from `start` on. `offset`: where what was read last begins. `lost`: what
    cannot be read, in as few ranges as there are."""

    def __init__(self, log: Log, start: int, bytes_max: int) -> None:
        self.offset = max(start, log.first)
        self.lost: list[Lost] = []
        self._log = log
        self._bytes_max = bytes_max
        self._following = self.offset

    async def read(self) -> bytes:
        """The next whole records; b"" at the end. Raises StoreError where something else is wrong."""
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
        """Call it lost."""
        if self.lost and self.lost[-1].end == found.offset:
            before = self.lost.pop()
            found = Lost(before.offset, before.length + found.length, before.records + found.records)
        self.lost.append(found)
