"""The committer: makes what was appended durable, then publishes it to everybody who waits (ARCHITECTURE.md,
"One write path").

On failure everything appended and not durable is rolled back: the failed batch, and all behind it, whose
offsets follow from it. `Commit.run` touches nothing that the loop reads; all else is the trio thread's.
"""

import math
import mmap
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import structlog
import trio

from shared.errors import LogDeleted, StoreClosed, StoreError, StoreFull, StoreReadOnly
from shared.metrics import Histogram
from shared.storage import index
from shared.storage.disk import Clock, Disk, write_all, write_pieces
from shared.storage.entries import ENTRY_COVERS_BYTES, ENTRY_COVERS_SECONDS, crc_of, extend
from shared.storage.files import FileGone, OpenFiles, describe, error_for_unwritten
from shared.storage.format import (
    AHEAD,
    BATCH_HEADER_BYTES,
    BATCH_PAYLOAD_MAX,
    ENTRY_HEADER_BYTES,
    REFERENCE_BYTES,
    EntryKind,
    IndexEntry,
    pack_entry,
    pack_entry_header,
    pack_reference,
)
from shared.storage.journal import Journal, PoisonError
from shared.storage.log import UNKNOWN, Change, CommitBatch, Log, LogAppend, Tails, Ticket, call, opaque
from shared.storage.settings import Mode, StorageSettings
from shared.storage.shipping import Referred, Shipping

logger = structlog.stdlib.get_logger("brokers.storage")

T = TypeVar("T")

# Looking up an enum member takes as long as packing the entry.
_APPEND, _REFERENCE = int(EntryKind.APPEND), int(EntryKind.REFERENCE)

_INLINE_LOGS_MAX = 64
"""A batch with more logs whose files are touched is committed in a thread. Each takes some microseconds
besides its bytes, and a read of its index after a start."""
_INLINE_LIGHT_MAX = 1024
"""A batch with more logs that have light appends alone is committed in a thread, too: 1.6 us each."""
_INLINE_BUSY = 20
"""On a busy loop a sync on the loop may take this many times as long as on an idle one: 6 ms. A thread needs
the interpreter's lock twice, beside a loop that hardly lets go of it."""
_SPARE_BYTES = 8 << 20
"""Address space that is kept for a commit which is in the journal and needs memory to end. It is never
written, so it takes none."""
_SYNCS_RECENT = 1000
_SYNCS_IN_THREAD = 8
"""How many syncs in threads are looked at. The shortest counts: one of them nearly always found the
interpreter free."""
_SYNC_SHORT_SECONDS = 100e-6


SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Bounds of histograms."""


@attrs.define(eq=False)
class CommitCounts:
    """Totals since the store was opened. `sync_seconds`: what a sync takes, estimated; inf at first."""

    commits: int = 0
    inline_commits: int = 0
    records: int = 0
    bytes: int = 0
    batch_bytes_max: int = 0
    sync_seconds: float = math.inf
    recent: deque[float] = attrs.Factory(lambda: deque(maxlen=_SYNCS_RECENT))
    """Seconds of the last syncs."""
    sync_times: Histogram = attrs.Factory(lambda: Histogram(SECONDS))
    ack_seconds: defaultdict[str, Histogram] = attrs.Factory(lambda: defaultdict(lambda: Histogram(SECONDS)))
    """By namespace: seconds from append to durable."""
    _in_thread: deque[float] = attrs.Factory(lambda: deque(maxlen=_SYNCS_IN_THREAD))

    def sync_quantile(self, share: float) -> float:
        """The quantile of the last syncs, in seconds; 0 before the first."""
        took = sorted(self.recent)
        return took[min(int(share * len(took)), len(took) - 1)] if took else 0.0

    @property
    def sync_seconds_last(self) -> float:
        """What the last sync took; 0 before the first."""
        return self.recent[-1] if self.recent else 0.0

    def count_sync(self, seconds: float, *, in_thread: bool) -> None:
        """Count a sync. In a thread it includes the wait for the interpreter, up to 5 ms on a busy loop. So
        the shortest of the last few counts there; otherwise a busy loop would never commit without a thread
        again.
        """
        self.recent.append(seconds)
        self.sync_times.observe(seconds)
        if in_thread:
            self._in_thread.append(seconds)
            self.sync_seconds = min(self._in_thread)
            return
        if self._in_thread:
            self._in_thread.clear()
        before = self.sync_seconds
        if before == math.inf:
            self.sync_seconds = seconds
        else:  # a single long sync says little, so it is capped
            self.sync_seconds += (min(seconds, max(2 * before, _SYNC_SHORT_SECONDS)) - before) / 4


@attrs.define(eq=False, weakref_slot=False, repr=False, field_transformer=opaque)
class LogCommit:
    """What a commit does to one log, and the outcome."""

    log: Log
    fd: int
    late: bool = False  # the log's tail gets the records; its file is not touched
    kept: bool = True  # a descriptor opened here stays open for later commits
    before: bytearray = attrs.Factory(bytearray)  # the log's tail, written to the file first
    before_written: bool = False
    named: bool = False  # the file's name is synced
    referred_offset: int = 0
    referred_bytes: int = 0  # from `referred_offset` on: bytes that the journal refers to
    ahead_lsn: int = UNKNOWN  # of a batch that says that the log's file may be ahead of the journal
    made: bool = False  # the log's own file exists
    open_entry: IndexEntry | None = attrs.field(init=False)
    last_ms: int = attrs.field(init=False)
    entries_written: int = attrs.field(init=False)
    entries_start: int = attrs.field(init=False)
    closed: list[IndexEntry] = attrs.Factory(list)
    tail: list[memoryview] = attrs.Factory(list)  # added to the log's tail
    failed: bool = False  # the log's file refused a write

    def __attrs_post_init__(self) -> None:
        log = self.log
        log.busy = True
        self.open_entry = log.open_entry
        self.last_ms = log.last_ms
        self.entries_written = log.entries_written
        self.entries_start = log.entries_start if log.entries_written == UNKNOWN else 0

    def unpin(self, files: OpenFiles) -> None:
        """Release the log. Files that the commit opened stay open, as far as there is room."""
        log = self.log
        log.busy = False
        if self.made:
            log.fresh = False
        if self.named:
            log.named = True
        if not self.late:
            files.unpin(log.file, self.fd)

    def publish(self, tails: Tails, now: float) -> None:
        """Update the log with the outcome. In the trio thread; `now`: monotonic seconds."""
        log = self.log
        if self.before_written:
            tails.written(log, len(self.before), now)
        if self.ahead_lsn != UNKNOWN:
            log.ahead_lsn = self.ahead_lsn
        for data in self.tail:
            tails.add(log, data, now)
        if self.failed:
            tails.failed(log)
        entry = self.open_entry
        if entry is not None and (log.open_entry is None or entry.offset != log.open_entry.offset):
            log.open_since = now
        log.open_entry = entry
        if self.closed:
            log.closed_entries.extend(self.closed)
        if log.entries_written == UNKNOWN:
            log.entries_written = self.entries_written
        if entry is not None and now - log.open_since >= ENTRY_COVERS_SECONDS:
            log.close_entry()
        if self.referred_bytes:
            log.referred_from = min(log.referred_from, self.referred_offset)
        log.last_ms = self.last_ms


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class Commit:
    """Batches on their way to the disk. `run()` blocks, in any thread; then the outcome is:

    the first `good` batches are durable; `poison` or `error` says what happened to the others.
    `LogCommit.tail` has what is not yet in a log's own file.
    """

    batches: list[CommitBatch]
    committer: "Committer"
    now_ms: int
    logs: dict[Log, LogCommit] = attrs.Factory(dict)
    """All logs but those with light appends."""
    room: int = 0
    """Descriptors opened here that may stay open."""
    begun: bool = False
    in_thread: bool = False
    """Runs in a thread, beside the loop."""
    good: int = 0
    error: OSError | MemoryError | None = None
    poison: PoisonError | None = None
    sync_seconds: float = 0.0
    synced: bool = False
    references: list[Referred] = attrs.Factory(list)
    """What batches of this commit refer to."""
    _referred: dict[LogCommit, None] = attrs.Factory(dict)
    """Logs whose files have unsynced bytes that the journal refers to."""
    journal: Journal = attrs.field(init=False)
    disk: Disk = attrs.field(init=False)
    files: OpenFiles = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        committer = self.committer
        self.journal, self.disk, self.files = committer.journal, committer.disk, committer.files

    def run(self) -> None:
        """Write, sync, then update the logs' files. Never raises: the outcome is in the fields."""
        if self.error is not None:
            return  # there was no memory to begin it
        self.begun = True
        to_sync = False
        try:
            try:
                for batch in self.batches:
                    self._write(batch)
                    self.good += 1
                    to_sync |= Mode.SYNCED in batch.tickets
            except (OSError, MemoryError) as error:
                self.error = error
                self._cut_references(self.batches[self.good])
            if to_sync or self._referred:
                self._sync()
            self._apply(self.batches[: self.good])
        except PoisonError as error:
            self.poison = error
            self.good = 0
        except Exception as error:
            self.fail(error)

    def not_run(self, error: MemoryError) -> None:
        """There was no memory to call `run`, or to hand it to a thread."""
        if self.begun:
            self.fail(error)
        else:
            self.error = error

    def fail(self, error: Exception) -> PoisonError:
        """A bug: what it left on the disk is unknown."""
        logger.error(
            "a commit crashed; nothing more is written until a restart; report this bug", exc_info=error
        )
        self.poison = poison = PoisonError("a commit crashed")
        poison.__cause__ = error
        self.good = 0
        return poison

    def _write(self, batch: CommitBatch) -> None:
        """Write one batch to the journal.

        Raises OSError if nothing of it was written, PoisonError if that is unknown.
        """
        if isinstance(batch.broken, MemoryError):
            raise batch.broken.with_traceback(None)
        if batch.broken is not None:
            raise PoisonError("what was promised to a batch is not in it") from batch.broken
        pieces: list[bytes | memoryview] = []
        size = 0
        for change in batch.changes:
            pieces.append(pack_entry(change.kind, change.log.id, change.offset, len(change.body)))
            pieces.append(change.body)
            size += ENTRY_HEADER_BYTES + len(change.body)
        entries = len(batch.changes) + len(batch.light)
        for log, offset, records, count in batch.light:
            pieces.append(pack_entry_header(_APPEND, 0, count, log.id, offset, len(records)))
            pieces.append(records)
            size += ENTRY_HEADER_BYTES + len(records)
        placed: list[tuple[LogAppend, int, int]] = []
        ahead: list[LogCommit] = []
        referred: list[tuple[int, int, int, int]] = []
        for part in batch.appends.values():
            entries += 1
            size += ENTRY_HEADER_BYTES
            length = part.end - part.offset
            if part.by_reference and self._write_by_reference(part):
                crc = crc_of(part.chunks)
                pieces.append(pack_entry(_REFERENCE, part.log.id, part.offset, REFERENCE_BYTES, part.records))
                pieces.append(pack_reference(length, crc))
                size += REFERENCE_BYTES
                referred.append((part.log.id, part.offset, length, crc))
                continue
            flags = 0
            if 0 < self.committer.settings.reference_bytes <= length:
                flags = AHEAD
                ahead.append(self.logs[part.log])
            pieces.append(pack_entry_header(_APPEND, flags, part.records, part.log.id, part.offset, length))
            pieces += part.chunks
            placed.append((part, size, length))
            size += length
        if not entries:
            return
        if self._referred and size > self.journal.room:
            # The next segment's first batch declares everything before it synced.
            self._sync_referred()
        batch_bytes = self.journal.write(pieces, entries, size, self.now_ms)
        if placed:
            written = memoryview(batch_bytes)
            for part, start, length in placed:
                start += BATCH_HEADER_BYTES
                part.written = written[start : start + length]
        lsn = self.journal.position - len(batch_bytes)
        for target in ahead:
            target.ahead_lsn = lsn
        self.references += [Referred(lsn, *place) for place in referred]

    def _write_by_reference(self, part: LogAppend) -> bool:
        """Write to the log's own file; False if that fails, so that the journal must take the bytes."""
        target = self.logs[part.log]
        if target.failed:
            return False
        try:
            self._open(target)
            self._referred[target] = None
            self._write_before(target)
            write_pieces(self.disk, target.fd, part.chunks, part.offset)
        except FileGone:
            return False
        except OSError:
            target.failed = True
            return False
        if not target.referred_bytes:
            target.referred_offset = part.offset
        target.referred_bytes += part.end - part.offset
        return True

    def _cut_references(self, batch: CommitBatch) -> None:
        """Nothing of this batch was written: cut off the bytes that it would have referred to."""
        for part in batch.appends.values():
            if part.by_reference:
                target = self.logs[part.log]
                try:
                    self._open(target)
                    if self.disk.size(target.fd) > part.offset:
                        self.disk.truncate(target.fd, part.offset)
                except FileGone:
                    continue
                except OSError as error:
                    raise PoisonError(f"{part.log.file.path} could not be cut") from error

    def _sync_referred(self) -> None:
        """Sync what the journal refers to, apart from the journal."""
        try:
            self._sync_names()
            for target in self._referred:
                self.disk.sync_data(target.fd)
        except OSError as error:
            raise PoisonError("a log could not be synced") from error
        self._referred_are_synced()

    def _sync_names(self) -> None:
        """Sync the names of files by which recovery finds these bytes."""
        folders = {target.log.namespace for target in self._referred if not target.log.named}
        for folder in sorted(folders):
            self.disk.sync_folder(folder)
        if folders:
            self.disk.sync_folder("")

    def _referred_are_synced(self) -> None:
        """Nothing that the journal refers to is left to be synced."""
        for target in self._referred:
            target.named = True
            if not target.kept:
                self._let_go(target)
        self._referred.clear()

    def _sync(self) -> None:
        """Make what was written durable, and the files that the journal refers to. Raises PoisonError."""
        began = self.committer.clock.monotonic()
        if self._referred:
            try:
                self._sync_names()
            except OSError as error:
                raise PoisonError("a log's name could not be synced") from error
            self.journal.sync([target.fd for target in self._referred])
            self._referred_are_synced()
        else:
            self.journal.sync()
        self.sync_seconds = self.committer.clock.monotonic() - began
        self.synced = True

    # -- after the sync: the logs' own files

    def _apply(self, good: list[CommitBatch]) -> None:
        """Update the logs' files."""
        for batch in good:
            for change in batch.changes:
                if change.kind is EntryKind.DELETE:
                    self._remove(change.log)
            for part in batch.appends.values():
                try:
                    self._apply_append(part)
                except MemoryError:  # it must be done, for the journal has it: with what is kept for this
                    self.committer.spare.close()
                    self._apply_append(part)

    def _remove(self, log: Log) -> None:
        """Unlink a deleted log's files."""
        for file in (log.index_file, log.file):
            try:
                self.files.remove(file)
            except OSError:
                pass  # the next start removes it: the journal says that the log is deleted

    def _apply_append(self, part: LogAppend) -> None:
        """The journal has the records, so if the file refuses them the tail keeps them and they are tried
        again.
        """
        target = self.logs[part.log]
        data = part.written
        if data is None:  # the log's file has it already
            self._index(target, part)
            return
        if not target.late and not target.failed:
            try:
                self._open(target)
                self._write_before(target)
                write_all(self.disk, target.fd, data, part.offset)
            except FileGone:
                return
            except OSError:
                target.failed = True
            if not target.kept:
                self._let_go(target)
        self._index(target, part)
        if target.late or target.failed:
            target.tail.append(data)
        part.written = None

    def _write_before(self, target: LogCommit) -> None:
        """Write the log's tail first, so that no hole is left before what follows."""
        if target.before and not target.before_written:
            write_all(self.disk, target.fd, target.before, target.log.tail_start)
            target.before_written = True

    def _index(self, target: LogCommit, part: LogAppend) -> None:
        """Make the index entries of an append that its file or its tail has."""
        if target.entries_written == UNKNOWN:
            try:
                found = index.load_end(self.disk, self.files, target.log, target.entries_start)
                target.entries_written, target.last_ms = found[0], max(target.last_ms, found[1])
            except FileGone:
                return
            except OSError:
                pass  # entries wait in memory; the index is read again when they are written
        closed, target.open_entry = extend(
            target.open_entry, target.last_ms, part.offset, part.chunks, part.counts, self.now_ms
        )
        target.closed += closed
        if self.now_ms > target.last_ms:
            target.last_ms = self.now_ms

    def _open(self, target: LogCommit) -> None:
        """Open the log's file, if that is still to be done. Raises FileGone and OSError."""
        if target.fd < 0:
            target.fd = open_log(self.files, target.log, target.log.tail_start, target.made)
            target.made = True
            target.kept = self.room > 0
            self.room -= 1

    def _let_go(self, target: LogCommit) -> None:
        """Close a descriptor: this commit has more logs than descriptors that may stay open."""
        if target.fd >= 0:
            self.disk.close(target.fd)
            target.fd = UNKNOWN


