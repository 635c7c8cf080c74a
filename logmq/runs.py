"""Runs: many PRODUCE lines become records, and many records MESSAGE lines, in a few calls.

Nearly every byte of LogMQ passes here. A loop costs half a microsecond a message before it does any work;
splitting, joining and formatting whole runs costs a fifth of that. Each function says why its short cut is
exact, and is tested against the plain loop.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, islice

from shared.columns import equal_rows

HEADER_BYTES = 4
_length_at = struct.Struct(">I").unpack_from
_HEADERS = [size.to_bytes(HEADER_BYTES, "big") for size in range(4097)]
_LENGTHS = [HEADER_BYTES + size for size in range(4097)]
SAME_LEAST = 4
"""From this many records on, records of one size are handled all at once; for fewer, finding out costs more.
"""
LINE_BYTES_MAX = 4096
"""Longer lines are found faster one by one: `split` looks at each byte, 1 us for 1 KiB."""

AT_ONCE = 8192
"""Records that become lines in one call: some milliseconds, if short."""

Lengths = int | Sequence[int]
"""The lengths of a run's records with headers: a list, or one number if all are equal."""


def produced(lines: bytes, word: bytes, separator: bytes, size_max: int) -> tuple[bytes, int, Lengths] | None:
    """The records of several PRODUCE lines, their count and lengths. None where they need a closer look.

    `lines` begins with `word`, which is `PRODUCE <topic> `, and ends in LF. `separator`: LF and `word`. None:
    a line begins otherwise or ends in CR LF, or a message is above `size_max`, or the first is long.
    """
    size = lines.find(b"\n") - len(word)
    if size > LINE_BYTES_MAX or not lines.startswith(separator, len(word) + size) or b"\r" in lines:
        return None
    messages = lines[len(word) : -1].split(separator)
    count = len(messages)
    stride = len(word) + len(messages[0]) + 1
    if count * stride == len(lines) and lines[stride - 1 :: stride] == b"\n" * count:
        # Where no message holds an LF these are all the line ends, so the lines have one length. Each
        # separator holds an LF, so all lines begin with `word`, as the first does.
        size = len(messages[0])
        header = size.to_bytes(HEADER_BYTES, "big")
        records = header + header.join(messages)
        if size > size_max or _hold_lf(records, messages):
            return None
        return records, count, HEADER_BYTES + size
    records, lengths = encode(messages)
    if max(lengths) - HEADER_BYTES > size_max or _hold_lf(records, messages):
        return None
    return records, count, lengths


def appended(data: bytes, start: int, length: int) -> tuple[bytes, int]:
    """The records of the first APPEND requests of `data`, and how many they are; 1 at least, which is whole.

    `length`: of the first request. `start`: where its message begins. Requests of one length stand at its
    multiples. Where the bytes before `start` stand there again is such a request, whatever the messages hold.
    """
    count = equal_rows(data, 0, length, range(start), len(data) // length)
    messages = [data[at + start : at + length] for at in range(0, count * length, length)]
    header = (length - start).to_bytes(HEADER_BYTES, "big")
    return header + header.join(messages), count


def encode(messages: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """The records of `messages`, and their lengths, headers included."""
    sizes = list(map(len, messages))
    try:
        headers = list(map(_HEADERS.__getitem__, sizes))
        lengths = list(map(_LENGTHS.__getitem__, sizes))
    except IndexError:
        headers = [size.to_bytes(HEADER_BYTES, "big") for size in sizes]
        lengths = [HEADER_BYTES + size for size in sizes]
    parts = [b""] * (2 * len(sizes))
    parts[::2] = headers
    parts[1::2] = messages
    return b"".join(parts), lengths


def ok_lines(first: int, count: int, lengths: Lengths) -> bytes:
    """`OK <offset>` for each of `count` records from offset `first` on."""
    if isinstance(lengths, int):
        return (b"OK %d\n" * count) % tuple(range(first, first + count * lengths, lengths))
    offsets = tuple(accumulate(lengths, initial=first))
    return (b"OK %d\n" * count) % offsets[:count]


def message_lines(records: bytes, offset: int) -> tuple[bytes, int]:
    """A MESSAGE line for each of `records`, which are whole, from `offset` on; `AT_ONCE` of them at most.

    Returns the lines and the bytes of the records that they are of.
    """
    size = int.from_bytes(records[:HEADER_BYTES], "big")
    length = HEADER_BYTES + size
    count = min(_same(records, length), AT_ONCE)
    if count:
        end = count * length
        fields: list[int | bytes] = [b""] * (2 * count)
        fields[::2] = range(offset, offset + end, length)
        fields[1::2] = [records[at + HEADER_BYTES : at + length] for at in range(0, end, length)]
        return (b"MESSAGE %%d %d %%b\n" % size * count) % tuple(fields), end
    parts: list[int | bytes] = []
    at, end = 0, len(records)
    while at < end and len(parts) < 3 * AT_ONCE:
        size = _length_at(records, at)[0]
        start = at + HEADER_BYTES
        parts += (offset + at, size, records[start : start + size])
        at = start + size
    return (b"MESSAGE %d %d %b\n" * (len(parts) // 3)) % tuple(parts), at


def consumed(
    offsets: Sequence[int], start: int, records: bytes, at: int, first: int, length: int
) -> tuple[int, int]:
    """How many of `offsets[start:]` ask for one record after the other, and where in `records` those end.

    `records[at:]` are whole records from offset `first` on. `length`: of each, or 0 where they differ
    (`same_length`). `AT_ONCE` at most.
    """
    end = len(records)
    if length:
        most = min(len(offsets) - start, (end - at) // length, AT_ONCE)
        if list(offsets[start : start + most]) == list(range(first, first + most * length, length)):
            return most, at + most * length
    base = first - at
    count = 0
    for offset in islice(offsets, start, start + AT_ONCE):
        if offset != base + at or at >= end:
            break
        at += HEADER_BYTES + _length_at(records, at)[0]
        count += 1
    return count, at


def same_length(records: bytes) -> int:
    """The length of each of `records`, which are whole; 0 where lengths differ or the records are few."""
    length = HEADER_BYTES + int.from_bytes(records[:HEADER_BYTES], "big")
    return length if _same(records, length) else 0


def _hold_lf(records: bytes, messages: Sequence[bytes]) -> bool:
    """Whether a message holds an LF. Headers may hold one: only then are the messages looked at alone."""
    return b"\n" in records and b"\n" in b"".join(messages)


def _same(records: bytes, length: int) -> int:
    """The number of records where all are `length` bytes, headers included; else 0, as where they are few.

    The first header must say so, and the same header must stand at every multiple of `length`. Then each
    record ends where the next header stands, whatever the payloads hold.
    """
    count, rest = divmod(len(records), length)
    if rest or count < SAME_LEAST:
        return 0
    return count if equal_rows(records, 0, length, range(HEADER_BYTES), count) == count else 0
