"""The data folder's bytes: packing and unpacking only. Source: STORAGE.md.

Unpacking never raises, whatever is on the disk: what does not parse, or has another CRC, is None.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from crc32c import crc32c

from shared.columns import equal_rows

FORMAT_PATH = "FORMAT"
MANIFEST_PATH = "BACKUP"
"""A backup's list of its files, written last."""
FORMAT_NUMBER = 1
FORMAT_TEXT = b"brokers data folder, format %d\n"

LENGTH_BYTES = 4
"""A record's length field."""

SECTOR = 512
"""Batches start at multiples of this and are padded to it: what every disk writes whole or not at all."""

BATCH_MAGIC = b"BRJ1"
BATCH_HEADER_BYTES = 64
ENTRY_HEADER_BYTES = 32
BATCH_PAYLOAD_MAX = 8 << 20
"""A batch's most payload, unless one append alone is larger."""

INDEX_MAGIC = b"BRKIDX01"
INDEX_HEADER_BYTES = 64
INDEX_ENTRY_BYTES = 64

_LENGTH = struct.Struct(">I")
_BATCH = struct.Struct(">4sIQQQQQIQI")
_ENTRY = struct.Struct(">BB2xIQQQ")
_REFERENCE = struct.Struct(">QI")
_INDEX_HEADER = struct.Struct(">8sQQ36x")
_INDEX_ENTRY = struct.Struct(">QQQIIIIQ12x")
_CRC = struct.Struct(">I")

_NO_HEADER = bytes(BATCH_HEADER_BYTES)

length_at = _LENGTH.unpack_from
"""`length_at(data, position)`: `(payload length,)` of the record that begins at `position`."""


# -- records


_EQUAL_LEAST = 8
"""From this many records of one length on, `skip_records` looks whether more follow."""


def record(payload: bytes) -> bytes:
    """One record as stored in a log."""
    return _LENGTH.pack(len(payload)) + payload


