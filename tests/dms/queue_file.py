"""A reader of a queue's log that shares no code with the broker: written from dms/STORAGE.md alone."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

HEAD = struct.Struct(">BBHIQQQ")


@attrs.frozen
class Record:
    """`entries`: as the table of kinds has them. Where and when it was written is looked at apart."""

    kind: int
    reason: int
    sequence: int
    entries: tuple[Any, ...]
    offset: int = attrs.field(default=0, eq=False)
    age_ms: int = attrs.field(default=0, eq=False)
    unix_ms: int = attrs.field(default=0, eq=False)


def read(path: Path, *, growing: bool = False) -> list[Record]:
    """Every record of the file. Raises ValueError for any byte that the document does not account for.

    `growing`: a server writes it at this moment, so its last record may not be whole yet.
    """
    data = path.read_bytes()
    found = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4])
        if at + 4 + length > len(data):
            if growing:
                break
            raise ValueError(f"a record at {at} is cut short")
        found.append(_record(at, data[at + 4 : at + 4 + length]))
        at += 4 + length
    return found


def _record(offset: int, payload: bytes) -> Record:
    kind, version, reason, count, age, unix, sequence = HEAD.unpack_from(payload)
    if version != 1:
        raise ValueError(f"version {version}")
    entries = Entries(payload[HEAD.size :])
    found = tuple(entries.take(kind) for _ in range(count))
    if kind == 7:  # behind all entries the name of the queue that they went to
        found += (entries.rest().decode(),)
    if left := entries.rest():
        raise ValueError(f"{len(left)} bytes behind {count} entries of kind {kind}: {left[:40]!r}")
    return Record(kind, reason, sequence, found, offset, age, unix)


class Entries:
    """The bytes behind a record's head, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, kind: int) -> Any:
        return tuple(self._fields(kind)) if kind not in (9, 10, 14, 15) else json.loads(self.rest())

    def rest(self) -> bytes:
        return self._bytes(len(self._data) - self._at)

    def _fields(self, kind: int) -> Iterator[Any]:
        match kind:
            case 1:
                yield self._bytes(self._number(4))
            case 2:
                yield json.loads(self._bytes(self._number(4)))
                yield self._bytes(self._number(4))
            case 3 | 4 | 6 | 7:
                yield from (self._number(8), self._number(4))
            case 5:
                yield from (self._number(8), self._number(4), self._number(8))
            case 8 | 11:
                yield from (self._number(8), self._number(4), self._number(8))
                letter, body = self._number(4), self._number(4)
                yield json.loads(self._bytes(letter) or b"null")
                yield self._bytes(body)
            case 12:
                yield self._number(8)
                yield self._bytes(self._number(4)).decode()
            case 13:
                yield from (self._number(8), self._number(8), self._number(8))
            case _:
                raise ValueError(f"kind {kind}")

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "big")

    def _bytes(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"{size} bytes are announced, {len(self._data) - start} are there")
        return self._data[start : self._at]
