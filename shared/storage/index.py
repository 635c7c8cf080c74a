"""Index files: how marks come to be, and reading, writing and rebuilding whole files of them.

A mark (STORAGE.md calls it an index entry) covers whole records of a log. What a running store keeps of an
index in memory is in `marks.py`; this module is what it shares with the tools that work on files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import attrs
from crc32c import crc32c

from shared.storage import format
from shared.storage.disk import Disk
from shared.storage.format import INDEX_HEADER_BYTES, MARK_BYTES, Flag, Mark
from shared.storage.journal import write_all

MARK_COVERS_BYTES = 64 << 10
"""A mark is closed once it covers so much: small enough to check before a first byte is served, large enough
that the index of 10 GiB is 10 MiB."""

MARK_COVERS_SECONDS = 0.2
"""Or once it is so old: the grain of times."""

_READ_MARKS = 16 << 10
_CRC_BYTES_QUICK = 1 << 20
"""The interpreter's lock is given up for longer sums alone."""


def checked_from(marks: Iterable[Mark | None], first: int) -> int:
    """Where the bytes begin that it takes to check what is kept from `first` on: a mark that is kept in part
    is checked as a whole."""
    kept_in_part = (mark.offset for mark in marks if mark is not None and mark.offset < first < mark.end)
    return next(kept_in_part, first)


def extend(
    open_mark: Mark | None,
    last_ms: int,
    offset: int,
    chunks: Sequence[bytes | memoryview],
    counts: Sequence[int],
    now_ms: int,
) -> tuple[list[Mark], Mark | None]:
    """Records were added at `offset`: returns the marks that this closes, and the one left open.

    `chunks` and `counts`: as a `Run` has them. Marks end where chunks of whole records end, so nothing is
    parsed unless one is longer than a mark should be. `last_ms`: time of the newest record before; times
    never go down.
    """
    now = max(now_ms, last_ms)
    closed: list[Mark] = []
    mark = open_mark
    begun: bytes | memoryview = b""  # of a record in two pieces
    for chunk, count in zip(chunks, counts, strict=True):
        if not count:
            begun = chunk
            continue
        size = len(begun) + len(chunk)
        if size > MARK_COVERS_BYTES and not begun:
            # Whole records are bytes, or as good as such; only a record in two pieces may be something else.
            mark = _extend_by_long(closed, mark, now, offset, cast(bytes, chunk))
        else:
            if mark is not None and size > MARK_COVERS_BYTES:  # one long record: a mark of its own
                closed.append(mark)
                mark = None
            crc = 0 if mark is None else mark.crc32c
            crc = _crc(chunk, _crc(begun, crc) if begun else crc)
            begun = b""
            mark = _add(mark, now, offset, size, count, crc)
            if mark.length >= MARK_COVERS_BYTES:
                closed.append(mark)
                mark = None
        offset += size
    return closed, mark


def _extend_by_long(
    closed: list[Mark], mark: Mark | None, now_ms: int, offset: int, chunk: bytes
) -> Mark | None:
    """The same for whole records that are too many for one mark; what they close is added to `closed`."""
    view = memoryview(chunk)
    for start, end, records in format.split_records(chunk, MARK_COVERS_BYTES):
        size = end - start
        if mark is not None and size > MARK_COVERS_BYTES:  # one long record: a mark of its own
            closed.append(mark)
            mark = None
        crc = _crc(view[start:end], 0 if mark is None else mark.crc32c)
        mark = _add(mark, now_ms, offset + start, size, records, crc)
        if mark.length >= MARK_COVERS_BYTES:
            closed.append(mark)
            mark = None
    return mark


def _crc(data: bytes | memoryview, before: int) -> int:
    """With the interpreter's lock kept: a quarter of a megabyte takes 12 us, and getting the lock back beside
    a busy loop many times that (seen: most of the time of a commit with many such chunks)."""
    return crc32c(data, before, 0 if len(data) <= _CRC_BYTES_QUICK else -1)


def _add(mark: Mark | None, now_ms: int, offset: int, size: int, records: int, crc: int) -> Mark:
    if mark is None:
        return Mark(offset, now_ms, now_ms, size, records, crc)
    return Mark(mark.offset, mark.first_ms, now_ms, mark.length + size, mark.records + records, crc)


# -- whole files


def mark_position(number: int) -> int:
    """Where the index's entry `number` stands in its file."""
    return INDEX_HEADER_BYTES + number * MARK_BYTES


@attrs.frozen
class IndexFile:
    """An index file as found. `marks`: None for an entry that is not good; zeroed ones at the front are
    counted in `dropped`."""

    log_id: int
    created_ms: int
    dropped: int
    marks: list[Mark | None]

    @property
    def end(self) -> int | None:
        """The offset behind the last good entry; None without any."""
        return next((mark.end for mark in reversed(self.marks) if mark is not None), None)