def skip_records(data: bytes | bytearray, position: int, stop: int) -> tuple[int, int]:
    """Walk whole records from `position` (a record's start) while they end at or below `stop`.

    Returns where the walk ended, and how many records it passed. The end is `stop` exactly if a record ends
    there, else the start of the record that crosses it. Runs of equal lengths are checked by slices, ten
    times faster than one by one. Where those runs prove short, only longer ones are tried.
    """
    records = 0
    run = 0
    last = -1
    tried = _EQUAL_LEAST
    stop_length = stop - LENGTH_BYTES
    while position <= stop_length:
        length = length_at(data, position)[0]
        if position + length > stop_length:
            break
        if length != last:
            last = length
            run = 0
        elif run < tried:
            run += 1
        else:
            size = length + LENGTH_BYTES
            equal = equal_rows(data, position, size, range(LENGTH_BYTES), (stop - position) // size)
            if equal < 4 * _EQUAL_LEAST:
                tried *= 2
            position += equal * size
            records += equal
            run = 0
            continue
        position += length + LENGTH_BYTES
        records += 1
    return position, records


def count_records(data: bytes | bytearray) -> int | None:
    """How many records `data` consists of; None if it does not end with a record."""
    end, records = skip_records(data, 0, len(data))
    return records if end == len(data) else None


def split_records(
    data: bytes | bytearray, piece_bytes: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Cut the whole records in `data[start:stop]` into pieces (start, end, records).

    A piece is as long as fits `piece_bytes`, or one longer record. Raises ValueError if the bytes do not end
    with a record.
    """
    total = len(data) if stop is None else stop
    while start < total:
        end, records = skip_records(data, start, min(start + piece_bytes, total))
        if end == start:
            if start + LENGTH_BYTES > total:
                raise ValueError("the bytes end inside a record")
            end, records = start + LENGTH_BYTES + _LENGTH.unpack_from(data, start)[0], 1
            if end > total:
                raise ValueError("the bytes end inside a record")
        yield start, end, records
        start = end


# -- journal


class EntryKind(IntEnum):
    """What a journal entry says."""

    APPEND = 1
    CREATE = 2
    DELETE = 3
    FIRST = 4
    MODE = 5
    REFERENCE = 6


AHEAD = 1
"""A flag of an APPEND: from here on the log's file may have bytes that no entry of the journal mentions."""

REFERENCE_BYTES = _REFERENCE.size


class Entry(NamedTuple):
    """One journal entry. `body` lies at `body_start` of the batch's payload."""

    kind: int
    records: int
    log_id: int
    offset: int
    body_start: int
    body_end: int
    flags: int = 0


class Batch(NamedTuple):
    """A batch's header. `size`: bytes in the segment, padding included."""

    lsn: int
    synced_lsn: int
    time_ms: int
    journal_id: int
    payload_bytes: int
    entries: int
    previous_lsn: int
    crc: int = 0

    @property
    def size(self) -> int:
        return padded(BATCH_HEADER_BYTES + self.payload_bytes)


def padded(size: int) -> int:
    return -(-size // SECTOR) * SECTOR


pack_entry_header = _ENTRY.pack
"""An entry's header: kind, flags, records, log id, offset, and the length of the bytes that follow."""


def pack_entry(kind: int, log_id: int, offset: int = 0, length: int = 0, records: int = 0) -> bytes:
    """`pack_entry_header` without flags, as most kinds need it."""
    return pack_entry_header(kind, 0, records, log_id, offset, length)


def pack_reference(length: int, crc: int) -> bytes:
    """The body of a REFERENCE to `length` bytes of the log's file with that CRC."""
    return _REFERENCE.pack(length, crc)


def unpack_reference(payload: bytes | memoryview, entry: Entry) -> tuple[int, int] | None:
    """(length, CRC) of a REFERENCE, or None if its body is malformed."""
    if entry.body_end - entry.body_start != REFERENCE_BYTES:
        return None
    length, crc = _REFERENCE.unpack_from(payload, entry.body_start)
    return length, crc


def pack_batch(
    lsn: int,
    synced: int,
    time_ms: int,
    journal_id: int,
    payload_bytes: int,
    entries: int,
    previous: int,
    parts: Sequence[bytes | memoryview],
) -> bytearray:
    """The whole batch, ready to write: what its `Batch` says, and `parts`, the entries' headers and bytes."""
    used = BATCH_HEADER_BYTES + payload_bytes
    batch = bytearray().join((_NO_HEADER, *parts, bytes(-used % SECTOR)))
    _BATCH.pack_into(
        batch, 0, BATCH_MAGIC, 0, lsn, synced, time_ms, journal_id, payload_bytes, entries, previous, 0
    )
    _CRC.pack_into(batch, 4, crc32c(memoryview(batch)[8:used]))
    return batch


def with_previous(batch: Batch, data: bytes | memoryview, previous: int) -> bytearray:
    """A whole batch, with another LSN of the batch before it."""
    used = BATCH_HEADER_BYTES + batch.payload_bytes
    changed = bytearray(data)
    head = batch._replace(previous_lsn=previous)
    _BATCH.pack_into(changed, 0, BATCH_MAGIC, 0, *head[:-1], 0)
    _CRC.pack_into(changed, 4, crc32c(memoryview(changed)[8:used]))
    return changed


def unpack_batch(data: bytes, at: int = 0) -> Batch | None:
    """The header at `data[at:]`, if it looks like one; its CRC is not checked (see `batch_is_good`)."""
    if len(data) < at + BATCH_HEADER_BYTES or data[at : at + 4] != BATCH_MAGIC:
        return None
    _, crc, lsn, synced, time_ms, journal_id, payload, entries, previous, zero = _BATCH.unpack_from(data, at)
    if zero or lsn % SECTOR:
        return None
    return Batch(lsn, synced, time_ms, journal_id, payload, entries, previous, crc)


def batch_is_good(batch: Batch, data: bytes | memoryview) -> bool:
    """Whether `data`, from the batch's first byte on, holds all of it and matches its CRC."""
    end = BATCH_HEADER_BYTES + batch.payload_bytes
    return len(data) >= end and crc32c(memoryview(data)[8:end]) == batch.crc


def unpack_entries(payload: bytes | memoryview, entries: int) -> list[Entry] | None:
    """The entries of a payload whose CRC is good; None if they do not fill it exactly."""
    found = []
    position = 0
    for _ in range(entries):
        if position + ENTRY_HEADER_BYTES > len(payload):
            return None
        kind, flags, records, log_id, offset, length = _ENTRY.unpack_from(payload, position)
        start = position + ENTRY_HEADER_BYTES
        position = start + length
        found.append(Entry(kind, records, log_id, offset, start, position, flags))
    return found if position == len(payload) else None


def seeming_entries(payload: bytes) -> Iterator[Entry]:
    """What entries a payload whose CRC is bad may have had, as far as lengths lead; the last may be cut."""
    position = 0
    while position + ENTRY_HEADER_BYTES <= len(payload):
        kind, flags, records, log_id, offset, length = _ENTRY.unpack_from(payload, position)
        start = position + ENTRY_HEADER_BYTES
        position = min(start + length, len(payload))
        yield Entry(kind, records, log_id, offset, start, position, flags)


# -- index


class EntryFlag(IntEnum):
    """Bits of an entry's `flags`."""

    UNVERIFIED = 1
    DAMAGED = 2


class IndexEntry(NamedTuple):
    """One entry of an index: what is known of `length` bytes of whole records from `offset` on."""

    offset: int
    first_ms: int
    last_ms: int
    length: int
    records: int
    crc32c: int
    flags: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def unverified(self) -> bool:
        """The CRC is of what was found when the index was rebuilt, maybe not of what was written."""
        return self.flags != 0

    @property
    def damaged(self) -> bool:
        """The range is known to be bad: reading it is an error."""
        return self.flags & EntryFlag.DAMAGED != 0


def pack_index_header(log_id: int, created_ms: int) -> bytes:
    head = _INDEX_HEADER.pack(INDEX_MAGIC, log_id, created_ms)
    return head + _CRC.pack(crc32c(head))


def unpack_index_header(data: bytes) -> tuple[int, int] | None:
    """(log id, created_ms), or None."""
    if len(data) < INDEX_HEADER_BYTES:
        return None
    body = data[: INDEX_HEADER_BYTES - 4]
    if body[:8] != INDEX_MAGIC or _CRC.unpack_from(data, len(body))[0] != crc32c(body):
        return None
    _, log_id, created_ms = _INDEX_HEADER.unpack(body)
    return log_id, created_ms


def pack_index_entry(entry: IndexEntry, log_id: int) -> bytes:
    body = _INDEX_ENTRY.pack(*entry, log_id)
    return body + _CRC.pack(crc32c(body))


def unpack_index_entry(data: bytes | bytearray, log_id: int, at: int = 0) -> IndexEntry | None:
    """The entry at `data[at:]`, or None if it is bad or not of this log (all zero: retention)."""
    body = data[at : at + INDEX_ENTRY_BYTES - 4]
    if len(data) < at + INDEX_ENTRY_BYTES or _CRC.unpack_from(data, at + INDEX_ENTRY_BYTES - 4)[0] != crc32c(
        body
    ):
        return None
    *fields, owner = _INDEX_ENTRY.unpack(body)
    return IndexEntry(*fields) if owner == log_id else None


# -- tables


class TableChange(NamedTuple):
    """A key of a table and its new value; None: it was deleted."""

    key: bytes
    value: bytes | None


_TABLE_HEAD_BYTES = 3
PUT, DELETE = 1, 2


def table_change(payload: bytes) -> TableChange | None:
    """The change that a table's record makes; None if it is no record of a table."""
    end = _TABLE_HEAD_BYTES + int.from_bytes(payload[1:_TABLE_HEAD_BYTES], "big")
    if len(payload) < end or payload[0] not in (PUT, DELETE):
        return None
    return TableChange(payload[_TABLE_HEAD_BYTES:end], payload[end:] if payload[0] == PUT else None)


# -- text


def pack_line(line: dict[str, Any]) -> bytes:
    """A JSON object as a line."""
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def seal_lines(lines: Iterable[bytes]) -> bytes:
    """The lines, and a last one with the CRC over them."""
    body = b"".join(lines)
    return body + b'{"crc32c":"%08x"}\n' % crc32c(body)


def pack_lines(lines: Iterable[dict[str, Any]]) -> bytes:
    """JSON objects a line each, sealed."""
    return seal_lines(map(pack_line, lines))


def unpack_lines(data: bytes) -> list[dict[str, Any]] | None:
    """The lines that `seal_lines` sealed, or None if the CRC does not match."""
    end = data.rfind(b"\n", 0, max(len(data) - 1, 0)) + 1
    try:
        last = json.loads(data[end:])
        if not data.endswith(b"\n") or last != {"crc32c": f"{crc32c(data[:end]):08x}"}:
            return None
        return [json.loads(line) for line in data[:end].splitlines()]
    except (ValueError, RecursionError):
        return None


def format_number(data: bytes) -> int | None:
    """The number in a FORMAT file, or None where it is not one."""
    head, _, number = data.rpartition(b" ")
    if head != FORMAT_TEXT.rpartition(b" ")[0] or not number.endswith(b"\n") or not number[:-1].isdigit():
        return None
    return int(number) or None  # there was no format 0
