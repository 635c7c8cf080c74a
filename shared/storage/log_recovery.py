"""Recovery of one log after an unclean end: apply the journal's records, complete the index, cut the rest."""

import structlog
from crc32c import crc32c

from shared.storage import format, index
from shared.storage.catalog import LogLine
from shared.storage.disk import Disk, copy_file, opened, size_of, write_all
from shared.storage.entries import ENTRY_COVERS_BYTES, extend
from shared.storage.files import DamagedPlaces, out_of_space
from shared.storage.format import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, EntryFlag, IndexEntry
from shared.storage.replay import JournalChanges, JournalPiece, Pieces, Segments, seeming_end

logger = structlog.stdlib.get_logger("brokers.storage")

_WRITE_BYTES = 4 << 20
"""Adjacent pieces are joined to one write of up to this size."""
_DAMAGED_BYTES_MAX = 1 << 30
"""A damaged range longer than this gets several entries: an entry's length has 4 bytes, and what it covers is
read at once."""
_SHARED_ENTRY_BYTES = 2 * ENTRY_COVERS_BYTES  # an entry with more than one record is no longer than this


def recover_log(
    disk: Disk,
    segments: Segments,
    line: LogLine,
    changes: JournalChanges,
    in_files: DamagedPlaces,
    *,
    damaged: bool,
    adopted: bool,
) -> tuple[LogLine, bool] | None:
    """Bring one log in line with the journal; None if the catalog is right about it.

    Returns its line, and whether its files have changed and are to be synced.

    `damaged`: the journal may lack some of this log, so its file counts as far as index entries match it.
    `adopted`: its CREATE was lost there; its files tell what they are.
    """
    new = line.id in changes.created
    pieces = changes.pieces.get(line.id, [])
    told = bool(pieces) or new or adopted or line.id in changes.first
    doubted = damaged or line.mode != "always"
    if not (told or doubted or size_of(disk, line.log_path) > line.end):
        return None
    first = max(line.first, changes.first.get(line.id, 0))
    line = line._replace(first=first, mode=changes.mode.get(line.id, line.mode))
    damaged = damaged or adopted
    paths = line.log_path, line.index_path
    if new and not _are_ours(disk, line, pieces, trusted=damaged):
        # They belong to an earlier log of that name: every start moves unowned files aside. Or to this log,
        # if the journal or the index has lost the proof.
        _make_room(disk, paths, line.id, keep=damaged)
    with opened(disk, paths[0], create=True) as fd, opened(disk, paths[1], create=True) as index_fd:
        recovery = _LogRecovery(disk, line, fd, index_fd, in_files)
        hinted = changes.hinted.get(line.id, [])
        changed = recovery.run(segments, pieces, hinted, new=new, damaged=damaged, adopted=adopted)
    end = recovery.position
    line = line._replace(end=end, first=min(line.first, end))
    if recovery.kept_bytes and not adopted:
        logger.error(
            "the journal has lost records that the log's file still has: they are kept; look at the disk",
            path=paths[0],
            bytes=recovery.kept_bytes,
        )
    if recovery.quarantined is not None:
        logger.warning(
            "the end of a log was cut: the journal lacks it, for it was not synced before a crash, or is "
            "damaged; `kept` names a copy, mode always loses nothing",
            path=paths[0],
            kept=recovery.quarantined,
        )
    return line, changed


def _are_ours(disk: Disk, line: LogLine, pieces: Pieces, *, trusted: bool) -> bool:
    """Whether the files under a new log's name are its own."""
    if any(piece.crc32c is not None for piece in pieces):
        return True
    # A file that has as much as the journal or more is this log's or an earlier one's: its index tells.
    journaled_end = pieces[-1].end if pieces else 0
    trusted = trusted or (line.mode == "always" and size_of(disk, line.log_path) >= journaled_end)
    return trusted and index.read_index_of(disk, line.index_path, line.id, line.created_ms) is not None


