"""The journal's reader: which batches there are, what is torn off, what is damaged.

Nothing here writes. Source: STORAGE.md, Replay.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Self

import attrs
from crc32c import crc32c

from shared.storage import format
from shared.storage.catalog import LogLine, unpack_create
from shared.storage.disk import Disk, opened
from shared.storage.format import Batch, Entry, EntryKind
from shared.storage.journal import segment_lsns, segment_path

_SEARCH_BYTES = 4 << 20
"""Bytes per read while searching for good batches behind a bad one."""
_WINDOW_BYTES = 1 << 20
"""Bytes read ahead while following the journal."""
_OPEN_MAX = 64
"""Segments kept open: a large journal has more of them than a process may have files."""
_NAMED_MAX = 100
"""Logs that one text names: a damaged batch may have had some of 100,000."""


class Damage(NamedTuple):
    """Bytes of the journal that were once synced and no longer parse: from `lsn` to the next good batch."""

    lsn: int
    end_lsn: int


class SegmentFile(NamedTuple):
    """A segment on disk; its size is its file's length."""

    lsn: int
    size: int

    @property
    def end(self) -> int:
        return self.lsn + self.size


class FoundBatch(NamedTuple):
    """A good batch and its place."""

    batch: Batch
    segment: SegmentFile
    refers: bool
    """Some of its records are only in their logs' files."""

    @property
    def position(self) -> int:
        return self.batch.lsn - self.segment.lsn


@attrs.frozen
class Replay:
    """The journal's content from some LSN on, in order.

    `end_lsn`: behind the last good batch. `torn_bytes`: about how long a torn tail is. `synced_lsn`: a good
    batch says that all below was synced. `missing`: no segment holds the place where replay begins.
    `hinted`: what the damage seems to have held; `torn`: the same of a torn tail. They name what may be lost;
    nothing vouches for a byte of them.
    """

    batches: list[FoundBatch]
    segments: list[SegmentFile]
    damage: list[Damage]
    end_lsn: int
    torn_bytes: int
    synced_lsn: int = 0
    missing: bool = False
    hinted: "JournalChanges" = attrs.Factory(lambda: JournalChanges())
    torn: "JournalChanges" = attrs.Factory(lambda: JournalChanges())

    def damaged_segments(self) -> list[SegmentFile]:
        return [s for s in self.segments if any(d.lsn < s.end and d.end_lsn > s.lsn for d in self.damage)]


def segment_files(disk: Disk) -> list[SegmentFile]:
    found = []
    for lsn in segment_lsns(disk):
        with opened(disk, segment_path(lsn)) as fd:
            found.append(SegmentFile(lsn, disk.size(fd)))
    return found


def begins_behind(disk: Disk, journal_id: int, lsn: int) -> bool:
    """Whether there is a segment from `lsn` on that begins with a good batch."""
    with _BatchFinder(disk, journal_id) as reader:
        return any(
            reader.good(segment, segment.lsn) is not None for segment in reader.segments if segment.lsn >= lsn
        )


def every_batch(disk: Disk) -> Iterator[Batch]:
    """Every good batch on disk, of whichever journal."""
    with _BatchFinder(disk, None) as reader:
        yield from (found.batch for found in reader.search(0))


def scan(disk: Disk, journal_id: int, replay_lsn: int, logs: Iterable[LogLine] = ()) -> Replay:
    """Find every good batch from `replay_lsn` on. `logs`: the catalog's.

    Raises OSError if the disk cannot be read.
    """
    with _BatchFinder(disk, journal_id) as reader:
        found = _scan(reader, replay_lsn)
    return _without_torn_references(disk, found, logs)


def _without_torn_references(disk: Disk, found: Replay, logs: Iterable[LogLine]) -> Replay:
    """Cut batches not proven to be synced, if the logs' files lack what they refer to."""
    unproven = [at for at, each in enumerate(found.batches) if each.batch.lsn >= found.synced_lsn]
    if not any(found.batches[at].refers for at in unproven):
        return found
    changes = JournalChanges.of(disk, found.batches)
    known = {line.id: line for line in logs} | changes.created
    lines = {log_id: line for log_id, line in known.items() if log_id not in changes.deleted}
    for at in unproven:
        each = found.batches[at]
        if each.refers and not _bears_out(disk, each, lines):
            torn = sum(later.batch.size for later in found.batches[at:])
            found.torn.take_all(disk, found.batches[at:])
            return attrs.evolve(
                found, batches=found.batches[:at], end_lsn=each.batch.lsn, torn_bytes=torn + found.torn_bytes
            )
    return found


