"""A data folder as it would be after recovery, without writing a byte.

The broker's own recovery writes what the journal holds into the log files. Here the journal's bytes are laid
over the files' in memory instead. So tools see the same records on a folder that they may only read.

While a broker runs, the journal moves under a reader; then `live` is True, the journal only tells which logs
there are, and each log ends where its index does. STORAGE.md says what a process that only reads the files
may trust.
"""

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path

import attrs
from crc32c import crc32c

from shared.errors import LogMissing, StoreFormat, StoreInUse
from shared.storage import catalog as catalog_file
from shared.storage import format, index, replay
from shared.storage.catalog import Catalog
from shared.storage.disk import Disk, opened
from shared.storage.entries import ENTRY_COVERS_BYTES
from shared.storage.format import FORMAT_PATH, EntryKind, IndexEntry
from shared.storage.index import IndexFile
from shared.storage.lock import FolderLock
from shared.storage.os_disk import OsDisk
from shared.storage.recovery import format_number
from shared.storage.replay import JournalChanges, Pieces, Replay, Segments

_LOOKS_MAX = 10
"""At a live folder whose checkpoints keep overtaking us; then what was seen last must do."""


@attrs.define(eq=False)
class LogView:
    """A log. `synced_end`: the catalog's end, up to which the file itself must be good. Below `local` its
    bytes are in the bucket only.

    `patches`: bytes of it that stand in the journal. `references`: bytes of its file whose CRCs stand there.
    `hinted`: what a damaged place there seems to have had of it.
    """

    id: int
    namespace: str
    name: str
    file: str
    mode: str
    created_ms: int
    first: int
    end: int
    local: int
    synced_end: int
    patches: Pieces = attrs.Factory(list)
    references: Pieces = attrs.Factory(list)
    hinted: Pieces = attrs.Factory(list)

    def patches_in(self, start: int, stop: int) -> Pieces:
        """The patches that touch [start, stop)."""
        low = bisect_right(self.patches, start, key=lambda patch: patch.end)
        high = bisect_left(self.patches, stop, key=lambda patch: patch.offset)
        return self.patches[low:high]

    @property
    def log_path(self) -> str:
        return f"{self.namespace}/{self.file}.log"

    @property
    def index_path(self) -> str:
        return f"{self.namespace}/{self.file}.idx"


@attrs.define(eq=False)
class FolderView:
    """A data folder, opened for reading. `deleted`: logs whose files may still be there. `unmade`: how much
    the journal has of logs whose making it has lost, by id."""

    disk: Disk
    catalog: Catalog
    journal: Replay | None
    live: bool
    logs: dict[int, LogView]
    deleted: list[LogView]
    bad_entries: int = 0
    unmade: dict[int, int] = attrs.Factory(dict)

    def find(self, namespace: str, name: str) -> LogView | None:
        return next(
            (log for log in self.logs.values() if (log.namespace, log.name) == (namespace, name)), None
        )

    def sorted_logs(self) -> list[LogView]:
        return sorted(self.logs.values(), key=lambda log: (log.namespace, log.name))

    def read_index(self, log: LogView) -> IndexFile | None:
        """A log's index; None where there is none, or no entry of it is this log's."""
        return index.read_index_of(self.disk, log.index_path, log.id, log.created_ms)

    def header_is_good(self, log: LogView) -> bool:
        """Whether the index says in front whose it is."""
        return index.owner(self.disk, log.index_path) == log.id

    @contextmanager
    def reader(self, log: LogView) -> "Iterator[LogReader]":
        """A reader of a log's bytes, as long as the context lasts."""
        with Segments(self.disk) as segments, ExitStack() as stack:
            fd: int | None = None
            with suppress(FileNotFoundError):
                fd = stack.enter_context(opened(self.disk, log.log_path))
            yield LogReader(self.disk, log, fd, segments)