def open_log(files: OpenFiles, log: Log, end: int, made: bool = False) -> int:
    """A descriptor of the log's own file, creating the file if needed. Raises FileGone and OSError.

    `end`: the file was written up to there. If it is shorter, somebody has removed or cut it.
    """
    if log.fresh and not made:
        return files.make(log.file, f"{log.file.path}.stray-{log.id}")
    fd = files.open(log.file, create=True)
    if max(log.first_kept, log.local) < end:
        report_short(files, log, files.size(fd), end)
    return fd


def report_short(files: OpenFiles, log: Log, size: int, end: int) -> None:
    """Report what is lost where a log's file has only `size` of the bytes that were written, up to `end`."""
    if size < end:
        start = max(size, log.first_kept, log.local)
        files.damage.in_log(log.id, log.file.path, start, end - start)


def address_space(size: int) -> mmap.mmap:
    """Address space of the process that nothing is written to: it takes no memory. Raises MemoryError."""
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a bytearray's zeros are written
    except OSError as error:
        raise MemoryError from error


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Committer:
    """One per store; the parts that write beside it share its disk, files, clock, settings and threads.

    `read_only` is final: the journal can no longer be trusted.
    """

    journal: Journal
    disk: Disk
    files: OpenFiles
    clock: Clock
    settings: StorageSettings
    _changed: Callable[[Change], None]
    """Called when a change of the catalog is durable."""
    _undone: Callable[[Change], None]
    """Called when one was rolled back."""
    in_thread: Callable[..., Awaitable[Any]]
    read_only: StoreError | None = None
    replay_lsn: int = 0
    """Where replay begins, as of the last checkpoint's snapshot."""
    full: bool = False
    """Publishing is refused because space is short; see `set_full`."""
    refuses: StoreError | None = None
    came_ms: int | None = None
    """When another store wrote what comes from it: it has these times here, too."""
    """Why nothing is accepted outside of `applying`: the store has what another one wrote, and no more."""
    closed: bool = False
    congested: bool = False
    make_room: Callable[[], Awaitable[bool]] | None = None
    """Waits for the end of a checkpoint, and tells whether it was good: the journal is at its bound."""
    write_tails: Callable[[], Awaitable[None]] | None = None
    """Waits until some tails are written: they take too much memory."""
    request_checkpoint: Callable[[], None] = lambda: None
    """Called after a commit when a checkpoint is due. That is: a segment of the journal is full, there are
    more than `checkpoint_batches`, or recovery of what the journal refers to would take long."""
    checkpoint_batches: int = 0
    referred_bytes: int = 0
    """Written to logs' files alone since the last checkpoint's snapshot: the journal refers to them."""
    look_at_space: Callable[[], None] = lambda: None
    """Called once more than `unlooked_bytes` have been written in all."""
    unlooked_bytes: int = 0
    counts: CommitCounts = attrs.Factory(CommitCounts)
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    _batches: list[CommitBatch] = attrs.Factory(list)
    _busy: bool = False
    _running: bool = False
    _memory_short: bool = False
    spare: mmap.mmap = attrs.Factory(lambda: address_space(_SPARE_BYTES))
    """Memory that a commit gives up where there is no other."""
    _applying: bool = False
    _together: bool = False
    """Inside `together`: all appends go into the newest batch, which is not taken."""
    _wake: trio.Event = attrs.Factory(trio.Event)
    _sync_by: float = math.inf  # monotonic: when written batches must be synced
    _idle: list[Callable[[], None]] = attrs.Factory(list)
    _uncongested: list[Callable[[], None]] = attrs.Factory(list)
    _charged: int = 0
    """Bytes charged for sealed batches that wait. A batch alone is not charged: that saves the books."""
    tails: Tails = attrs.field(init=False)
    shipping: Shipping | None = None
    """Where the journal is shipped."""

    _light_most: int = attrs.field(init=False)
    """An append of at most so many bytes may be light. It fits into the log's tail in any case, and shares an
    index entry with the records before it."""

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        self._light_most = min(ENTRY_COVERS_BYTES, settings.tail_log_bytes // 8 - 1)
        if settings.reference_bytes:
            self._light_most = min(self._light_most, settings.reference_bytes - 1)
        self.tails = Tails(self.settings.tail_log_bytes, self.settings.tail_bytes_max)

    # -- filling batches

    def begin(self, log: Log, size: int, reserved: bool) -> LogAppend:
        """The append to which `size` bytes of `log` are added next. Raises as `Log.append`."""
        asks = self.full or self.refuses is not None  # each append whether it may
        if log.deleted or asks or self.closed or self.read_only is not None:
            self._require_writable(log, reserved)
        batch = self._batch_with_room(size)
        part = batch.append_to(log, log.mode.waits_for)
        if not asks:
            log.pending = part
        return part

    def append_all(
        self, parts: Sequence[tuple[Log, bytes, int]], reserved: bool = False
    ) -> tuple[list[int], Ticket]:
        """Append to several logs, all or nothing, in the strictest of their modes. Raises as `Log.append`."""
        self._require_writable(parts[0][0], reserved)
        size = len(parts) * ENTRY_HEADER_BYTES
        for log, records, _ in parts:  # looked at before anything is done
            if log.deleted:
                self._require_writable(log, reserved)
            size += len(records)
        batch = self._batch_with_room(size)
        together, self._together = self._together, True
        try:
            offsets = [log.append(records, count, reserved)[0] for log, records, count in parts]
        finally:
            self._together = together
        self._sync_creations(batch)
        return offsets, batch.tickets[min([log.mode.waits_for for log, _, _ in parts])]

    @contextmanager
    def together(self, size: int) -> Iterator[CommitBatch]:
        """All appends and gathered records in this context, to whichever logs, are one batch of the journal,
        which it yields. A crash keeps all of them or none, and so does a full disk.

        `size`: about how many bytes they will be. Nothing may be awaited inside. An append that raises has
        appended nothing, but earlier ones stay, so do first what may be refused.
        """
        if self._together:
            raise RuntimeError("what is together already is one batch: it is not nested")
        batch = self._batch_with_room(size)
        self._together = True
        try:
            yield batch
        finally:
            self._together = False
            self._sync_creations(batch)

    @contextmanager
    def applying(self) -> Iterator[None]:
        """In this context appends and changes are accepted though the store `refuses` them."""
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    def _sync_creations(self, batch: CommitBatch) -> None:
        """Have a batch synced, whatever the modes of its logs, where a power cut may still take the CREATE of
        one.

        Such a log would be back by its file, with records of this batch; another's file is cut where the
        journal ends. So half of the batch would be there.
        """
        if batch.created_lsn > self.journal.synced:
            batch.tickets[Mode.SYNCED]

    def add(self, change: Change, mode: Mode, beside: Sequence[tuple[Log, bytes, int]] = ()) -> Ticket:
        """Add a change of the catalog, and leave room for `beside`. Raises StoreReadOnly, StoreClosed."""
        self._require_open()
        room = len(change.body) + sum([len(records) for _, records, _ in beside])
        batch = self._batch_with_room(room + (1 + len(beside)) * ENTRY_HEADER_BYTES)
        batch.add(change)
        batch.tickets[max(mode, Mode.SYNCED)]  # what waits for the bucket is synced first
        return batch.tickets[mode]

    def drop_below(self, log: Log, offset: int) -> Ticket:
        self._require_writable(log, reserved=True)
        if not log.first <= offset <= log.end:
            raise ValueError(f"{offset} is not between {log.first} and {log.end}")
        change = Change(EntryKind.FIRST, log, offset, before=log.first)
        ticket = self.add(change, Mode.SYNCED)
        log.first = offset
        return ticket

    def set_full(self, full: bool) -> None:
        """Whether publishing stops: with `full`, appends that are not `reserved` raise StoreFull."""
        if full and not self.full:
            for batch in self._batches:
                for log in batch.appends:
                    log.pending = None
        self.full = full

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the disk."""
        return sum(batch.bytes for batch in self._batches)

    def _charge(self, size: int) -> None:
        """Charge so many more bytes that wait, or fewer, to the budget."""
        self._charged += size
        self.tails.account.charge(size)

    def _awaited_bytes(self) -> int:
        return sum(batch.awaited_bytes for batch in self._batches)

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        """Call once when the store is not congested, which may be now."""
        if self.congested:
            self._uncongested.append(callback)
        else:
            callback()

    async def between_commits(self, take: Callable[[], T]) -> T:
        """The result of `take`, called between two commits: now, or when the one under way ends. It is not
        called once the caller is cancelled.
        """
        if not self._busy:
            return take()
        taken: list[T] = []
        ready = trio.Event()
        wanted = True

        def take_now() -> None:
            if wanted:
                taken.append(take())
                ready.set()

        self._idle.append(take_now)
        try:
            await ready.wait()
        finally:
            wanted = False
        return taken[0]

    def _require_open(self) -> None:
        """Raise where nothing is accepted any more."""
        if self.closed:
            raise StoreClosed("the store is closed")
        if self.read_only is not None:
            raise StoreReadOnly(str(self.read_only))
        if self.refuses is not None and not self._applying:
            raise StoreReadOnly(str(self.refuses))

    def _require_writable(self, log: Log, reserved: bool) -> None:
        """Raise where nothing may be appended to this log now."""
        self._require_open()
        if log.deleted:
            raise LogDeleted(f"{log.namespace}/{log.name} was deleted")
        if self.full and not reserved:
            raise StoreFull("the file system is short of space")

    def _batch_with_room(self, size: int) -> CommitBatch:
        """The batch being filled, with room for `size` bytes."""
        batches = self._batches
        need = size + ENTRY_HEADER_BYTES
        if batches:
            newest = batches[-1]
            if (newest.room >= need or self._together) and not newest.sealed:
                return newest
            newest.seal()
            self._charge(newest.bytes)
            if self._awaited_bytes() + need > self.settings.pending_bytes_max or self.tails.account.over:
                self.congested = True
        room = max(BATCH_PAYLOAD_MAX, need)
        batch = CommitBatch(room, room, self.clock.monotonic())
        batches.append(batch)
        return batch

    # -- committing

    def commit_pending(self) -> None:
        """At the end of a driver's turn: commit what was appended, now if that is quick, else in a thread."""
        if not self._batches or self._busy or self._together:
            return
        running = self._running
        while not running or self._is_quick():
            commit = self._take()
            try:
                commit.run()
            except MemoryError as error:
                commit.not_run(error)
            self.counts.inline_commits += 1
            self._finish(commit)
            if running or self._busy or not self._batches:
                break
        if running and self._batches:  # too much, or appended by callbacks of this commit
            self._wake.set()

    def sync_journal(self) -> None:
        """Sync what modes `interval` and `none` left unsynced, now. An error makes the store read-only."""
        if self.read_only is None:
            try:
                self.journal.sync()
            except PoisonError as error:
                self.poison(error)
        self._sync_by = math.inf

    def sync_soon(self) -> None:
        """Have the journal synced as soon as the commit under way is over."""
        self._sync_by = -math.inf
        self._wake.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. A commit that has begun is finished, because half a commit has no known
        state.
        """
        self._running = True
        task_status.started()
        try:
            while True:
                if self._batches and self._is_quick():  # it came while a thread committed
                    self.commit_pending()
                elif self._batches:
                    await self._wait_for_room()
                    if not self._batches:
                        continue  # they were committed on the loop meanwhile, or refused
                    sizes = [batch.bytes for batch in self._batches]
                    commit = self._take(None if self.journal.fit_together(sizes) else 1)
                    commit.in_thread = True
                    with trio.CancelScope(shield=True):  # a thread that writes cannot be stopped
                        try:
                            await self.in_thread(commit.run, limiter=self._limiter)
                        except MemoryError as error:
                            commit.not_run(error)
                        except Exception as error:
                            commit.fail(error)
                    self._finish(commit)
                elif (left := self._sync_by - self.clock.monotonic()) <= 0:
                    await self._sync_in_thread()
                else:
                    with trio.move_on_after(left):
                        await self._wake.wait()
                    self._wake = trio.Event()
                await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        finally:
            self._running = False

    def _is_quick(self) -> bool:
        """Whether a commit on the loop costs less than handing it to a thread."""
        settings = self.settings
        if len(self._batches) > 1 or self.tails.crowded:
            return False
        batch = self._batches[0]
        size = batch.bytes_max - batch.room
        if Mode.SYNCED in batch.tickets:
            # A thread costs two switches, and answers go out in more pieces: on a busy loop that is more than
            # a wait, which is no longer than this batch was filled: it takes half of the time at most.
            quick = settings.inline_sync_seconds
            sync_seconds = self.counts.sync_seconds
            if sync_seconds >= quick:
                filling = self.clock.monotonic() - batch.began
                if sync_seconds >= min(filling, _INLINE_BUSY * quick):
                    return False
        return (
            size <= settings.inline_bytes_max
            and (len(batch.appends) <= _INLINE_LOGS_MAX or self._may_be_light(batch))
            and (size <= self.journal.room or self.journal.is_ready(size))
        )

    def _may_be_light(self, batch: CommitBatch) -> bool:
        """Whether nearly all of its appends will probably be light: the batch has few bytes, so few of them
        are large."""
        few = len(batch.appends) <= _INLINE_LIGHT_MAX and batch.with_files <= _INLINE_LOGS_MAX
        return few and self._light_most > 0 and not batch.changes

    async def _wait_for_room(self) -> None:
        """Wait until there is room for the next batch, in the tails and in the journal."""
        if self.tails.crowded and self.write_tails is not None:
            await self.write_tails()
        while self._batches and not self.journal.fits(self._batches[0].bytes):
            # A checkpoint that was under way may free too little; one that begins now frees enough.
            if self.make_room is None or not await self.make_room():
                break

    async def _sync_in_thread(self) -> None:
        """Sync what modes `interval` and `none` left unsynced, in its time."""
        self._busy = True
        began = self.clock.monotonic()
        self._sync_by = math.inf
        try:
            with trio.CancelScope(shield=True):
                await self.in_thread(self.journal.sync, limiter=self._limiter)
        except PoisonError as error:
            self._busy = False
            self.poison(error)
        else:
            self.counts.count_sync(self.clock.monotonic() - began, in_thread=True)
            self._busy = False
        self._run_idle()

    def _take(self, count: int | None = None) -> Commit:
        """Take the oldest batches, or all, as one commit, and say which way each append
        goes. Small ones become rows of `light`; of the others see `_take_log`.
        """
        if count is None:
            count = len(self._batches)
        batches = self._batches[:count]
        del self._batches[:count]
        self._busy = True
        commit = Commit(batches, self, self.clock.wall_ms() if self.came_ms is None else self.came_ms)
        try:
            self._sort(commit)
        except MemoryError as error:
            commit.error = error
        return commit

    def _sort(self, commit: Commit) -> None:
        """Say which way each append of the commit goes. MemoryError: nothing of it may be written.

        A log has one way in a commit, whatever batches its appends are in: all of them are gathered before
        anything is said of one. So nothing depends on the order of batches.
        """
        begins: dict[Log, int] = {}
        heavy: dict[Log, list[LogAppend]] = {}
        light_most = self._light_most
        synced = False
        for batch in commit.batches:
            batch.seal()
            synced = synced or Mode.SYNCED in batch.tickets
            for log, part in batch.appends.items():
                if (
                    part.end - begins.setdefault(log, part.offset) > light_most
                    or log.entries_written == UNKNOWN
                ):
                    heavy[log] = []
        for batch in commit.batches:
            appends, light, of_namespace = batch.appends, batch.light, batch.records
            for log, part in appends.items():
                chunks, counts = part.chunks, part.counts
                records = counts[0] if len(counts) == 1 else sum(counts)
                of_namespace[log.namespace] = of_namespace.get(log.namespace, 0) + records
                if log in heavy:
                    part.records = records
                    heavy[log].append(part)
                else:  # a log costs a commit 1.3 us so, and 7 us with a `LogCommit`
                    light.append((log, part.offset, b"".join(chunks), records))
            batch.appends = {log: appends[log] for log in heavy if log in appends}
        for log, parts in heavy.items():
            commit.logs[log] = self._take_log(log, parts, synced=synced)
        commit.room = self.files.room

    def _take_log(self, log: Log, parts: Sequence[LogAppend], *, synced: bool) -> LogCommit:
        """Say which way the appends of a log go that is not light.

        The log is busy, and its file is pinned, until `_finish`.
        """
        late = self.tails.takes(log, parts[-1].end - parts[0].offset)
        before = log.tail if not late else bytearray()  # first: it may take memory that is not there
        target = LogCommit(log, UNKNOWN if late else self.files.pin(log.file), late)
        target.before = before
        refers = synced and not late and self._may_refer(log)
        for part in parts:
            # What goes to the file before the sync must not leave a hole before it.
            refers = refers and part.end - part.offset >= self.settings.reference_bytes
            part.by_reference = refers
        return target

    def _may_refer(self, log: Log) -> bool:
        """Whether a log's bytes may go to its file before the journal mentions them.

        A file in mode `always` with bytes beyond the journal normally proves that the journal is damaged. So
        recovery must know: a batch within the replayed part says so, and is synced.
        """
        return self.settings.reference_bytes > 0 and self.replay_lsn <= log.ahead_lsn < self.journal.synced

    # -- publishing the outcome

    def _finish(self, commit: Commit) -> None:
        """Publish the outcome of a commit. In this order: whoever waits for a ticket finds everything else in
        place.
        """
        try:
            now = self.clock.monotonic()
            counts, journal = self.counts, self.journal
            good = commit.batches[: commit.good]
            failure = commit.error  # a poison sets `read_only`
            if isinstance(failure, MemoryError):
                self._say_memory_is_short()
            error = None if failure is None else error_for_unwritten(failure)
            watched = self._publish_logs(commit, now) if commit.logs else []
            counts.commits += 1
            if commit.synced:
                counts.count_sync(commit.sync_seconds, in_thread=commit.in_thread)
                self._sync_by = math.inf
            for batch in good:
                if batch.light:
                    watched += self.tails.add_light(batch.light, commit.now_ms, now)
                if journal.unsynced and not commit.synced:
                    self._sync_by = min(self._sync_by, now + batch.interval_seconds)
                size = batch.bytes_max - batch.room
                counts.bytes += size
                if size > counts.batch_bytes_max:
                    counts.batch_bytes_max = size
                for namespace, records in batch.records.items():
                    if records:
                        counts.records += records
                        counts.ack_seconds[namespace].observe(now - batch.began, records)
            for batch in good:
                for change in batch.changes:
                    self._changed(change)
            if watched:
                self._call_watchers(watched)
            if commit.poison is not None:
                self._set_read_only(commit.poison)
            if self.shipping is not None:
                self.shipping.refers(commit.references)
                for batch in good:
                    self.shipping.take(batch.tickets)
            for batch in good:
                batch.end(None)
            if self.read_only is not None or error is not None:
                self._fail(commit.batches[commit.good :], self.read_only or error)
            if (
                journal.old
                or journal.batches > self.checkpoint_batches
                or self.referred_bytes > self.settings.checkpoint_direct_bytes
            ):
                self.request_checkpoint()
            if counts.bytes > self.unlooked_bytes:
                self.look_at_space()
            if self._charged or self.congested:
                self._resume_waiting()
            self._busy = False
            if self._running and self._sync_by < math.inf:
                self._wake.set()
            if self._idle:
                self._run_idle()
        except Exception as error:
            self._give_up(commit, error)

    def _say_memory_is_short(self) -> None:
        if not self._memory_short:
            self._memory_short = True
            logger.error(
                "the system gives the server no memory: what was to be written is refused, all else goes on; "
                "raise the limit (`ulimit -v`, the control group), or have fewer clients"
            )

    def look_at_memory(self) -> None:
        """Once a second: keep memory for commits that cannot do without, if there is some again."""
        if self.spare.closed:
            try:
                self.spare = address_space(_SPARE_BYTES)
            except MemoryError:
                self._say_memory_is_short()
                return
        self._memory_short = False

    def _publish_logs(self, commit: Commit, now: float) -> list[Log]:
        """Update the logs of which a commit touched more than the tail, and make what is durable of them
        visible; returns those that somebody watches.
        """
        moved: dict[Log, None] = {}
        for target in commit.logs.values():
            target.unpin(self.files)
        for batch in commit.batches[: commit.good]:
            for log, part in batch.appends.items():
                log.visible = part.end
                moved[log] = None
        for log in moved:
            target = commit.logs[log]
            target.publish(self.tails, now)
            self.referred_bytes += target.referred_bytes
        self.tails.charge()
        self.tails.unindexed |= moved
        self.tails.unlooked |= moved
        self.tails.dirty |= moved  # before changes of the catalog: a deleted log leaves both again
        return [log for log in moved if log.watchers or log.advanced is not None]

    def _call_watchers(self, watched: Iterable[Log]) -> None:
        """Tell those who watch these logs of new visible records."""
        for log in watched:
            if log.advanced is not None:
                call(log.advanced, log)
            for watcher in tuple(log.watchers):
                call(watcher, log)

    def _give_up(self, commit: Commit, error: Exception) -> None:
        """A bug in publishing must not leave anyone waiting, nor block closing the store."""
        self._busy = False
        self.poison(commit.fail(error))
        self._roll_back(log for batch in commit.batches for log in batch.logs)
        for batch in commit.batches:
            batch.end(self.read_only)
        self._run_idle()

    def _resume_waiting(self) -> None:
        """Less waits for the disk than before: adjust the charge, and resume those that wait for it."""
        self._charge(sum(batch.bytes for batch in self._batches[:-1]) - self._charged)
        if self.congested and self._awaited_bytes() <= self.settings.pending_bytes_max // 2:
            self.congested = False
            callbacks, self._uncongested = self._uncongested, []
            for callback in callbacks:
                call(callback)

    def poison(self, error: PoisonError) -> None:
        """Final: nothing pending is acknowledged, nothing more is accepted; reads go on."""
        self._set_read_only(error)
        if not self._busy:  # otherwise the end of the commit under way fails what is pending
            self._fail([], self.read_only)
            self._resume_waiting()

    def _set_read_only(self, error: PoisonError) -> None:
        """Accept nothing more, and say so once."""
        if self.read_only is None:
            text = f"{error}: {describe(error.__cause__)}" if error.__cause__ is not None else str(error)
            self.read_only = StoreReadOnly(f"read-only until a restart: {text}")
            logger.critical(
                f"the store is read-only: nothing more is accepted, what is stored is served; {error.advice}",
                reason=text,
            )
            for batch in self._batches:
                batch.seal()  # so that appends take the slow path, and are refused
            if self._sync_by < math.inf:
                logger.critical(
                    "records of mode interval that were acknowledged since the last sync may be lost; "
                    "after the restart compare with their producers, and have them send what is missing"
                )

    def _fail(self, batches: list[CommitBatch], error: StoreError | None) -> None:
        """Roll back these batches and everything behind them."""
        assert error is not None
        failed = batches + self._batches
        self._batches = []
        for batch in failed:
            batch.seal()
        for batch in reversed(failed):
            for change in reversed(batch.changes):
                self._undone(change)
        self._roll_back(dict.fromkeys(log for batch in failed for log in batch.logs))
        for batch in failed:
            batch.end(error)

    def _roll_back(self, logs: Iterable[Log]) -> None:
        """Forget what was appended to these logs and is not durable."""
        for log in logs:
            log.end = log.visible
            if log.rolled_back is not None:
                call(log.rolled_back, log)

    def _run_idle(self) -> None:
        """Run what waits for a moment between two commits."""
        while self._idle and not self._busy:
            self._idle.pop(0)()