def _bears_out(disk: Disk, found: FoundBatch, lines: dict[int, LogLine]) -> bool:
    """Whether the logs' files have what a batch refers to."""
    changes = JournalChanges.of(disk, [found])
    return not changes.bad_entries and all(
        piece.end <= lines[log_id].end or _has(disk, lines[log_id], piece)
        for log_id, pieces in changes.pieces.items()
        for piece in pieces
        if piece.crc32c is not None and log_id in lines
    )


def _has(disk: Disk, line: LogLine, piece: "JournalPiece") -> bool:
    try:
        with opened(disk, line.log_path) as fd, Segments(disk) as segments:
            return piece.is_in(disk, fd, segments)
    except FileNotFoundError:
        return False


def _scan(reader: "_BatchFinder", replay_lsn: int) -> Replay:
    """Follow the batches, also across damage; each names the one before it (STORAGE.md, "Replay")."""
    batches: list[FoundBatch] = []
    damage: list[Damage] = []
    position = replay_lsn
    previous: int | None = None  # before the first replayed batch: whichever replay does not need

    def follows(batch: Batch) -> bool:
        if previous is None:
            return batch.previous_lsn < replay_lsn or batch.previous_lsn == batch.lsn
        return batch.previous_lsn == previous

    while True:
        segment = reader.segment_at(position)
        found = reader.good(segment, position) if segment is not None else None
        if found is None or not follows(found.batch):
            after = reader.segment_from(segment.end) if segment is not None else None
            found = reader.good(after, after.lsn) if after is not None else None
            if found is not None and not follows(found.batch):
                found = None
        if found is None:
            found = _after_damage(reader, position)
            if found is None:
                break
            damage.append(Damage(position, found.batch.lsn))
        batches.append(found)
        previous = found.batch.lsn
        position = previous + found.batch.size
    synced_lsn = max((each.batch.synced_lsn for each in batches), default=0)
    hinted, torn = JournalChanges(), JournalChanges()
    for each in damage:
        reader.guess(hinted, each.lsn, each.end_lsn)
    torn_bytes = reader.guess(torn, position)
    # A start makes its segment, in full length, before anything is served.
    first = reader.segment_at(replay_lsn)
    missing = first is None or not first.size
    return Replay(batches, reader.segments, damage, position, torn_bytes, synced_lsn, missing, hinted, torn)


def _after_damage(reader: "_BatchFinder", bad_lsn: int) -> FoundBatch | None:
    """The first good batch behind a bad place, if a later batch proves that the bad place was once synced."""
    first: FoundBatch | None = None
    for found in reader.search(bad_lsn + format.SECTOR):
        first = first or found
        if found.batch.synced_lsn > bad_lsn:
            return first
    return None


def read_payloads(disk: Disk, batches: list[FoundBatch]) -> Iterator[tuple[FoundBatch, bytes]]:
    """Each batch with its payload, one in memory at a time."""
    with Segments(disk) as segments:
        for found in batches:
            start = found.position + format.BATCH_HEADER_BYTES
            yield found, segments.read(found.segment, found.batch.payload_bytes, start)


class Segments:
    """The journal's segments, opened when read; a few stay open until the end of the block."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[SegmentFile, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for fd in self._open.values():
            self._disk.close(fd)

    def read(self, segment: SegmentFile, length: int, position: int) -> bytes:
        """Up to `length` bytes; `position` counts from the segment's start."""
        fd = self._open.get(segment)
        if fd is None:
            if len(self._open) >= _OPEN_MAX:
                self._disk.close(self._open.pop(next(iter(self._open))))
            fd = self._open[segment] = self._disk.open(segment_path(segment.lsn))
        return self._disk.read(fd, length, position)


class JournalPiece(NamedTuple):
    """Records of a log in the journal: their place there, and in the log.

    `crc32c`: the records are in the log's file instead, and the journal has their CRC. `proven`: they were
    synced there. `ahead`: the log's file may have more behind them, none of it acknowledged.
    """

    segment: SegmentFile
    position: int
    length: int
    offset: int
    records: int
    time_ms: int
    crc32c: int | None = None
    proven: bool = True
    ahead: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length

    def read(self, segments: Segments) -> bytes:
        return segments.read(self.segment, self.length, self.position)

    def is_in(self, disk: Disk, fd: int, segments: Segments) -> bool:
        """Whether a log's file has these records at their place."""
        data = disk.read(fd, self.length, self.offset)
        if self.crc32c is not None:
            return len(data) == self.length and crc32c(data) == self.crc32c
        return data == self.read(segments)


Pieces = list[JournalPiece]


def seeming_end(hinted: Pieces, end: int, size: int) -> int:
    """Where a log seems to have ended by what a damaged place had, as far as that goes on at its known `end`.

    `size`: of the log's file, beyond which a reference does not lead.
    """
    for piece in hinted:
        if piece.offset <= end < piece.end and (piece.crc32c is None or piece.end <= size):
            end = piece.end
    return end


