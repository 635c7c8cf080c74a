"""A commit: the blocking work that makes batches durable, in a thread or on the loop.

A `Commit` takes sealed batches to the disk and holds the outcome, which the `Committer` publishes. Everything
that blocks is here and touches no shared state; shared state changes in the trio thread.
"""

from collections.abc import Sequence

import attrs
import structlog

from shared.storage import index
from shared.storage.disk import Clock, Disk, write_all, write_pieces
from shared.storage.entries import ENTRY_COVERS_SECONDS, crc_of, extend
from shared.storage.files import FileGone, OpenFiles
from shared.storage.format import (
    AHEAD,
    BATCH_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    REFERENCE_BYTES,
    EntryKind,
    IndexEntry,
    pack_entry,
    pack_entry_header,
    pack_reference,
)
from shared.storage.journal import Journal, PoisonError
from shared.storage.log import UNKNOWN, CommitBatch, Log, LogAppend, opaque
from shared.storage.settings import Mode
from shared.storage.tails import Tails

logger = structlog.stdlib.get_logger("brokers.storage")

# Looking up an enum member takes as long as packing the entry.
_APPEND, _REFERENCE = int(EntryKind.APPEND), int(EntryKind.REFERENCE)


@attrs.define(eq=False, weakref_slot=False, repr=False, field_transformer=opaque)
class LogCommit:
    """What a commit does to one log, and the outcome."""

    log: Log
    fd: int
    late: bool = False  # the log's tail gets the records; its file is not touched
    kept: bool = True  # a descriptor opened here stays open for later commits
    before: bytearray = attrs.Factory(bytearray)  # the log's tail, written to the file first
    before_written: bool = False
    refers: bool = False  # the journal may refer to bytes in the log's file
    named: bool = False  # the file's name is synced
    referred_offset: int = 0
    referred_bytes: int = 0  # from `referred_offset` on: bytes that the journal refers to
    ahead_lsn: int = UNKNOWN  # of a batch that says that the log's file may be ahead of the journal
    made: bool = False  # the log's own file exists
    index_fd: int = UNKNOWN
    pinned_index_fd: int = UNKNOWN
    open_entry: IndexEntry | None = attrs.field(init=False)
    last_ms: int = attrs.field(init=False)
    entries_written: int = attrs.field(init=False)
    entries_start: int = attrs.field(init=False)
    closed: list[IndexEntry] = attrs.Factory(list)
    tail: list[memoryview] = attrs.Factory(list)  # added to the log's tail
    failed: bool = False  # the log's file refused a write
    waiting_entries: Sequence[IndexEntry] = ()
    direct_meant: bool = False  # some of it will go around the journal: the index is pinned too
    direct: bool = False  # some of it has gone around the journal

    def __attrs_post_init__(self) -> None:
        log = self.log
        log.busy = True
        self.open_entry = log.open_entry
        self.last_ms = log.last_ms
        self.entries_written = log.entries_written
        self.entries_start = log.entries_start if log.entries_written == UNKNOWN else 0

    def pin_for_direct(self, index_fd: int) -> None:
        self.direct_meant = True
        self.index_fd = self.pinned_index_fd = index_fd
        self.waiting_entries = self.log.closed_entries[:]  # copied: the `LogWriter` may write them meanwhile

    def close_entry(self) -> None:
        """Close the open entry: what it covers is synced. If it also covered later bytes, and those were
        lost, nothing would vouch for the synced ones.
        """
        if self.open_entry is not None:
            self.closed.append(self.open_entry)
            self.open_entry = None

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
        elif self.fd >= 0:  # opened to sync what went around the journal
            files.adopt(log.file, self.fd)
        if self.direct_meant:
            files.unpin(log.index_file, self.index_fd)

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
        if self.direct:
            log.entries_reached(self.entries_written + len(self.waiting_entries) + len(self.closed))
            log.direct_dirty = True
        if entry is not None and now - log.open_since >= ENTRY_COVERS_SECONDS:
            log.close_entry()
        if self.referred_bytes:
            log.referred_from = min(log.referred_from, self.referred_offset)
        log.last_ms = self.last_ms


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class Commit:
    """Batches on their way to the disk. `run()` blocks, in any thread; then the outcome is:

    the first `good` batches are durable; `poison` or `error` says what happened to the others.
    `direct_error`: in all batches, what goes around the journal was not written. `LogCommit.tail` has what is
    not yet in a log's own file.
    """

    batches: list[CommitBatch]
    logs: dict[Log, LogCommit]
    """All logs but those with light appends."""
    journal: Journal
    disk: Disk
    files: OpenFiles
    clock: Clock
    now_ms: int
    room: int
    """Descriptors opened here that may stay open."""
    sync_direct_first: bool
    """Some log has bytes around the journal that were never synced."""
    reference_bytes: int
    """From this many bytes on, a log's records may later go to its file alone; 0: never."""
    in_thread: bool = False
    """Runs in a thread, beside the loop."""
    good: int = 0
    error: OSError | None = None
    poison: PoisonError | None = None
    direct_error: OSError | None = None
    sync_seconds: float = 0.0
    synced: bool = False
    direct_synced: set[Log] = attrs.Factory(set)
    _referred: dict[LogCommit, None] = attrs.Factory(dict)
    """Logs whose files have unsynced bytes that the journal refers to."""

    def run(self) -> None:
        """Write, sync, then update the logs' files. Never raises: the outcome is in the fields."""
        to_sync = False
        try:
            try:
                if self.sync_direct_first:
                    self._sync_direct()
                for batch in self.batches:
                    self._write(batch)
                    self.good += 1
                    to_sync |= Mode.SYNCED in batch.tickets
            except OSError as error:
                self.error = error
                self._cut_references(self.batches[self.good])
            if to_sync or self._referred:
                self._sync()
            first = self.batches[0]
            if self.logs or first.changes or not first.light:  # light appends alone have no files
                self._apply(self.batches[: self.good])
        except PoisonError as error:
            self.poison = error
            self.good = 0
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> PoisonError:
        """A bug: what it left on the disk is unknown."""
        logger.error(
            "a commit crashed; nothing more is written until a restart; report this bug", exc_info=error
        )
        self.poison = poison = PoisonError("a commit crashed")
        poison.__cause__ = error
        self.good = 0
        return poison

    def _sync_direct(self) -> None:
        """Sync what went around the journal before the journal mentions those logs."""
        for batch in self.batches:
            logs = {part.log for part in batch.appends.values() if part.journaled}
            logs.update(change.log for change in batch.changes if change.kind is EntryKind.FIRST)
            for log in logs:
                if log.direct_dirty and not log.file.gone and log not in self.direct_synced:
                    target = self.logs[log]
                    self._open(target)
                    try:
                        self._sync_by_name(target)
                    except FileGone:
                        continue
                    except OSError as error:
                        raise PoisonError(f"{log.file.path} could not be synced") from error
                    self.direct_synced.add(log)
                    target.close_entry()

    def _sync_by_name(self, target: LogCommit) -> None:
        """Recovery finds these bytes by the files' names, and trusts them by their index entries: sync all
        that.
        """
        self.disk.sync_data(target.fd)
        with self.files.opened(target.log.index_file) as index_fd:
            self.disk.sync_data(index_fd)
        self.disk.sync_folder(target.log.namespace)
        self.disk.sync_folder("")

    def _write(self, batch: CommitBatch) -> None:
        """Write one batch to the journal.

        Raises OSError if nothing of it was written, PoisonError if that is unknown.
        """
        if batch.broken is not None:
            raise PoisonError("what was promised to a batch is not in it") from batch.broken
        pieces: list[bytes | memoryview] = []
        size = 0
        for change in batch.changes:
            pieces.append(pack_entry(change.kind, change.log.id, change.offset, len(change.body)))
            pieces.append(change.body)
            size += ENTRY_HEADER_BYTES + len(change.body)
        if batch.each:
            batch.make_rows()
        entries = len(batch.changes) + len(batch.light)
        for log, offset, records, count in batch.light:
            pieces.append(pack_entry_header(_APPEND, 0, count, log.id, offset, len(records)))
            pieces.append(records)
            size += ENTRY_HEADER_BYTES + len(records)
        placed: list[tuple[LogAppend, int, int]] = []
        ahead: list[LogCommit] = []
        for part in batch.appends.values():
            if not part.journaled:
                continue
            entries += 1
            size += ENTRY_HEADER_BYTES
            length = part.end - part.offset
            if part.by_reference and self._write_by_reference(part):
                crc = crc_of(part.chunks)
                pieces.append(pack_entry(_REFERENCE, part.log.id, part.offset, REFERENCE_BYTES, part.records))
                pieces.append(pack_reference(length, crc))
                size += REFERENCE_BYTES
                continue
            flags = 0
            if 0 < self.reference_bytes <= length:
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
        for target in ahead:
            target.ahead_lsn = self.journal.position - len(batch_bytes)

    def _write_by_reference(self, part: LogAppend) -> bool:
        """Write to the log's own file; False if that fails, so that the journal must take the bytes."""
        target = self.logs[part.log]
        if target.failed:
            return False
        try:
            self._open(target)
            self._referred[target] = None
            self._write_before(target)
            write_pieces(self.disk, target.fd, part.chunks, part.offset, passing=part.log.unawaited)
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
            self.disk.sync_many([target.fd for target in self._referred])
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
        for target in self._referred:
            target.named = True
            if not target.kept:
                self._let_go(target)
        self._referred.clear()

    def _sync(self) -> None:
        began = self.clock.monotonic()
        if self._referred:
            try:
                self._sync_names()
            except OSError as error:
                raise PoisonError("a log's name could not be synced") from error
            self.journal.sync([target.fd for target in self._referred])
            self._referred_are_synced()
        else:
            self.journal.sync()
        self.sync_seconds = self.clock.monotonic() - began
        self.synced = True

    # -- after the sync: the logs' own files

    def _apply(self, good: list[CommitBatch]) -> None:
        """Update the logs' files. What goes around the journal is there or nowhere: a failure is
        `direct_error`.
        """
        direct: list[LogAppend] = []
        for batch in good:
            for change in batch.changes:
                if change.kind is EntryKind.DELETE:
                    self._remove(change.log)
            for part in batch.appends.values():
                if part.journaled:
                    self._apply_journaled(part)
                else:
                    direct.append(part)
        if direct:
            try:
                for part in direct:
                    self._apply_direct(part)
            except OSError as error:
                self.direct_error = error
            else:
                self._write_direct_entries()
            if self.direct_error is not None and self.poison is None:  # else entries may cover those bytes
                self._take_back_direct(direct)

    def _remove(self, log: Log) -> None:
        for file in (log.index_file, log.file):
            try:
                self.files.remove(file)
            except OSError:
                pass  # the next start removes it: the journal says that the log is deleted

    def _apply_journaled(self, part: LogAppend) -> None:
        """The journal has the records, so if the file refuses them the tail keeps them and they are tried
        again.
        """
        target = self.logs[part.log]
        data, part.written = part.written, None
        if data is None:  # the log's file has it already
            self._index(target, part)
            return
        if not target.late and not target.failed:
            try:
                self._open(target)
                self._write_before(target)
                write_all(self.disk, target.fd, data, part.offset, passing=part.log.unawaited)
            except FileGone:
                return
            except OSError:
                target.failed = True
            if not target.kept:
                self._let_go(target)
        if target.late or target.failed:
            target.tail.append(data)
        self._index(target, part)

    def _write_before(self, target: LogCommit) -> None:
        """Write the log's tail first, so that no hole is left before what follows."""
        if target.before and not target.before_written:
            write_all(self.disk, target.fd, target.before, target.log.tail_start)
            target.before_written = True

    def _apply_direct(self, part: LogAppend) -> None:
        target = self.logs[part.log]
        try:
            self._open(target)
            write_pieces(self.disk, target.fd, part.chunks, part.offset, passing=part.log.unawaited)
        except FileGone:
            return
        finally:
            if not target.kept:
                self._let_go(target)
        target.direct = True
        self._index(target, part)

    def _index(self, target: LogCommit, part: LogAppend) -> None:
        if target.entries_written == UNKNOWN:
            try:
                found = index.load_end(self.disk, self.files, target.log, target.entries_start)
                target.entries_written, target.last_ms = found[0], max(target.last_ms, found[1])
            except FileGone:
                return
            except OSError:
                if not part.journaled:
                    raise
                # Entries wait in memory; the index is read again when they are written.
        closed, target.open_entry = extend(
            target.open_entry, target.last_ms, part.offset, part.chunks, part.counts, self.now_ms
        )
        target.closed += closed
        if self.now_ms > target.last_ms:
            target.last_ms = self.now_ms

    def _write_direct_entries(self) -> None:
        """Write index entries with the bytes: recovery finds bytes around the journal by their entries."""
        for target in self.logs.values():
            if target.direct:
                newest = [] if target.open_entry is None else [target.open_entry]
                try:
                    self._write_entries(target, [*target.waiting_entries, *target.closed, *newest])
                except FileGone:
                    pass
                except OSError as error:
                    self.direct_error = error
                    self._take_back_direct_entries()
                    return
                finally:
                    if not target.kept:
                        self._let_go(target)

    def _take_back_direct(self, direct: Sequence[LogAppend]) -> None:
        """Cut off refused bytes: left behind a log's end, they would make the catalog look outdated after a
        stop.
        """
        firsts = {part.log: part.offset for part in reversed(direct)}
        for log, offset in firsts.items():
            target = self.logs[log]
            try:
                self._open(target)
                self.disk.truncate(target.fd, offset)
            except (OSError, FileGone):
                pass  # a later append overwrites them
            finally:
                if not target.kept:
                    self._let_go(target)

    def _take_back_direct_entries(self) -> None:
        """Remove entries of refused bytes: they would not match what is written there next."""
        for target in self.logs.values():
            if target.direct:
                before = [*target.waiting_entries]
                if target.log.open_entry is not None:
                    before.append(target.log.open_entry)
                try:
                    self._write_entries(target, before)
                    end = index.entry_position(target.entries_written + len(before))
                    self.disk.truncate(target.index_fd, end)
                except OSError as error:
                    self.poison = PoisonError(f"{target.log.index_file.path} could not be written")
                    self.poison.__cause__ = error

    def _write_entries(self, target: LogCommit, entries: Sequence[IndexEntry]) -> None:
        if target.index_fd < 0:
            target.index_fd = index.open_at(self.disk, self.files, target.log, target.entries_written)
        index.write_packed(self.disk, target.index_fd, target.log, target.entries_written, entries)

    def _open(self, target: LogCommit) -> None:
        if target.fd < 0:
            target.fd = open_log(self.files, target.log, target.made)
            target.made = True
            target.kept = self.room > 0
            self.room -= 1

    def _let_go(self, target: LogCommit) -> None:
        """Close a descriptor: this commit has more logs than descriptors that may stay open."""
        if target.fd >= 0:
            self.disk.close(target.fd)
            target.fd = UNKNOWN
        if target.index_fd != target.pinned_index_fd:
            self.disk.close(target.index_fd)
            target.index_fd = target.pinned_index_fd


def open_log(files: OpenFiles, log: Log, made: bool = False) -> int:
    """A descriptor of the log's own file, creating the file if needed. Raises FileGone and OSError."""
    if log.fresh and not made:
        return files.make(log.file, f"{log.file.path}.stray-{log.id}")
    return files.open(log.file, create=True)
