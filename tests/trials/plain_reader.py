"""A reader of the data folder that shares no code with the broker: written from STORAGE.md alone."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import attrs
import crc32c

_HEADER_BYTES = 64
_ENTRY_BYTES = 64


@attrs.frozen
class Entry:
    """One index entry: what its 48 bytes say."""

    offset: int
    length: int
    records: int
    crc32c: int


def log_bytes(folder: Path, topic: str) -> bytes | None:
    """The log file, all of it; None where there is none."""
    try:
        return (folder / "logmq" / f"{topic}.log").read_bytes()
    except FileNotFoundError:
        return None


def topics_with_files(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "logmq").glob("*.log")}


def record_count(data: bytes) -> int | None:
    """How many records `data` is made of, None if they are not whole."""
    at = count = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count if at == len(data) else None


def index_entries(folder: Path, topic: str) -> list[Entry]:
    """The entries up to the last good one. Raises ValueError where a bad one comes before a good one."""
    data = (folder / "logmq" / f"{topic}.idx").read_bytes()
    if data[:8] != b"BRKIDX01" or not _good(data[:_HEADER_BYTES]):
        raise ValueError("the index's header is not good")
    entries: list[Entry] = []
    bad: int | None = None
    for at, entry in _entries(data, log_id=data[8:16]):
        if entry is None:
            bad = at if bad is None else bad
        elif bad is not None:
            raise ValueError(f"the index's entry at {bad} is bad, a later one is good")
        else:
            entries.append(entry)
    return entries


def index_faults(entries: list[Entry], first: int, data: bytes, start: int) -> Iterator[str]:
    """What the index says that is not so; `data` is the log from offset `start` to its end.

    Entries wholly below the first kept offset promise nothing. One may begin below and end above it: then its
    bytes are all in the file, which is why it is the file that must be looked at (`start` 0). Where only what
    is kept is at hand, such an entry cannot be checked.
    """
    entries = [entry for entry in entries if entry.offset + entry.length > first]
    for before, entry in pairwise(entries):
        if before.offset + before.length != entry.offset:
            yield f"index entries are not one after the other at {entry.offset}"
    for entry in entries:
        if entry.offset < start:
            continue
        covered = data[entry.offset - start : entry.offset - start + entry.length]
        if len(covered) != entry.length:
            yield f"the index covers up to {entry.offset + entry.length}, the log ends at {start + len(data)}"
        elif crc32c.crc32c(covered) != entry.crc32c:
            yield f"the index's CRC differs at {entry.offset}"
        elif record_count(covered) != entry.records:
            yield f"the index counts {entry.records} records at {entry.offset}: not so"


def _entries(data: bytes, log_id: bytes) -> Iterator[tuple[int, Entry | None]]:
    for at in range(_HEADER_BYTES, len(data) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        part = data[at : at + _ENTRY_BYTES]
        if not any(part):
            continue  # given back by retention, or never written
        if not _good(part) or part[40:48] != log_id:
            yield at, None
            continue
        offset, length, records, crc = (
            int.from_bytes(part[start:stop], "big") for start, stop in ((0, 8), (24, 28), (28, 32), (32, 36))
        )
        yield at, Entry(offset, length, records, crc)


def _good(part: bytes) -> bool:
    return int.from_bytes(part[-4:], "big") == crc32c.crc32c(part[:-4])
