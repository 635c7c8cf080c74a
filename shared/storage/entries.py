"""Index entries (STORAGE.md: index entry): made while records are appended to a log."""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from crc32c import crc32c

from shared.storage import format
from shared.storage.format import IndexEntry

ENTRY_COVERS_BYTES = 64 << 10
"""An entry is closed at this size. It is small enough to check before a byte is served, and large enough that
the index of 10 GiB is 10 MiB."""

ENTRY_COVERS_SECONDS = 0.2
"""Or at this age: the resolution of times."""

_CRC_BYTES_QUICK = 1 << 20
"""The interpreter's lock is released only for more bytes than this."""


def extend(
    open_entry: IndexEntry | None,
    last_ms: int,
    offset: int,
    chunks: Sequence[bytes | memoryview],
    counts: Sequence[int],
    now_ms: int,
) -> tuple[list[IndexEntry], IndexEntry | None]:
    """Records were appended at `offset`: returns the entries that this closes, and the one left open.

    `chunks` and `counts`: as in a `LogAppend`. Entries end where chunks of whole records end, so nothing is
    parsed unless a chunk is longer than an entry should be. An entry of ENTRY_COVERS_SECONDS is closed, also
    where it is made anew from the journal's times. `last_ms`: time of the newest earlier record; times never
    go down.
    """
    now = max(now_ms, last_ms)
    closed: list[IndexEntry] = []
    entry = open_entry
    if entry is not None and now - entry.first_ms > ENTRY_COVERS_SECONDS * 1000:
        closed.append(entry)
        entry = None
    for begun, chunk, count in _pieces(chunks, counts):
        size = len(begun) + len(chunk)
        if entry is not None and size > ENTRY_COVERS_BYTES:  # one long record: an entry of its own
            closed.append(entry)
            entry = None
        crc = 0 if entry is None else entry.crc32c
        crc = quick_crc32c(chunk, quick_crc32c(begun, crc) if begun else crc)
        entry = _add(entry, now, offset, size, count, crc)
        if entry.length >= ENTRY_COVERS_BYTES:
            closed.append(entry)
            entry = None
        offset += size
    return closed, entry


def _pieces(
    chunks: Sequence[bytes | memoryview], counts: Sequence[int]
) -> Iterator[tuple[bytes | memoryview, bytes | memoryview, int]]:
    """Whole records that go into one entry: the first piece of a record that is in two, the rest, and how
    many they are. One long record is alone.
    """
    begun: bytes | memoryview = b""
    for chunk, count in zip(chunks, counts, strict=True):
        if not count:
            begun = chunk
        elif count == 1 or len(chunk) <= ENTRY_COVERS_BYTES:
            yield begun, chunk, count
            begun = b""
        else:
            # Several whole records are bytes; only a record in two pieces may be something else.
            view = memoryview(chunk)
            for start, end, records in format.split_records(cast(bytes, chunk), ENTRY_COVERS_BYTES):
                yield b"", view[start:end], records


def extend_by_tail(
    open_entry: IndexEntry | None, end: int, tail: bytearray, commits: Sequence[tuple[int, int, int]]
) -> tuple[list[IndexEntry], IndexEntry | None]:
    """As `extend`, for what several commits added to a log's tail, at most 64 KiB each.

    `end`: of the log. `commits`: each one's time in ms (never going down), bytes and records. What goes into
    one entry is added up at once: 2 us for 20 commits of 20 bytes; 20 us with `extend`.
    """
    closed: list[IndexEntry] = []
    entry = open_entry
    start = at = len(tail) - sum([size for _, size, _ in commits])
    first_ms = covered = records = 0
    for time_ms, size, count in commits:
        if start == at:
            first_ms = time_ms
            covered = 0 if entry is None else entry.length
        at += size
        records += count
        if covered + at - start >= ENTRY_COVERS_BYTES or at == len(tail):
            crc = quick_crc32c(tail[start:at], 0 if entry is None else entry.crc32c)
            if entry is None:
                entry = IndexEntry(end - len(tail) + start, first_ms, time_ms, at - start, records, crc)
            else:
                entry = _add(entry, time_ms, entry.end, at - start, records, crc)
            if entry.length >= ENTRY_COVERS_BYTES:
                closed.append(entry)
                entry = None
            start, records = at, 0
    return closed, entry


def crc_of(chunks: Iterable[bytes | memoryview]) -> int:
    """The CRC-32C of the chunks, one behind the other."""
    crc = 0
    for chunk in chunks:
        crc = quick_crc32c(chunk, crc)
    return crc


def quick_crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Keep the interpreter's lock for short data: 256 KiB takes 12 us. Getting the lock back beside a busy
    loop takes many times that, which was most of the time of a commit with many such chunks.
    """
    return crc32c(data, before, 0 if len(data) <= _CRC_BYTES_QUICK else -1)


def _add(entry: IndexEntry | None, now_ms: int, offset: int, size: int, records: int, crc: int) -> IndexEntry:
    if entry is None:
        return IndexEntry(offset, now_ms, now_ms, size, records, crc)
    return IndexEntry(entry.offset, entry.first_ms, now_ms, entry.length + size, entry.records + records, crc)