@attrs.define
class JournalChanges:
    """What batches of the journal say of logs, by log id. Pieces of a log are in the order of their offsets.

    `synced_lsn`: as in `Replay`.
    `bad_entries`: how many entries cannot be read. `hinted`: pieces that damaged batches seem to have had.
    """

    synced_lsn: int = 0
    created: dict[int, LogLine] = attrs.Factory(dict)
    deleted: set[int] = attrs.Factory(set)
    first: dict[int, int] = attrs.Factory(dict)
    mode: dict[int, str] = attrs.Factory(dict)
    pieces: dict[int, Pieces] = attrs.Factory(dict)
    seen_id: int = 0
    bad_entries: int = 0
    hinted: dict[int, Pieces] = attrs.Factory(dict)

    @classmethod
    def of(cls, disk: Disk, batches: list[FoundBatch], synced_lsn: int = 0) -> Self:
        """What these batches say. Raises ValueError and TypeError as `take`, and OSError."""
        changes = cls(synced_lsn)
        changes.take_all(disk, batches)
        return changes

    def take_all(self, disk: Disk, batches: list[FoundBatch]) -> None:
        """Apply batches. Raises as `of`."""
        for found, payload in read_payloads(disk, batches):
            for entry in format.unpack_entries(payload, found.batch.entries) or []:
                self.take(found, entry, payload)

    def hint(self, seeming: "JournalChanges") -> None:
        """Have what damaged batches seem to have had as `hinted`, but for what a good one goes on behind."""
        for log_id, pieces in seeming.pieces.items():
            good = self.pieces.get(log_id)
            end = good[-1].end if good else 0
            self.hinted[log_id] = [piece for piece in pieces if piece.offset >= end]

    def take(self, found: FoundBatch, entry: Entry, payload: bytes) -> None:
        """Apply one entry of a batch with this payload. Raises ValueError and TypeError for one that no
        version writes.
        """
        log_id, kind, start, end = entry.log_id, entry.kind, entry.body_start, entry.body_end
        self.seen_id = max(self.seen_id, log_id)
        where, records, time_ms = found.segment, entry.records, found.batch.time_ms
        if kind == EntryKind.APPEND:
            position = found.position + format.BATCH_HEADER_BYTES + start
            piece = JournalPiece(where, position, end - start, entry.offset, records, time_ms)
            ahead = bool(entry.flags & format.AHEAD)
            self.pieces.setdefault(log_id, []).append(piece._replace(ahead=True) if ahead else piece)
        elif kind == EntryKind.REFERENCE:
            reference = format.unpack_reference(payload, entry)
            if reference is None:
                self.bad_entries += 1
                return
            length, crc = reference
            proven = found.batch.lsn < self.synced_lsn
            piece = JournalPiece(where, 0, length, entry.offset, records, time_ms, crc, proven, ahead=True)
            self.pieces.setdefault(log_id, []).append(piece)
        elif kind == EntryKind.CREATE:
            line = self.created[log_id] = unpack_create(log_id, payload[start:end])
            self.mode[log_id] = line.mode
        elif kind == EntryKind.DELETE:
            self.deleted.add(log_id)
        elif kind == EntryKind.FIRST:
            self.first[log_id] = max(self.first.get(log_id, 0), entry.offset)
        elif kind == EntryKind.MODE:
            self.mode[log_id] = payload[start:end].decode()

    def named(self, known: Mapping[int, str]) -> str:
        """The paths of the logs that something is said of, if `known` or made here; the first of many."""
        paths = {**{log_id: line.log_path for log_id, line in self.created.items()}, **known}
        ids = {*self.created, *self.deleted, *self.first, *self.mode, *self.pieces} & paths.keys()
        first = ", ".join([paths[log_id] for log_id in sorted(ids)[:_NAMED_MAX]])
        return f"{first} and {len(ids) - _NAMED_MAX} others" if len(ids) > _NAMED_MAX else first


def may_lack(line: LogLine, changes: JournalChanges) -> bool:
    """Whether an older version may have written records of this log to its file alone."""
    modes = line.mode, changes.mode.get(line.id, "")
    return any(mode == "none" or mode.endswith(" unjournaled") for mode in modes)


