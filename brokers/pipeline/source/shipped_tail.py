"""What came to a bucket since its newest snapshot: the batches in its WAL objects (brokers/ship/SHIP.md).

A WAL object is fetched to see what it has of each log, and once more where records of it are read, unless it
is one of the last few. It ends where the next number is not there, or an object does not go on from the one
before: what is behind that comes with the next snapshot.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio
from crc32c import crc32c

from shared.storage.catalog import LogLine, unpack_create
from shared.storage.entries import ENTRY_COVERS_BYTES, ENTRY_COVERS_SECONDS
from shared.storage.format import (
    BATCH_HEADER_BYTES,
    EntryKind,
    IndexEntry,
    count_records,
    unpack_entries,
)

if TYPE_CHECKING:
    from brokers.ship.bucket import Bucket
    from brokers.ship.formats import Snapshot, Wal, WalHead

AT_ONCE = 8
"""WAL objects that are fetched together."""
OBJECTS_KEPT = 2

Contents = dict[int, list[tuple[int, "memoryview | bytes"]]]
"""What a WAL object has of each log, by its id: offsets and bytes, in order."""


@attrs.frozen
class TailEntry:
    """An index entry for bytes in the WAL object `number`."""

    entry: IndexEntry
    number: int


@attrs.define(eq=False)
class ShippedTail:
    """What came since a snapshot. `lines`: all logs, as of what was seen so far; `ends`: where each ended in
    the snapshot.
    """

    bucket: "Bucket"
    snapshot: "Snapshot"
    lines: dict[int, LogLine] = attrs.field(init=False)
    ends: dict[int, int] = attrs.field(init=False)
    _entries: dict[int, list[TailEntry]] = attrs.Factory(dict)
    _next: int = attrs.field(init=False)
    _before: "WalHead | None" = None
    _ended: bool = False
    _kept: "OrderedDict[int, Contents]" = attrs.Factory(OrderedDict)

    def __attrs_post_init__(self) -> None:
        self.lines = {line.id: line for line in self.snapshot.catalog.logs}
        self.ends = {line.id: max(line.first, line.end) for line in self.lines.values()}
        self._next = self.snapshot.wal

    # -- what there is

    def advance(self) -> None:
        """Take in what has come by now. Raises BucketErrors."""
        while not self._ended:
            found = self._fetch(range(self._next, self._next + AT_ONCE))
            for wal in found:
                if wal is None or not self._goes_on(wal.head):
                    self._ended = wal is not None
                    return
                self._take(wal)
                self._before, self._next = wal.head, wal.head.number + 1

    def entries(self, log_id: int) -> Sequence[TailEntry]:
        """Those of a log, in order."""
        return self._entries.get(log_id, ())

    def entry_at(self, log_id: int, offset: int) -> IndexEntry | None:
        entries = self.entries(log_id)
        at = bisect_right(entries, offset, key=lambda each: each.entry.offset) - 1
        return entries[at].entry if at >= 0 else None

    def _goes_on(self, head: "WalHead") -> bool:
        from brokers.ship.formats import continues

        if self._before is not None:
            return continues(self._before, head)
        journal_id = self.snapshot.catalog.journal_id
        return head.journal_id == journal_id and head.first_lsn <= max(
            self.snapshot.lsn, self.snapshot.whole_from
        )

    def _take(self, wal: "Wal") -> None:
        contents: Contents = {}
        opened: dict[int, IndexEntry] = {}
        for time_ms, kind, log_id, offset, data, records in self._changes(wal):
            line = self.lines.get(log_id)
            if kind == EntryKind.CREATE:
                self.lines[log_id] = unpack_create(log_id, bytes(data))
                self.ends[log_id] = 0
            elif line is None:
                continue  # it is deleted, in this very batch perhaps
            elif kind == EntryKind.DELETE:
                del self.lines[log_id]
                for of_logs in (self._entries, opened, contents):
                    of_logs.pop(log_id, None)
            elif kind == EntryKind.FIRST:
                self.lines[log_id] = line._replace(first=max(line.first, offset))
            elif kind in (EntryKind.APPEND, EntryKind.REFERENCE) and offset + len(data) > line.end:
                if offset < line.end:  # the parts have the records in front
                    data = data[line.end - offset :]
                    offset, records = line.end, count_records(bytes(data)) or 0
                contents.setdefault(log_id, []).append((offset, data))
                self.lines[log_id] = line._replace(end=offset + len(data))
                self._index(opened, log_id, wal.head.number, time_ms, offset, data, records)
        self._keep(wal.head.number, contents)

    def _index(
        self,
        opened: dict[int, IndexEntry],
        log_id: int,
        number: int,
        time_ms: int,
        offset: int,
        data: "memoryview | bytes",
        records: int,
    ) -> None:
        """Extend the newest entry of a log in this object, or begin one, as a server does."""
        entries = self._entries.setdefault(log_id, [])
        before = opened.get(log_id)
        if (
            before is not None
            and before.end == offset
            and before.length + len(data) <= ENTRY_COVERS_BYTES
            and time_ms - before.first_ms <= ENTRY_COVERS_SECONDS * 1000
        ):
            entry = before._replace(
                last_ms=max(time_ms, before.last_ms),
                length=before.length + len(data),
                records=before.records + records,
                crc32c=crc32c(data, before.crc32c),
            )
            entries[-1] = TailEntry(entry, number)
        else:
            entry = IndexEntry(offset, time_ms, time_ms, len(data), records, crc32c(data))
            entries.append(TailEntry(entry, number))
        opened[log_id] = entry

    def _changes(self, wal: "Wal") -> Iterator[tuple[int, int, int, int, "memoryview | bytes", int]]:
        """(time, kind, log id, offset, bytes, records) of each entry behind the snapshot."""
        pieces = {(piece.log_id, piece.offset): piece for piece in wal.pieces()}
        for batch, raw in wal.batches():
            if batch.lsn < self.snapshot.lsn:
                continue
            payload = raw[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + batch.payload_bytes]
            for entry in unpack_entries(payload, batch.entries) or ():
                data: memoryview | bytes = payload[entry.body_start : entry.body_end]
                if entry.kind == EntryKind.REFERENCE:
                    piece = pieces.get((entry.log_id, entry.offset))
                    data = b"" if piece is None or piece.data is None else piece.data
                yield batch.time_ms, entry.kind, entry.log_id, entry.offset, data, entry.records

    # -- bytes

    def read(self, log_id: int, start: int, size: int) -> bytes:
        """A log's bytes from `start` on; fewer where they end, or an object is gone. Raises BucketErrors."""
        found = bytearray()
        entries = self.entries(log_id)
        at = max(bisect_right(entries, start, key=lambda each: each.entry.offset) - 1, 0)
        for number in dict.fromkeys(each.number for each in entries[at:] if each.entry.offset < start + size):
            for offset, data in self._contents(number).get(log_id, ()):
                position = start + len(found)
                if offset <= position < offset + len(data) and len(found) < size:
                    found += data[position - offset :][: size - len(found)]
        return bytes(found)

    def _contents(self, number: int) -> Contents:
        found = self._kept.get(number)
        if found is None:
            (wal,) = self._fetch([number])
            found = {}
            for _, kind, log_id, offset, data, _ in self._changes(wal) if wal is not None else ():
                if kind in (EntryKind.APPEND, EntryKind.REFERENCE):
                    found.setdefault(log_id, []).append((offset, data))
            self._keep(number, found)
        return found

    def _keep(self, number: int, contents: Contents) -> None:
        self._kept[number] = contents
        while len(self._kept) > OBJECTS_KEPT:
            self._kept.popitem(last=False)

    def _fetch(self, numbers: Sequence[int]) -> list["Wal | None"]:
        """Consecutive WAL objects, the first of which ends it that is not there, or damaged."""
        from brokers.ship.bucket import Bucket, Missing
        from brokers.ship.formats import BadObject, unpack_wal, wal_key

        bucket = Bucket(self.bucket.store, self.bucket.cipher)
        found: list[Wal | None] = [None] * len(numbers)

        async def fetch(at: int, key: str) -> None:
            get: Callable[[], Awaitable[Any]] = lambda: bucket.get(key)  # noqa: E731
            try:
                found[at] = unpack_wal((await bucket.retried(get))[0], key)
            except (Missing, BadObject):
                pass

        async def fetch_all() -> None:
            async with trio.open_nursery() as nursery:
                for at, number in enumerate(numbers):
                    nursery.start_soon(fetch, at, wal_key(number))

        trio.run(fetch_all)
        return found