def _make_room(disk: Disk, paths: tuple[str, str], log_id: int, *, keep: bool) -> None:
    """Free the names of a new log's files; `keep`: rename those in the way."""
    for name in paths:
        try:
            if keep:
                disk.rename(name, f"{name}.stray-{log_id}")
            else:
                disk.unlink(name)
        except FileNotFoundError:
            pass


class _LogRecovery:
    """`position`: up to here the log is known and indexed.

    `kept_bytes`: bytes at its end, acknowledged, that the journal no longer proves. `quarantined`: the copy
    of what the file had behind the end.
    """

    def __init__(self, disk: Disk, line: LogLine, fd: int, index_fd: int, in_files: DamagedPlaces) -> None:
        self._disk = disk
        self._line = line
        self._fd = fd
        self._index_fd = index_fd
        self._in_files = in_files
        self._number = 0  # of the first entry that is written anew
        self._last_ms = line.created_ms
        self._entries: list[IndexEntry] = []
        self._open: IndexEntry | None = None
        self._later: list[IndexEntry] = []  # entries found behind what the catalog vouches for
        self._rewrite = line.end  # from here on bytes that count are read and written again
        self._ahead = False
        self.position = 0
        self.kept_bytes = 0
        self.quarantined: str | None = None

    def run(
        self,
        segments: Segments,
        pieces: Pieces,
        hinted: Pieces,
        *,
        new: bool,
        damaged: bool,
        adopted: bool,
    ) -> bool:
        """Recover; returns whether anything was written."""
        found = self._load()
        self._ahead = any(piece.ahead for piece in pieces)
        if damaged:
            self._follow(self._line.end)
        self._fill(self._line.end)
        for group in _adjacent(pieces):
            if group[0].offset > self.position:
                self._bridge(group[0].offset)
            if group[0].crc32c is None:
                self._apply(group, b"".join(piece.read(segments) for piece in group))
            else:
                self._refer(group[0], segments)
        if damaged or new:
            before = self.position
            self._follow(None)
            self.kept_bytes = 0 if damaged else self.position - before
        # The name may have been another log's, whose file a cut has kept: only entries prove ownership.
        if adopted:
            if self.position > self._line.first and self._rest_is_whole():
                self._keep_rest()
        elif self._line.mode == "always" and not new:
            if self._ahead:  # bytes may be there that the journal never synced: only entries are proof
                before = self.position
                self._follow(None)
                self.kept_bytes = self.position - before
            else:
                self._keep_rest()
        self._close_open()
        self._miss(hinted)
        return self._finish(found) or bool(pieces)

    def _load(self) -> int:
        """Read the index as far as the catalog vouches for it, and the entries behind; returns its size."""
        disk, line = self._disk, self._line
        size = disk.size(self._index_fd)
        if not index.claim(disk, self._index_fd, line.id, line.created_ms):
            self.position = min(line.first, line.end)
            return -1
        known = max(line.end, line.first)  # below the first offset nothing is promised
        number = max(size - INDEX_HEADER_BYTES, 0) // INDEX_ENTRY_BYTES
        later: list[IndexEntry | None] = []
        self.position = min(line.first, line.end)
        while number:
            entry = index.entry_at(disk, self._index_fd, line.id, number - 1)
            if entry is not None and entry.end <= known:
                self.position, self._last_ms = entry.end, entry.last_ms
                break
            later.append(entry)
            number -= 1
        later.reverse()
        self._number = self._pass_dropped(later, number)
        position = self.position
        for entry in later:
            if entry is None or entry.offset != position:
                break
            self._later.append(entry)
            position = entry.end
        return size

    def _report(self, number: int, covered_bytes: int) -> None:
        """Report the index as damaged from its entry `number` on."""
        place = index.entry_position(number)
        self._in_files.in_index(self._line.id, self._line.index_path, place, covered_bytes)

    def _pass_dropped(self, later: list[IndexEntry | None], number: int) -> int:
        """Retention may have zeroed what follows entry `number`, up to the first offset. Pass over it: remove
        it from `later`, and return the number of the entry that comes next.
        """
        line = self._line
        dropped = next((at for at, entry in enumerate(later) if entry is not None), len(later))
        entry = later[dropped] if dropped < len(later) else None
        if dropped and entry is not None and self.position < entry.offset <= line.first:
            self.position = entry.offset
            del later[:dropped]
            return number + dropped
        start = min(line.first, line.end)
        if entry is None and self.position < start:  # what is kept has no entry on the disk yet
            self.position = start
            later.clear()
            return 0
        return number

    def _follow(self, limit: int | None) -> None:
        """Continue along later entries while the log's bytes match them, up to `limit`."""
        for entry in self._later:
            if entry.end <= self.position:
                continue
            if entry.offset > self.position or (limit is not None and self.position >= limit):
                return
            if not index.entry_matches(self._disk, self._fd, entry):
                return
            # Write the bytes again: after a failed sync they may be only in the page cache, marked clean.
            start = max(entry.offset, self.position, self._rewrite)
            if start < entry.end:
                data = self._disk.read(self._fd, entry.end - start, start)
                write_all(self._disk, self._fd, data, start)
            if entry.offset < self.position:
                self._follow_rest(entry)
            else:
                self._close_open()
                self._entries.append(entry)
            self._last_ms = max(self._last_ms, entry.last_ms)
            self.position = entry.end

    def _follow_rest(self, entry: IndexEntry) -> None:
        """The entry matches, and the journal already gave its first records: index the rest."""
        data = self._disk.read(self._fd, entry.end - self.position, self.position)
        records = format.count_records(data) or 0
        closed, self._open = extend(
            self._open, self._last_ms, self.position, [data], [records], entry.last_ms
        )
        self._entries += closed

    def _rest_is_whole(self) -> bool:
        """Whether what follows parses as records to its last byte, so that no page of it is missing."""
        position, size = self.position, self._disk.size(self._fd)
        while position < size:
            head = self._disk.read(self._fd, format.LENGTH_BYTES, position)
            length = int.from_bytes(head, "big")
            if not length:
                return False
            position += format.LENGTH_BYTES + length
        return position == size

    def _keep_rest(self) -> None:
        """In mode `always` a file gets only what the journal has synced: what follows was lost there, so keep
        it.
        """
        size = self._disk.size(self._fd)
        if size > self.position:
            start = self.position
            self._follow(None)
            self._fill(self._zeros_from(size), torn=True)
            self.kept_bytes = self.position - start
            if self.position < size:
                self._lose(size)

    def _zeros_from(self, size: int) -> int:
        """Where records end and only zeros follow, to the file's end at `size`: bytes that never came to the
        disk, and no empty records.
        """
        zeros = size
        while zeros > self.position:
            start = max(zeros - _WRITE_BYTES, self.position)
            data = self._disk.read(self._fd, zeros - start, start).rstrip(b"\0")
            zeros = start + len(data)
            if data:
                break
        position = self.position
        while position < zeros:
            head = self._disk.read(self._fd, format.LENGTH_BYTES, position)
            position += format.LENGTH_BYTES + int.from_bytes(head, "big")
        return min(position, size)

    def _fill(self, end: int, *, torn: bool = False) -> None:
        """The index is shorter than what is known to be in the file: index what is found."""
        if self.position < end:
            self._close_open()
            if not torn:
                self._report(self._number + len(self._entries), end - self.position)
            self._entries += index.fill(
                self._disk, self._fd, self.position, end, self._last_ms, torn=torn, local=self._line.local
            )
            self.position = end

    def _bridge(self, offset: int) -> None:
        """Journaled bytes continue at `offset`: what lies between has entries that match it, or is lost."""
        self._follow(offset)
        if self.position < offset:
            self._close_open()
            self._lose(offset)

    def _miss(self, hinted: Pieces) -> None:
        """Mark as damaged what a damaged place of the journal seems to have had behind the end."""
        size = self._disk.size(self._fd)
        end = seeming_end(hinted, self.position, size)
        if end > self.position:
            self._lose(end)
            if size < end:
                self._disk.truncate(self._fd, end)

    def _lose(self, end: int) -> None:
        """Mark as damaged what stood before `end`."""
        self._in_files.in_log(self._line.id, self._line.log_path, self.position, end - self.position)
        while self.position < end:
            length = min(end - self.position, _DAMAGED_BYTES_MAX)
            crc = crc32c(self._disk.read(self._fd, length, self.position))
            flags = EntryFlag.UNVERIFIED | EntryFlag.DAMAGED
            self._entries.append(
                IndexEntry(self.position, self._last_ms, self._last_ms, length, 0, crc, flags)
            )
            self.position += length

    def _apply(self, group: Pieces, data: bytes) -> None:
        """Write journaled bytes without comparing, and index what is new."""
        start = group[0].offset
        # Leave out what was dropped, except what may share an entry, and so a CRC, with kept records.
        skipped = max(self._line.first - _SHARED_ENTRY_BYTES - start, 0)
        if skipped < len(data):
            write_all(self._disk, self._fd, data[skipped:], start + skipped)
        for piece in group:
            self._extend(piece, data[piece.offset - start : piece.end - start])

    def _extend(self, piece: JournalPiece, data: bytes) -> None:
        """Index what is new of a piece."""
        offset = max(piece.offset, self.position)
        if offset >= piece.end:
            return
        records = piece.records
        if offset > piece.offset:
            data = data[offset - piece.offset :]
            records = format.count_records(data) or 0
        closed, self._open = extend(self._open, self._last_ms, offset, [data], [records], piece.time_ms)
        self._entries += closed
        self._last_ms = max(self._last_ms, piece.time_ms)
        self.position = piece.end

    def _refer(self, piece: JournalPiece, segments: Segments) -> None:
        """Index records that the journal only refers to, if the log's file has them."""
        if piece.end <= self.position:
            return
        if not piece.is_in(self._disk, self._fd, segments):  # damaged since: the journal would be cut else
            self._bridge(piece.end)
            return
        data = self._disk.read(self._fd, piece.length, piece.offset)
        if not piece.proven:  # they may be only in the page cache, marked clean by a failed sync
            write_all(self._disk, self._fd, data, piece.offset)
        self._extend(piece, data)

    def _close_open(self) -> None:
        if self._open is not None:
            self._entries.append(self._open)
            self._open = None

    def _finish(self, found_size: int) -> bool:
        """Write the entries, and cut what nothing vouches for."""
        disk = self._disk
        size = index.entry_position(self._number + len(self._entries))
        changed = bool(self._entries) or size != found_size
        if self._entries:
            index.write_entries(disk, self._index_fd, self._line.id, self._number, self._entries)
        if size != found_size:
            disk.truncate(self._index_fd, size)
        size = disk.size(self._fd)
        if size > self.position:
            if not self._ahead and self._rest_is_whole():
                self._copy_rest()
            disk.truncate(self._fd, self.position)
            changed = True
        return changed

    def _copy_rest(self) -> None:
        """Copy what is cut to a file of its own: it may have been acknowledged."""
        path = self._line.log_path
        self.quarantined = f"{path}.cut-{self.position}"
        try:
            copy_file(self._disk, path, self.quarantined, self.position)
        except OSError as error:
            if not out_of_space(error):
                raise
            self.quarantined = None


def _adjacent(pieces: Pieces) -> list[Pieces]:
    """Group pieces that follow each other in the log: each group is one write. Pieces in the log's file are
    alone.
    """
    groups: list[Pieces] = []
    size = 0
    for piece in pieces:
        if groups and size < _WRITE_BYTES:
            last = groups[-1][-1]
            if last.end == piece.offset and last.crc32c is None and piece.crc32c is None:
                groups[-1].append(piece)
                size += piece.length
                continue
        groups.append([piece])
        size = piece.length
    return groups
