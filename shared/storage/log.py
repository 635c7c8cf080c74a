"""A log: an append-only sequence of records, addressed by byte offset."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from shared.errors import CorruptRecord, LogDeleted, StoreError
from shared.file_range import FileRange
from shared.storage.files import LogFile
from shared.storage.format import IndexEntry
from shared.storage.settings import Durability, Retention

if TYPE_CHECKING:
    from shared.storage.committer import Committer
    from shared.storage.reading import Reader
    from shared.storage.rounds import Run, Ticket

UNKNOWN = -1
_SHOWN_MAX = 10
"""Ranges in one line of the log."""


@attrs.frozen
class Lost:
    """A range of a log that cannot be read. `records`: as many as its index tells of; 0: it does not tell."""

    offset: int
    length: int
    records: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Log:
    """One log of a store. Its offsets never change; see `Namespace.create` and `delete` for its life.

    `first`: the first kept offset. `end`: where the next record will go (appended, maybe not durable yet).
    `visible`: what readers may see (mode `always`: synced; else written). `watchers` are called with the log
    after `visible` has advanced, and when it is deleted, before anybody's ticket is done.
    """

    __slots__ = (
        "_committer",
        "_reader",
        "advanced",
        "background",
        "busy",
        "closed_entries",
        "created_ms",
        "deleted",
        "direct_dirty",
        "end",
        "entries_written",
        "file",
        "first",
        "first_kept",
        "fold",
        "fresh",
        "id",
        "index_file",
        "last_ms",
        "mode",
        "mode_kept",
        "name",
        "namespace",
        "open_entry",
        "open_since",
        "retention",
        "rolled_back",
        "run",
        "unapplied",
        "users",
        "visible",
        "watchers",
    )

    def __init__(
        self,
        committer: "Committer",
        reader: "Reader",
        log_id: int,
        namespace: str,
        name: str,
        path: str,
        mode: Durability,
        created_ms: int,
        first: int = 0,
        end: int = 0,
    ) -> None:
        self._committer = committer
        self._reader = reader
        self.id = log_id
        self.namespace = namespace
        self.name = name
        self.mode = mode
        self.created_ms = created_ms
        self.first = first
        self.end = self.visible = end
        self.deleted = False
        self.watchers: set[Callable[[Log], None]] = set()
        self.retention: Retention | None = None
        """What this log keeps, where it differs from its namespace's others."""
        self.fold: Callable[[int, bytes], None] | None = None
        """Called with the offset and records of every append, before it is durable: for state that is a fold
        over the records."""
        self.advanced: Callable[[Log], None] | None = None
        """Called as watchers are, for the one who appends here and keeps what is in the log in another form:
        for readers what has just come is kept in memory for a while, not for this."""
        self.rolled_back: Callable[[Log], None] | None = None
        """Called when appended bytes were taken back: `end` is `visible` again."""

        self.background = False
        """Nobody waits for its records, nor reads them soon: the loop's time and the system's memory are not
        spent on them."""

        # The rest belongs to the storage core. It is changed in the trio thread alone.
        self.file = LogFile(path + ".log")
        self.index_file = LogFile(path + ".idx")
        self.run: Run | None = None  # what the round that is being filled holds of this log
        self.busy = False  # a commit under way holds some of it
        self.fresh = False  # made in this process, and has no file yet
        self.first_kept = first  # `first` as it is known to be durable: what lies below may become a hole
        self.mode_kept = mode  # `mode` as it is known to be durable
        self.direct_dirty = False  # bytes went around the journal since the file's last sync
        self.entries_written = UNKNOWN if end else 0  # entries in the index file
        self.closed_entries: list[IndexEntry] = []  # not in the index file yet
        self.open_entry: IndexEntry | None = None
        self.open_since = 0.0
        self.last_ms = 0
        self.unapplied: list[tuple[int, bytes]] = []  # durable in the journal; the log file would not take it
        self.users: list[int] | None = None  # offsets from which somebody reads the file just now

    def __repr__(self) -> str:
        return f"<Log {self.id} {self.namespace}/{self.name} {self.first}..{self.visible}..{self.end}>"

    @property
    def entries_start(self) -> int:
        """Where the entries in memory begin; all below is in the index file."""
        if self.closed_entries:
            return self.closed_entries[0].offset
        return self.visible if self.open_entry is None else self.open_entry.offset

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

    def append(self, records: bytes, count: int, reserved: bool = False) -> "tuple[int, Ticket]":
        """Add `count` whole encoded records; returns the offset of the first, and what says when they count.

        Synchronous, does no IO: call `Store.commit_pending` or `Store.wait` afterwards. `reserved`: may use
        the space kept back for acknowledgements and administration. Raises StoreReadOnly, StoreFull,
        LogDeleted, StoreClosed.
        """
        run = self.run
        if run is None or len(records) > run.round.room:
            run = self._committer.begin(self, len(records), reserved)
        run.chunks.append(records)
        run.counts.append(count)
        size = len(records)
        run.round.room -= size
        offset = self.end
        self.end = offset + size
        if self.fold is not None:
            self.fold(offset, records)
        return offset, run.ticket

    def append_framed(self, head: bytes, rest: bytes | memoryview) -> "tuple[int, Ticket]":
        """Add one encoded record in two pieces, a head and `rest`. They are not copied, and must stay as they
        are until the ticket is done. For large records, in logs without a fold; otherwise as `append`."""
        size = len(head) + len(rest)
        run = self.run
        if run is None or size > run.round.room:
            run = self._committer.begin(self, size, False)
        run.chunks += (head, rest)
        run.counts += (0, 1)
        run.round.room -= size
        offset = self.end
        self.end = offset + size
        return offset, run.ticket

    def gather(self, size: int, complete: Callable[[], None], reserved: bool = False) -> "Run":
        """Promise records to the round that is being filled, in place of an append for each of many changes.

        `complete` is called once nothing more comes into that round, and adds what was gathered (`Run.add`).
        The run's ticket is that of what is gathered from now on, for as long as `run` is this one. Room is
        kept for `size` bytes; whoever gathers more takes it from `run.round.room`, and gives back what was
        kept before adding. `reserved`, and what is raised: as for `append`.
        """
        run = self.run
        if run is None or size > run.round.room:
            run = self._committer.begin(self, size, reserved)
        run.round.room -= size
        run.round.gathering.append(complete)
        return run

    def drop_below(self, offset: int) -> "Ticket":
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


def describe_lost(lost: Sequence[Lost]) -> dict[str, Any]:
    """Ranges, for a line of the log: where they are, and how much."""
    return {
        "ranges": [f"{each.offset}+{each.length}" for each in lost[:_SHOWN_MAX]],
        "bytes": sum(each.length for each in lost),
        "records": sum(each.records for each in lost),
    }