@attrs.define(eq=False)
class LogReader:
    """Reads a log's bytes, the journal's laid over the file's."""

    _disk: Disk
    _log: LogView
    _fd: int | None
    _segments: Segments

    @property
    def file_size(self) -> int | None:
        """The log file's length; None where it is not there."""
        return None if self._fd is None else self._disk.size(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer where neither file nor journal has more."""
        data = self._disk.read(self._fd, length, offset) if self._fd is not None else b""
        patches = self._log.patches_in(offset, offset + length)
        if not patches:
            return data
        laid = bytearray(data)
        for patch in patches:
            start = max(patch.offset, offset)
            stop = min(patch.end, offset + length)
            place = patch.position + start - patch.offset
            laid.extend(bytes(max(0, start - offset - len(laid))))
            laid[start - offset : stop - offset] = self._segments.read(patch.segment, stop - start, place)
        return bytes(laid)

    def records(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Whole records from `start`, a record's start, as (offset, payload), up to `stop` or a tear."""
        position = start
        while position < stop:
            data = self.read(position, min(ENTRY_COVERS_BYTES, stop - position))
            if len(data) < format.LENGTH_BYTES:
                return
            size = format.LENGTH_BYTES + format.length_at(data, 0)[0]
            if position + size > stop:
                return
            if size > len(data):
                data = self.read(position, size)
                if len(data) < size:
                    return
            at = 0
            while at + format.LENGTH_BYTES <= len(data):
                end = at + format.LENGTH_BYTES + format.length_at(data, at)[0]
                if end > len(data):
                    break
                yield position + at, data[at + format.LENGTH_BYTES : end]
                at = end
            position += at


@contextmanager
def held(folder: Path, *, live_allowed: bool) -> Iterator[tuple[OsDisk, bool]]:
    """The folder, for reading, locked against brokers where that can be; and whether a broker has the lock.

    Raises StoreInUse for that, unless `live_allowed`.
    """
    with OsDisk(folder, create=False, read_only=True) as disk, ExitStack() as stack:
        check_format(disk, folder, may_be_damaged=True)  # before a lock file is left in a stranger's folder
        live = False
        try:
            stack.enter_context(FolderLock.take(folder))
        except StoreInUse:
            if not live_allowed:
                raise
            live = True
        except OSError as error:
            if error.errno != errno.EROFS:  # where nobody can write, no broker runs
                raise
        yield disk, live


@contextmanager
def viewing(folder: Path, *, live_allowed: bool = True) -> Iterator[FolderView]:
    """A `FolderView` of the folder, as long as the context lasts.

    Raises StoreInUse as `held` does, and OSError. Raises StoreFormat where the folder is not one of ours or
    newer (DamagedFile where its FORMAT or CATALOG is lost).
    """
    with held(folder, live_allowed=live_allowed) as (disk, live):
        check_format(disk, folder)
        yield look(disk, live=live)


class DamagedFile(StoreFormat):
    """FORMAT or CATALOG (`path`) cannot be read, and without it nothing else can."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path} {text}")
        self.path = path


def check_format(disk: Disk, folder: Path | str = "this", *, may_be_damaged: bool = False) -> None:
    """Raises StoreFormat unless this is a data folder that we can read; DamagedFile where it once was one.

    `folder`: what people call it.
    """
    number = format_number(disk)
    if number is None and catalog_file.PATH not in disk.names(""):
        raise StoreFormat(f"{folder} is not a data folder: it has no file FORMAT")
    if not number and not may_be_damaged:
        raise DamagedFile(FORMAT_PATH, "is missing" if number is None else "is damaged")
    if number and number > format.FORMAT_NUMBER:
        raise StoreFormat(f"{folder} has format {number}; this program reads {format.FORMAT_NUMBER}")


def look(disk: Disk, *, live: bool = False) -> FolderView:
    """The view of a folder's files. Raises DamagedFile where it has no good catalog, and OSError."""
    view = _look(disk, live)
    for log in view.logs.values():
        if live or (log.mode == "none" and not view.catalog.all_journaled):
            _end_with_index(view, log)
    return view


def logs_now(disk: Disk) -> dict[int, LogView]:
    """Every log that there is, by id, without its end; a broker may run. Raises as `look` does."""
    return _look(disk, live=True).logs


def _look(disk: Disk, live: bool) -> FolderView:
    view = _apply_journal(disk, live)
    looks = 1
    # A checkpoint frees segments under us, but only after its catalog is in place, which tells on it.
    while live and looks < _LOOKS_MAX and _catalog(disk).replay_lsn != view.catalog.replay_lsn:
        view = _apply_journal(disk, live)
        looks += 1
    return view


def _apply_journal(disk: Disk, live: bool) -> FolderView:
    """What catalog and journal say. Of a live one only which logs there are: it moves on as we read."""
    found = _catalog(disk)
    view = FolderView(disk, found, None, live, {}, [])
    changes = JournalChanges()
    try:
        journal = replay.scan(disk, found.journal_id, found.replay_lsn, found.logs)
        for batch, payload in replay.read_payloads(disk, journal.batches):
            entries = format.unpack_entries(payload, batch.batch.entries)
            changes.bad_entries += entries is None  # it changed since the scan
            for entry in entries or []:
                if live and entry.kind in (EntryKind.APPEND, EntryKind.REFERENCE):
                    continue  # a log's end is its index's
                try:
                    changes.take(batch, entry, payload)
                except (ValueError, TypeError):
                    changes.bad_entries += 1
    except FileNotFoundError:
        if not live:
            raise
    else:
        view.journal = None if live else journal
        changes.hint(journal.hinted)
    _apply(view, changes)
    return view


def _catalog(disk: Disk) -> Catalog:
    try:
        found = catalog_file.read(disk)
    except ValueError:
        raise DamagedFile(catalog_file.PATH, "is damaged") from None
    if found is None:
        raise DamagedFile(catalog_file.PATH, "is missing")
    return found


def _apply(view: FolderView, changes: JournalChanges) -> None:
    view.bad_entries = changes.bad_entries
    synced_ends = {line.id: line.end for line in view.catalog.logs}
    lines = changes.created | {line.id: line for line in view.catalog.logs}
    for line in lines.values():
        log = LogView(*line, synced_end=synced_ends.get(line.id, 0))
        log.mode = changes.mode.get(line.id, line.mode)
        log.first = max(line.first, changes.first.get(line.id, 0))
        if pieces := changes.pieces.get(line.id):
            log.patches = [piece for piece in pieces if piece.crc32c is None]
            log.references = [piece for piece in pieces if piece.crc32c is not None]
            log.end = max(line.end, *(piece.end for piece in pieces))
        log.hinted = changes.hinted.get(line.id, [])
        if line.id in changes.deleted:
            view.deleted.append(log)
        else:
            view.logs[line.id] = log
    for log_id, pieces in changes.pieces.items():
        if log_id >= view.catalog.next_log_id and not (log_id in lines or log_id in changes.deleted):
            view.unmade[log_id] = sum(piece.length for piece in pieces)


def _end_with_index(view: FolderView, log: LogView) -> None:
    """A log's end where the journal does not tell: behind the last entry of its index.

    In mode `none` it is the last one whose bytes agree (STORAGE.md, Modes).
    """
    found = view.read_index(log)
    if found is None:
        return
    if view.live:
        log.end = max(found.end or 0, log.first)
        return
    with view.reader(log) as reader:
        for entry in reversed(found.entries):
            if entry is None or entry.end <= log.end:
                continue
            if crc32c(reader.read(entry.offset, entry.length)) == entry.crc32c:
                log.end = entry.end
                return


class Trust(Enum):
    """How far a range can be trusted."""

    GOOD = "good"  # its CRC, made when it was written, agrees
    UNVERIFIED = "unverified"  # its CRC was made later, when an index was rebuilt, and agrees
    UNCOVERED = "uncovered"  # whole records, but nothing says that they are the ones written
    REMOTE = "remote"  # in the bucket only
    DAMAGED = "damaged"


@attrs.frozen
class CheckedRange:
    """`length` bytes of a log from `offset` on; `text` says what is wrong, if something is.

    `last_ms`: the time of its last record, None where nothing tells.
    """

    offset: int
    length: int
    records: int
    state: Trust
    text: str = ""
    last_ms: int | None = None
    first_ms: int | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length


def ranges(
    view: FolderView, log: LogView, reader: LogReader, start: int, stop: int
) -> Iterator[CheckedRange]:
    """The ranges that touch [start, stop), in order and without gaps, from the first kept offset to the end.

    Reads every byte of them. The index's gaps are walked record by record. Raises LogMissing where the log
    was deleted since the view was made: its files may be another's by now.
    """
    for checked in _ranges(view, log, reader, start, stop):
        if view.live and checked.state in (Trust.DAMAGED, Trust.UNCOVERED) and _is_deleted(view, log):
            raise LogMissing(f"log {log.name} in namespace {log.namespace} was deleted meanwhile")
        yield checked


def _is_deleted(view: FolderView, log: LogView) -> bool:
    return index.owner(view.disk, log.index_path) != log.id and log.id not in look(view.disk, live=True).logs


def _ranges(
    view: FolderView, log: LogView, reader: LogReader, start: int, stop: int
) -> Iterator[CheckedRange]:
    position = log.first
    found = view.read_index(log)
    for entry in found.entries if found is not None else []:
        if entry is None or entry.end <= position:
            continue
        if entry.offset >= stop or entry.offset >= log.end:
            break
        if entry.offset < position > log.first:
            continue  # it overlaps its neighbour: its CRC cannot be asked
        if entry.offset > position:
            yield from _gap(log, reader, position, entry.offset, start)
        if entry.end > start:
            checked = _remote(entry) if entry.offset < log.local else _of_entry(reader, entry)
            if view.live and entry.offset < position and checked.state is Trust.DAMAGED:
                continue  # more may be dropped by now than we know of, and be a hole
            if entry.offset < position and checked.state is not Trust.REMOTE:
                checked = _kept(checked, reader, position)
            yield checked
        position = entry.end
    if position < min(stop, log.end):
        yield from _gap(log, reader, position, log.end, start)


def _of_entry(reader: LogReader, entry: IndexEntry) -> CheckedRange:
    if entry.damaged:
        return _damaged(entry, "the journal lost what stood here")
    data = reader.read(entry.offset, entry.length)
    if len(data) < entry.length:
        return _damaged(entry, f"the file ends {entry.length - len(data)} bytes too early")
    if crc32c(data) != entry.crc32c:
        return _damaged(entry, "these are not the bytes that were written (CRC)")
    if format.count_records(data) != entry.records:
        return _damaged(entry, "the length fields do not lead to the range's end")
    state = Trust.UNVERIFIED if entry.unverified else Trust.GOOD
    return CheckedRange(entry.offset, entry.length, entry.records, state, "", entry.last_ms, entry.first_ms)


def _remote(entry: IndexEntry) -> CheckedRange:
    if entry.damaged:
        return _damaged(entry, "only the bucket has it, and the index that said what it is was lost")
    text = "its bytes are in the bucket only"
    return CheckedRange(
        entry.offset, entry.length, entry.records, Trust.REMOTE, text, entry.last_ms, entry.first_ms
    )


def _kept(whole: CheckedRange, reader: LogReader, first: int) -> CheckedRange:
    """What is kept of an entry's range: the records before `first`, a record's start, are dropped."""
    dropped = format.count_records(reader.read(whole.offset, first - whole.offset)) or 0
    records = max(whole.records - dropped, 0)
    return attrs.evolve(whole, offset=first, length=whole.end - first, records=records)


def _damaged(entry: IndexEntry, text: str) -> CheckedRange:
    return CheckedRange(entry.offset, entry.length, entry.records, Trust.DAMAGED, text, entry.last_ms)


def _gap(log: LogView, reader: LogReader, position: int, stop: int, wanted: int) -> Iterator[CheckedRange]:
    """A range that no entry covers: some of it may stand in the journal, whose batches have CRCs."""
    while position < stop:
        end, state = stop, Trust.UNCOVERED
        for patch in log.patches_in(position, stop):
            if patch.offset > position and state is Trust.UNCOVERED:
                end = patch.offset
            elif patch.offset <= (end if state is Trust.GOOD else position):
                end, state = patch.end, Trust.GOOD
                continue
            break
        end = min(end, stop)
        records = 0
        reached = position
        for offset, payload in reader.records(position, end):
            records += 1
            reached = offset + format.LENGTH_BYTES + len(payload)
        if reached > max(position, wanted):
            yield CheckedRange(position, reached - position, records, state)
        if reached < end:
            text = "no whole record stands here, and the index says nothing of it"
            yield CheckedRange(reached, end - reached, 0, Trust.DAMAGED, text)
        position = end