class _BatchFinder(Segments):
    """Finds batches of a journal (None: of any); a window of the segment being read is in memory."""

    def __init__(self, disk: Disk, journal_id: int | None) -> None:
        super().__init__(disk)
        self._journal_id = journal_id
        self.segments = segment_files(disk)
        self._read_last: SegmentFile | None = None
        self._window = b""
        self._window_start = 0

    def segment_at(self, lsn: int) -> SegmentFile | None:
        """The segment that holds `lsn`, or ends just there."""
        for segment in reversed(self.segments):
            if segment.lsn <= lsn <= segment.end:
                return segment
        return None

    def segment_from(self, lsn: int) -> SegmentFile | None:
        return next((segment for segment in self.segments if segment.lsn == lsn), None)

    def _read(self, segment: SegmentFile, length: int, position: int) -> bytes:
        if self._read_last != segment:
            self._read_last, self._window = segment, b""
        start = position - self._window_start
        if not 0 <= start <= len(self._window) - length:
            # read many at once: batches may be as small as a sector
            self._window = self.read(segment, max(length, _WINDOW_BYTES), position)
            self._window_start = position
            start = 0
        return self._window[start : start + length]

    def guess(self, changes: JournalChanges, lsn: int, end_lsn: int | None = None) -> int:
        """Add what the batches that seem to begin at `lsn`, one behind the other, seem to say.

        Returns about how long the first is; it may be at the next segment's start.
        """
        first = 0
        while end_lsn is None or lsn < end_lsn:
            segment = self.segment_at(lsn)
            after = self.segment_from(segment.end) if segment is not None else None
            size = self._begun(segment, lsn)
            if not size and after is not None and (end_lsn is None or after.lsn < end_lsn):
                segment, lsn = after, after.lsn
                size = self._begun(segment, lsn)
            if segment is None or not size:
                break
            first = first or size
            size = size if end_lsn is None else min(size, end_lsn - lsn)
            payload = self._read(segment, size, lsn - segment.lsn)[format.BATCH_HEADER_BYTES :]
            found = FoundBatch(Batch(lsn, 0, 0, 0, len(payload), 0, 0), segment, refers=False)
            for entry in format.seeming_entries(payload):
                with suppress(ValueError, TypeError, AttributeError, RecursionError):  # it may be any bytes
                    changes.take(found, entry, payload)
            lsn += size
        return first

    def _begun(self, segment: SegmentFile | None, lsn: int) -> int:
        """How long a batch begun at `lsn` seems to be, its header perhaps damaged; 0: none was begun."""
        assert self._journal_id is not None
        if segment is None or lsn >= segment.end:
            return 0
        head = self._read(segment, format.BATCH_HEADER_BYTES, lsn - segment.lsn)
        signs = (
            head[:4] == format.BATCH_MAGIC,
            head[8:16] == lsn.to_bytes(8, "big"),
            head[32:40] == self._journal_id.to_bytes(8, "big"),
        )
        if sum(signs) < 2:  # old bytes, of an earlier use of the segment
            return 0
        size = format.padded(format.BATCH_HEADER_BYTES + int.from_bytes(head[40:48], "big"))
        size = min(size, segment.end - lsn)
        old = format.unpack_batch(head)
        if old is not None and old.lsn != lsn:
            data = self._read(segment, size, lsn - segment.lsn)
            if format.batch_is_good(old, data):  # an earlier use's batch that began just here, untouched
                return 0
        return size

    def _fitting(self, batch: Batch | None, lsn: int) -> Batch | None:
        if batch is None or batch.lsn != lsn or self._journal_id not in (None, batch.journal_id):
            return None
        return batch

    def good(self, segment: SegmentFile | None, lsn: int) -> FoundBatch | None:
        """The batch at `lsn` if all of it is as written."""
        if segment is None or lsn >= segment.end:
            return None
        batch = self._fitting(format.unpack_batch(self._read(segment, format.SECTOR, lsn - segment.lsn)), lsn)
        if batch is None or lsn + batch.size > segment.end:
            return None
        data = self._read(segment, batch.size, lsn - segment.lsn)
        if not format.batch_is_good(batch, data):
            return None
        payload = memoryview(data)[format.BATCH_HEADER_BYTES :][: batch.payload_bytes]
        entries = format.unpack_entries(payload, batch.entries)
        if entries is None:
            return None
        return FoundBatch(batch, segment, any(entry.kind == EntryKind.REFERENCE for entry in entries))

    def search(self, lsn: int) -> Iterator[FoundBatch]:
        """Every good batch from `lsn` on, found by its magic at each multiple of a sector."""
        for segment in self.segments:
            start = max(lsn - segment.lsn, 0)
            position = format.padded(start)
            while position < segment.size:
                data = self._read(segment, _SEARCH_BYTES, position)
                at = data.find(format.BATCH_MAGIC)
                while at >= 0:
                    where = segment.lsn + position + at
                    if at % format.SECTOR == 0 and self._fitting(format.unpack_batch(data, at), where):
                        found = self.good(segment, where)
                        if found is not None:
                            yield found
                    at = data.find(format.BATCH_MAGIC, at + 1)
                position += _SEARCH_BYTES
