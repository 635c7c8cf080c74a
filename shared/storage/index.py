"""Index files: reading, writing and rebuilding them. How entries are made: `entries.py`.

An entry (STORAGE.md: index entry) covers whole records of a log. This module is shared by a running store and
the tools that work on files. The store looks entries up with `index_reader.py`, and writes them with
`log_writer.py`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple

import attrs
from crc32c import crc32c

from shared.errors import CorruptRecord
from shared.storage import format
from shared.storage.disk import Disk, opened, write_all
from shared.storage.entries import ENTRY_COVERS_BYTES
from shared.storage.files import OpenFiles
from shared.storage.format import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, EntryFlag, IndexEntry
from shared.storage.log import Log

_READ_ENTRIES = 16 << 10
_BACK_ENTRIES = 256
_PROBE_BYTES = 16 << 10
"""Bytes of a damaged range that are summed, to see later whether it changed."""
_DAMAGED_BYTES_MAX = 1 << 30
"""A longer range gets several entries: an entry's length has 4 bytes."""
_BLOCK_BYTES = 4096  # of the file system: the unit of holes


def checked_from(entries: Iterable[IndexEntry | None], first: int) -> int:
    """Where to begin so as to check what is kept from `first` on: a partly kept entry is checked whole."""
    kept_in_part = (
        entry.offset for entry in entries if entry is not None and entry.offset < first < entry.end
    )
    return next(kept_in_part, first)


# -- whole files


def entry_position(number: int) -> int:
    """The position of entry `number` in the index file."""
    return INDEX_HEADER_BYTES + number * INDEX_ENTRY_BYTES


@attrs.frozen
class IndexFile:
    """An index file as found. `entries`: None for a bad one; zeroed ones at the front are counted in
    `dropped`.
    """

    log_id: int
    created_ms: int
    dropped: int
    entries: list[IndexEntry | None]

    @property
    def end(self) -> int | None:
        """The offset behind the last good entry; None if there is none."""
        return next((entry.end for entry in reversed(self.entries) if entry is not None), None)


def header_of(disk: Disk, fd: int) -> tuple[int, int] | None:
    """(log id, when the log was made) as an index file says in front; None if that is bad."""
    return format.unpack_index_header(disk.read(fd, INDEX_HEADER_BYTES, 0))


def read_index(disk: Disk, fd: int) -> IndexFile | None:
    """Read a whole index; None if its header is bad."""
    header = header_of(disk, fd)
    return None if header is None else _read_entries(disk, fd, *header)