def read_index(disk: Disk, fd: int, number: int = 0) -> IndexFile | None:
    """Read an index from its entry `number` on; None where its header is not good."""
    header = format.unpack_index_header(disk.read(fd, INDEX_HEADER_BYTES, 0))
    if header is None:
        return None
    log_id, created_ms = header
    marks: list[Mark | None] = []
    dropped = 0
    for block in _blocks(disk, fd, mark_position(number)):
        for at in range(0, len(block) - MARK_BYTES + 1, MARK_BYTES):
            if not marks and not any(block[at : at + MARK_BYTES]):
                dropped += 1
            else:
                marks.append(format.unpack_mark(block, log_id, at))
    return IndexFile(log_id, created_ms, dropped, marks)


def owner(disk: Disk, path: str) -> int | None:
    """The log that an index file is of; None where there is none, or its header does not tell."""
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        header = format.unpack_index_header(disk.read(fd, INDEX_HEADER_BYTES, 0))
    finally:
        disk.close(fd)
    return None if header is None else header[0]


def belongs_to(disk: Disk, fd: int, log_id: int) -> bool:
    """Whether an index file is that log's: its header says so or, where that is damaged, an entry does."""
    header = format.unpack_index_header(disk.read(fd, INDEX_HEADER_BYTES, 0))
    if header is not None:
        return header[0] == log_id
    return any(
        format.unpack_mark(block, log_id, at) is not None
        for block in _blocks(disk, fd, mark_position(0))
        for at in range(0, len(block) - MARK_BYTES + 1, MARK_BYTES)
    )


def dropped_marks(disk: Disk, fd: int) -> int:
    """How many entries at the front are all zero: retention gave their space back."""
    dropped = 0
    for block in _blocks(disk, fd, mark_position(0)):
        zeros = len(block) - len(block.lstrip(b"\0"))
        dropped += zeros // MARK_BYTES
        if zeros < len(block):
            break
    return dropped


def stored_marks(disk: Disk, fd: int, log_id: int, number: int, count: int) -> Iterator[Mark | None]:
    """The entries from `number` up to `count`; None for one that is not good."""
    for block in _blocks(disk, fd, mark_position(number)):
        stop = min(len(block), (count - number) * MARK_BYTES)
        for at in range(0, stop - MARK_BYTES + 1, MARK_BYTES):
            yield format.unpack_mark(block, log_id, at)
        number += len(block) // MARK_BYTES
        if number >= count:
            return


def _blocks(disk: Disk, fd: int, position: int) -> Iterator[bytes]:
    while True:
        block = disk.read(fd, _READ_MARKS * MARK_BYTES, position)
        yield block
        if len(block) < _READ_MARKS * MARK_BYTES:
            return
        position += len(block)


def write_marks(disk: Disk, fd: int, log_id: int, number: int, marks: Sequence[Mark]) -> None:
    """Write entries from `number` on. Raises OSError; writing the same again is always right."""
    data, position = packed_marks(log_id, number, marks)
    write_all(disk, fd, data, position)


def packed_marks(log_id: int, number: int, marks: Sequence[Mark]) -> tuple[memoryview, int]:
    """Entries from `number` on as bytes, in a buffer of their own, and where in the file they go."""
    data = bytearray().join(format.pack_mark(mark, log_id) for mark in marks)
    return memoryview(data), mark_position(number)


def write_header(disk: Disk, fd: int, log_id: int, created_ms: int) -> None:
    write_all(disk, fd, format.pack_index_header(log_id, created_ms), 0)


Read = Callable[[int, int], bytes]
"""Of a log's file: so many bytes, from an offset on; fewer at its end."""


def rebuild(
    read: Read, start: int, end: int, now_ms: int, piece_bytes: int = MARK_COVERS_BYTES
) -> tuple[list[Mark], int]:
    """Make marks for the records found from `start` (a record's start) to at most `end`.

    Each covers as many records as fit `piece_bytes`, or one longer record. They are flagged unverified: their
    CRC says what was found. Returns them and where whole records ended, which is below `end` where the length
    fields lead beyond it.
    """
    marks: list[Mark] = []
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
        marks.append(Mark(position, now_ms, now_ms, stop, records, crc, Flag.UNVERIFIED))
        position += stop
    return marks, position


def check_mark(disk: Disk, log_fd: int, mark: Mark) -> bool:
    """Whether the log holds what the mark says."""
    data = disk.read(log_fd, mark.length, mark.offset)
    return len(data) == mark.length and crc32c(data) == mark.crc32c