def _read_entries(disk: Disk, fd: int, log_id: int, created_ms: int) -> IndexFile:
    entries: list[IndexEntry | None] = []
    dropped = 0
    for block in _blocks(disk, fd, entry_position(0)):  # once: a running server may drop more meanwhile
        for at in range(0, len(block) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
            if not entries and not any(block[at : at + INDEX_ENTRY_BYTES]):
                dropped += 1
            else:
                entries.append(format.unpack_index_entry(block, log_id, at))
    return IndexFile(log_id, created_ms, dropped, entries)


def entries_from(disk: Disk, fd: int, log_id: int, offset: int) -> list[IndexEntry]:
    """The good entries of a log that end behind `offset`, in order. Reads from the file's end on, as far as
    needed.
    """
    found: list[IndexEntry] = []
    top = max(disk.size(fd) - INDEX_HEADER_BYTES, 0) // INDEX_ENTRY_BYTES
    while top > 0:
        low = max(top - _BACK_ENTRIES, 0)
        block = disk.read(fd, (top - low) * INDEX_ENTRY_BYTES, entry_position(low))
        for at in range((top - low - 1) * INDEX_ENTRY_BYTES, -1, -INDEX_ENTRY_BYTES):
            entry = format.unpack_index_entry(block, log_id, at)
            if entry is None or not entry.length:
                continue
            if entry.end <= offset:
                return found[::-1]
            found.append(entry)
        top = low
    return found[::-1]


def read_index_of(disk: Disk, path: str, log_id: int, created_ms: int) -> IndexFile | None:
    """A log's whole index; None if it is missing, or another log's.

    Each entry names its log, so entries count even if the header is damaged.
    """
    try:
        with opened(disk, path) as fd:
            header = header_of(disk, fd)
            if header is not None and header[0] != log_id:
                return None
            found = _read_entries(disk, fd, *(header or (log_id, created_ms)))
    except FileNotFoundError:
        return None
    return None if header is None and found.end is None else found


def pack_index(log_id: int, created_ms: int, entries: Iterable[IndexEntry]) -> bytes:
    """A whole index file."""
    packed = (format.pack_index_entry(entry, log_id) for entry in entries)
    return format.pack_index_header(log_id, created_ms) + b"".join(packed)


def owner(disk: Disk, path: str) -> int | None:
    """The log that an index file belongs to; None if it is missing, or its header is bad."""
    try:
        with opened(disk, path) as fd:
            header = header_of(disk, fd)
    except FileNotFoundError:
        return None
    return None if header is None else header[0]


def claim(disk: Disk, fd: int, log_id: int, created_ms: int) -> bool:
    """Make an index file that log's: empty it if it is another's, and write a header that is missing or bad.

    False: nothing of the log was in it. A damaged header does not hide its entries, which name their log.
    """
    header = header_of(disk, fd)
    if header is not None and header[0] == log_id:
        return True
    ours = header is None and any(entry is not None for entry in stored_entries(disk, fd, log_id))
    if not ours:
        disk.truncate(fd, 0)
    write_header(disk, fd, log_id, created_ms)
    return ours


def dropped_entries(disk: Disk, fd: int) -> int:
    """How many entries at the front are zero: retention has freed their space."""
    dropped = 0
    for block in _blocks(disk, fd, entry_position(0)):
        zeros = len(block) - len(block.lstrip(b"\0"))
        dropped += zeros // INDEX_ENTRY_BYTES
        if zeros < len(block):
            break
    return dropped


def stored_entries(
    disk: Disk, fd: int, log_id: int, number: int = 0, count: int = sys.maxsize
) -> Iterator[IndexEntry | None]:
    """The entries from `number` up to `count`; None for a bad one."""
    for block in _blocks(disk, fd, entry_position(number)):
        stop = min(len(block), (count - number) * INDEX_ENTRY_BYTES)
        for at in range(0, stop - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
            yield format.unpack_index_entry(block, log_id, at)
        number += len(block) // INDEX_ENTRY_BYTES
        if number >= count:
            return


def entry_at(disk: Disk, fd: int, log_id: int, number: int) -> IndexEntry | None:
    """One entry; None for a bad one."""
    return format.unpack_index_entry(disk.read(fd, INDEX_ENTRY_BYTES, entry_position(number)), log_id)


def _blocks(disk: Disk, fd: int, position: int) -> Iterator[bytes]:
    while True:
        block = disk.read(fd, _READ_ENTRIES * INDEX_ENTRY_BYTES, position)
        yield block
        if len(block) < _READ_ENTRIES * INDEX_ENTRY_BYTES:
            return
        position += len(block)


def write_entries(disk: Disk, fd: int, log_id: int, number: int, entries: Sequence[IndexEntry]) -> None:
    """Write entries from `number` on. Raises OSError; writing the same again is harmless."""
    data = b"".join(format.pack_index_entry(entry, log_id) for entry in entries)
    write_all(disk, fd, data, entry_position(number))


def write_header(disk: Disk, fd: int, log_id: int, created_ms: int) -> None:
    write_all(disk, fd, format.pack_index_header(log_id, created_ms), 0)


Read = Callable[[int, int], bytes]
"""Reads a log's file: (length, offset) to bytes; fewer at the end."""


def rebuild(
    read: Read, start: int, end: int, now_ms: int, piece_bytes: int = ENTRY_COVERS_BYTES
) -> tuple[list[IndexEntry], int]:
    """Make entries for the records from `start` (a record's start) to at most `end`.

    Each covers as many records as fit `piece_bytes`, or one longer record. They are flagged unverified: their
    CRC says what was found. Also returns where whole records ended: below `end` if the length fields lead
    beyond it.
    """
    entries: list[IndexEntry] = []
    position = start
    while position < end:
        data = read(min(piece_bytes, end - position), position)
        stop, records = format.skip_records(data, 0, len(data))
        if stop == 0:  # not one whole record: a long one, or none
            if len(data) < format.LENGTH_BYTES:
                break
            stop, records = format.LENGTH_BYTES + format.length_at(data, 0)[0], 1
            if position + stop > end:
                break
            data = read(stop, position)
            if len(data) < stop:
                break
        crc = crc32c(memoryview(data)[:stop])
        entries.append(IndexEntry(position, now_ms, now_ms, stop, records, crc, EntryFlag.UNVERIFIED))
        position += stop
    return entries, position


def entry_matches(disk: Disk, log_fd: int, entry: IndexEntry) -> bool:
    """Whether the log holds what the entry says."""
    data = disk.read(log_fd, entry.length, entry.offset)
    return len(data) == entry.length and crc32c(data) == entry.crc32c


# -- a running store's index files, from any thread


def packed_entries(log: Log, number: int, entries: Sequence[IndexEntry]) -> tuple[memoryview, int]:
    """Entries from `number` on as bytes, in a buffer of their own, and where in the file they go; before the
    first of all stands the header. To write them again is always right."""
    packed = [] if number else [format.pack_index_header(log.id, log.created_ms)]
    packed += [format.pack_index_entry(entry, log.id) for entry in entries]
    return memoryview(bytearray().join(packed)), entry_position(number) if number else 0


def open_at(disk: Disk, files: OpenFiles, log: Log, number: int, end: int) -> int:
    """The index file's descriptor, for `packed_entries` from `number` on, which cover what follows `end`.
    Raises FileGone and OSError.
    """
    if number == 0:  # a new file takes one system call, as its header comes with the first entry
        with suppress(FileExistsError):
            return files.open(log.index_file, create=True, exclusive=True)
    fd = open_for_writing(disk, files, log)
    if disk.size(fd) < entry_position(number) and log.first_kept < end:  # removed or cut while it was closed
        try:
            mend(disk, files, log, 0, log.first_kept, number, end)
        except BaseException:
            disk.close(fd)
            raise
    return fd


def open_for_writing(disk: Disk, files: OpenFiles, log: Log) -> int:
    """The index file's descriptor, its header written if it is new or bad. Raises FileGone and OSError."""
    fd = files.open(log.index_file, create=True)
    try:
        claim(disk, fd, log.id, log.created_ms)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def load_end(disk: Disk, files: OpenFiles, log: Log, end: int) -> tuple[int, int]:
    """How many entries the index file has, and the newest record's time; they reach to `end`.

    An index that does not (missing, damaged or short) is rebuilt from there on, flagged unverified, and
    reported. Raises FileGone and OSError.
    """
    with files.repairs:
        try:
            with files.opened(log.index_file) as fd:
                header = header_of(disk, fd)
                if header is not None and header[0] == log.id:
                    number = count = max((disk.size(fd) - INDEX_HEADER_BYTES) // INDEX_ENTRY_BYTES, 0)
                    if end <= log.first_kept:
                        return count, 0
                    while number:  # a commit under way may have added some behind `end`
                        entry = entry_at(disk, fd, log.id, number - 1)
                        if entry is None or entry.end < end:
                            break
                        if entry.end == end:
                            return number, entry.last_ms
                        number -= 1
        except FileNotFoundError:
            pass
        return _repair(disk, files, log, end)


def _repair(disk: Disk, files: OpenFiles, log: Log, end: int) -> tuple[int, int]:
    """Keep the good part of an index, and make entries for the bytes from there to `end`."""
    fd = open_for_writing(disk, files, log)
    try:
        number = (disk.size(fd) - INDEX_HEADER_BYTES) // INDEX_ENTRY_BYTES
        start, last_ms = log.first_kept, log.created_ms
        while number:
            entry = entry_at(disk, fd, log.id, number - 1)
            if entry is not None and entry.end <= end:
                start, last_ms = entry.end, entry.last_ms
                break
            number -= 1
        with files.opened(log.file, create=True) as log_fd:  # a missing file is damage, like a short one
            found = fill(disk, log_fd, start, end, last_ms, local=log.local)
        write_entries(disk, fd, log.id, number, found)
        disk.truncate(fd, entry_position(number + len(found)))
    finally:
        disk.close(fd)
    place = entry_position(number) if found else 0  # else it was the header
    files.damage.in_index(log.id, log.index_file.path, place, end - start)
    return number + len(found), last_ms


class _Gap(NamedTuple):
    """Bad entries from `low` to `high`, and what they covered: [start, stop).

    `time_ms`: no record there is known to be newer.
    """

    low: int
    high: int
    start: int
    stop: int
    time_ms: int


def mend(disk: Disk, files: OpenFiles, log: Log, number: int, offset: int, count: int, end: int) -> None:
    """Rebuild bad index entries in place, from entry `number` to the first that reaches beyond `offset`.

    The index has `count` entries, which reach to `end`. Raises CorruptRecord if none is bad, FileGone and
    OSError.
    """
    mended = False
    with files.repairs:
        fd = open_for_writing(disk, files, log)
        try:
            for gap in _gaps(disk, fd, log, number, count, end):
                with files.opened(log.file, create=True) as log_fd:
                    made = _made_anew(disk, log_fd, gap, log.local)
                write_entries(disk, fd, log.id, gap.low, made)
                place = entry_position(gap.low)
                files.damage.in_index(log.id, log.index_file.path, place, gap.stop - gap.start)
                mended = True
                if gap.stop > offset:
                    break
        finally:
            disk.close(fd)
    if not mended:
        raise CorruptRecord(log.file.path, offset)


def _gaps(disk: Disk, fd: int, log: Log, number: int, count: int, end: int) -> Iterator[_Gap]:
    """Yield the gaps of the index from entry `number` on, without what retention has dropped."""
    before: IndexEntry | None = None
    low = number
    while low:
        before = entry_at(disk, fd, log.id, low - 1)
        if before is not None:
            break
        low -= 1
    behind = IndexEntry(end, 0, 0, 0, 0, 0)
    stored = enumerate(stored_entries(disk, fd, log.id, low, count), low)
    for high, entry in chain(stored, [(count, behind)]):
        if entry is None:
            continue
        begin, start, stop = low, log.first_kept, entry.offset
        if before is not None:
            start = max(before.end, start)
            if begin == high and start < stop:  # no entry is left for it: extend the last one
                begin, start = begin - 1, max(before.offset, log.first_kept)
        if begin < high and start <= stop:
            if before is None and start:
                dropped = dropped_entries(disk, fd)
                begin = dropped if dropped < high else max(high - 1 - (stop - start) // ENTRY_COVERS_BYTES, 0)
            newest_ms = log.created_ms if before is None else before.last_ms
            yield _Gap(begin, high, start, stop, newest_ms if entry is behind else entry.first_ms)
        before, low = entry, high + 1


def _made_anew(disk: Disk, log_fd: int, gap: _Gap, local: int) -> list[IndexEntry]:
    """An entry for each of the gap's entries; if fewer are enough the last ones cover nothing."""
    entries = gap.high - gap.low
    # Two neighbours cover more than one piece may, so there are never more than `pieces`.
    pieces = entries - 1 if gap.start < local < gap.stop and entries > 1 else entries
    piece_bytes = max(ENTRY_COVERS_BYTES, -(-2 * (gap.stop - gap.start) // pieces))
    made = fill(disk, log_fd, gap.start, gap.stop, gap.time_ms, piece_bytes, local=local)[:entries]
    empty = IndexEntry(gap.stop, gap.time_ms, gap.time_ms, 0, 0, 0, EntryFlag.UNVERIFIED)
    return made + [empty] * (entries - len(made))


def fill(
    disk: Disk,
    log_fd: int,
    start: int,
    end: int,
    time_ms: int,
    piece_bytes: int = ENTRY_COVERS_BYTES,
    *,
    torn: bool = False,
    local: int = 0,
) -> list[IndexEntry]:
    """Entries for all of [start, end) as found: unverified where it parses, damaged behind that. Of what is
    below `local` only the bucket knows what it is: it counts as damaged, too.

    A record ends at `end`, unless the log may be `torn` there. So if the length fields lead elsewhere, an
    earlier record is damaged and the walk went astray: then the last piece counts as damaged too.
    """
    known = min(max(start, local), end)
    found, position = rebuild(partial(disk.read, log_fd), known, end, time_ms, piece_bytes)
    if found and position < end <= disk.size(log_fd) and not torn:
        position = found.pop().offset
    unknown = partial(_damaged, disk, log_fd, time_ms)
    return [*unknown(start, known), *found, *unknown(position, end)]


def _damaged(disk: Disk, log_fd: int, time_ms: int, start: int, end: int) -> Iterator[IndexEntry]:
    """Entries that say of [start, end) that it is damaged."""
    for position in range(start, end, _DAMAGED_BYTES_MAX):
        length = min(end - position, _DAMAGED_BYTES_MAX)
        data = disk.read(log_fd, min(length, _PROBE_BYTES), position)
        flags = EntryFlag.UNVERIFIED | EntryFlag.DAMAGED
        yield IndexEntry(position, time_ms, time_ms, length, 0, crc32c(data), flags)


def whole(
    disk: Disk,
    log_fd: int,
    good: Iterable[IndexEntry],
    first: int,
    end: int,
    time_ms: int,
    local: int = 0,
) -> tuple[list[IndexEntry], int]:
    """Entries for all of [first, end): the good ones, in order, and new ones in the gaps (see `fill`).

    `time_ms`: when the log was made. Also returns how many bytes the new ones cover.
    """
    found: list[IndexEntry] = []
    position, filled = first, 0

    def fill_to(stop: int) -> None:
        nonlocal filled
        found.extend(fill(disk, log_fd, position, stop, time_ms, local=local))
        filled += stop - position

    for entry in good:
        if entry.end <= position or entry.end > end or (entry.offset < position and found):
            continue
        if entry.offset > position:
            fill_to(entry.offset)
        found.append(entry)
        position, time_ms = entry.end, entry.last_ms
    if position < end:
        fill_to(end)
    return found, filled


def drop_entries(disk: Disk, files: OpenFiles, log: Log, number: int) -> None:
    """Zero the index entries below `number`, whole disk blocks by a hole. Raises FileGone, OSError."""
    with files.repairs, files.opened(log.index_file) as fd:
        # The first block holds the header, so it is overwritten and not freed.
        stop = entry_position(number) // _BLOCK_BYTES * _BLOCK_BYTES
        if stop > _BLOCK_BYTES:
            write_all(disk, fd, bytes(_BLOCK_BYTES - INDEX_HEADER_BYTES), INDEX_HEADER_BYTES)
            disk.punch(fd, _BLOCK_BYTES, stop - _BLOCK_BYTES)
