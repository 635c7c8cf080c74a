"""A batch of a queue's records as *events*: Arrow in, Arrow out. Source: STORAGE.md.

One row for each produced message, and one for each run of sequences with the same event. The heads of all
records are read at once, and so are runs, returns, and messages of one length. Bodies of different lengths
are measured one by one; rare records (letters, copies in snapshots) are read one by one.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dms.records import HEAD, VERSION, RecordKind
from shared.tables.table import time_type
from shared.tables.vectors import TIME_MS_MAX, counted, memory_of, unsigned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.tables.vectors import Bytes, Numbers

RUN_MAX = 1 << 16
"""The most messages of one row. A longer run is several rows, so that unfolding one takes little memory."""

PRODUCED, DELIVERED, ACKNOWLEDGED, RETURNED = "produced", "delivered", "acknowledged", "returned"
GONE, MOVED, KEPT, SNAPSHOT, IMPORTED = "gone", "moved", "kept", "snapshot", "imported"
TEXTS, RESCHEDULED, SEEN, SCHEDULED, PLACES = "texts", "rescheduled", "seen", "scheduled", "places"
NAMES = (
    None,
    *(PRODUCED, PRODUCED, DELIVERED, ACKNOWLEDGED, RETURNED),
    *(GONE, MOVED, KEPT, SNAPSHOT, IMPORTED),
    *(PRODUCED, TEXTS, RESCHEDULED, SEEN, SCHEDULED, PLACES),
)
"""Event names, by kind of record."""
REASONS = (None, "nack", "connection lost", "ttl", "max_deliveries", "purged", "redriven", "cancelled")
"""Reasons, by their number in records."""

SCHEMA = pa.schema(
    [
        ("log", pa.string()),
        ("offset", pa.int64()),
        ("time", time_type()),
        ("protocol", pa.string()),
        ("name", pa.string()),
        ("event", pa.string()),
        ("seq", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("deliveries", pa.int64()),
        ("reason", pa.string()),
        ("origin", pa.string()),
        ("target", pa.string()),
        ("fault", pa.string()),
    ]
)
"""`seq`, `messages`: the first of the queue's messages, and how many; for a snapshot, where the row begins.
`bytes`: of the body, where a message is produced or copied. `deliveries`: so far, where it is returned or
copied. `origin`: the queue that a dead letter comes from. `target`: the queue that messages moved to."""

_HEAD_BYTES = HEAD.size - 4
"""Bytes of a record's length, which is not part of its payload."""
_RUN_BYTES, _RETURNED_BYTES = 12, 20
_KEPT = struct.Struct(">QIQII")
_LENGTH = struct.Struct(">I")
_SEQ_MAX = 1 << 62
_NONE = -1
"""The number that stands for null."""


def events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events in the records of a batch, in order. `shared.tables.table` says what this may do."""
    return _Records(batch).events()


class _Rows:
    """Rows of some records: each one's record, and columns. A column that is not given is null."""

    def __init__(
        self,
        record: "Numbers | Sequence[int]",
        seq: "Numbers | Sequence[int]",
        messages: "Numbers | Sequence[int] | int" = 1,
        size: "Numbers | Sequence[int] | int" = _NONE,
        deliveries: "Numbers | Sequence[int] | int" = _NONE,
        texts: "Sequence[tuple[str | None, str | None]] | None" = None,
    ) -> None:
        self.record = np.asarray(record, np.int64)
        count = len(self.record)
        self.numbers = np.empty((4, count), np.int64)
        for row, values in zip(self.numbers, (seq, messages, size, deliveries), strict=True):
            row[:] = values
        self.texts = np.full((2, count), None, object)
        """Origin and target."""
        if texts is not None:
            for number, pair in enumerate(texts):
                self.texts[:, number] = pair


class _Records:
    """The records of one batch: where each begins and ends in `data`, and its head."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.bytes, bounds = memory_of(batch)
        self.data: Bytes = np.frombuffer(self.bytes, np.uint8)
        self.body = bounds[:-1] + _HEAD_BYTES
        self.end = bounds[1:]
        self.faults: dict[int, str] = {}
        self.kind = np.zeros(batch.num_rows, np.int64)
        self.reason, self.entries = np.zeros_like(self.kind), np.zeros_like(self.kind)
        self.time, self.seq = np.zeros_like(self.kind), np.zeros_like(self.kind)
        self._heads()

    def _heads(self) -> None:
        whole = np.flatnonzero(self.end >= self.body)
        for number in np.flatnonzero(self.end < self.body):
            self._fault(number, "it is shorter than a head")
        at = self.body[whole] - _HEAD_BYTES
        data = self.data
        self.kind[whole] = data[at]
        self.reason[whole] = unsigned(data, at + 2, 2)
        self.entries[whole] = unsigned(data, at + 4, 4)
        self.time[whole] = unsigned(data, at + 16, 8)
        self.seq[whole] = unsigned(data, at + 24, 8)
        version = data[at + 1]
        for number in whole[version != VERSION]:
            self._fault(number, f"version {data[self.body[number] - _HEAD_BYTES + 1]}")
        for number in whole[(self.kind[whole] < 1) | (self.kind[whole] >= len(NAMES))]:
            self._fault(number, f"kind {self.kind[number]}")
        for number in whole[(self.time[whole] < 0) | (self.time[whole] > TIME_MS_MAX)]:
            self._fault(number, "its time")
        for number in whole[(self.seq[whole] < 0) | (self.seq[whole] > _SEQ_MAX)]:
            self._fault(number, "its sequence")

    def _fault(self, number: "int | np.signedinteger[Any]", what: str) -> None:
        """Mark a record as unreadable: it yields only its fault. The first fault counts."""
        self.faults.setdefault(int(number), what)
        self.kind[number] = 0

    def _of(self, *kinds: RecordKind) -> "Numbers":
        """The records of these kinds without a fault so far."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    # -- kinds of records

    def events(self) -> pa.RecordBatch:
        found = [
            self._runs(_RUN_BYTES, RecordKind.DELIVERED, RecordKind.ACKED, RecordKind.GONE),
            self._moved(),
            self._returned(),
            self._enqueued(),
            self._one_by_one(RecordKind.LETTERS, self._letters),
            self._one_by_one(RecordKind.KEPT, self._kept),
            self._one_by_one(RecordKind.JOBS, self._jobs),
            self._alone(RecordKind.SNAPSHOT, RecordKind.IMPORTED),
            self._alone(RecordKind.TEXTS, RecordKind.RESCHEDULED, RecordKind.SEEN, RecordKind.SCHEDULED),
            self._alone(RecordKind.PLACES),
        ]
        bad = sorted(self.faults)
        found.append(_Rows(bad, np.full(len(bad), _NONE), _NONE))
        record = np.concatenate([rows.record for rows in found])
        order = np.argsort(record, kind="stable")
        numbers = np.concatenate([rows.numbers for rows in found], axis=1)[:, order]
        texts = np.concatenate([rows.texts for rows in found], axis=1)[:, order]
        return self._batch(record[order], numbers, texts)

    def _runs(self, entry_bytes: int, *kinds: RecordKind) -> _Rows:
        which = self._of(*kinds)
        wrong = which[self.end[which] - self.body[which] != entry_bytes * self.entries[which]]
        for number in wrong:
            self._fault(number, "its length is not that of its entries")
        return self._unfolded(self._of(*kinds))

    def _moved(self) -> _Rows:
        which = self._of(RecordKind.MOVED)
        for number in which[self.end[which] - self.body[which] < _RUN_BYTES * self.entries[which]]:
            self._fault(number, "it is shorter than its entries")
        which = self._of(RecordKind.MOVED)
        targets = np.full(len(self.kind), None, object)
        for number in which:
            begin = int(self.body[number] + _RUN_BYTES * self.entries[number])
            targets[number] = _text(bytes(self.bytes[begin : self.end[number]]))
        rows = self._unfolded(which)
        rows.texts[1] = targets[rows.record]
        return rows

    def _unfolded(self, which: "Numbers") -> _Rows:
        """The runs in these records; a long one as several rows."""
        record, at = _entries(which, self.body, self.entries, _RUN_BYTES)
        first, count = unsigned(self.data, at, 8), unsigned(self.data, at + 8, 4)
        bad = (first < 0) | (first > _SEQ_MAX)
        for number in np.unique(record[bad]):
            self._fault(number, "a sequence")
        good = ~np.isin(record, list(self.faults)) & (count > 0)
        record, first, count = record[good], first[good], count[good]
        pieces = -(-count // RUN_MAX)
        if len(pieces) and pieces.max() > 1:
            done = RUN_MAX * counted(pieces)
            record, first, count = (np.repeat(each, pieces) for each in (record, first, count))
            first, count = first + done, np.minimum(count - done, RUN_MAX)
        return _Rows(record, first, count)

    def _returned(self) -> _Rows:
        which = self._of(RecordKind.RETURNED)
        wrong = which[self.end[which] - self.body[which] != _RETURNED_BYTES * self.entries[which]]
        for number in wrong:
            self._fault(number, "its length is not that of its entries")
        record, at = _entries(self._of(RecordKind.RETURNED), self.body, self.entries, _RETURNED_BYTES)
        seq = unsigned(self.data, at, 8)
        for number in np.unique(record[(seq < 0) | (seq > _SEQ_MAX)]):
            self._fault(number, "a sequence")
        good = ~np.isin(record, list(self.faults))
        return _Rows(record[good], seq[good], 1, _NONE, unsigned(self.data, at[good] + 8, 4))

    def _enqueued(self) -> _Rows:
        which = self._of(RecordKind.ENQUEUED)
        entries, room = self.entries[which], self.end[which] - self.body[which]
        for number in which[room < 4 * entries]:
            self._fault(number, "it is shorter than its entries")
        which = which[room >= 4 * entries]
        alike = self._alike(which)
        rows: list[tuple[Numbers, Numbers]] = [(which[alike], self._first_lengths(which[alike]))]
        sizes: list[Numbers] = [np.repeat(rows[0][1], self.entries[rows[0][0]])]
        records = [np.repeat(rows[0][0], self.entries[rows[0][0]])]
        for number in which[~alike]:
            lengths = self._lengths(int(number), int(self.entries[number]))
            if lengths is None:
                self._fault(number, "its entries do not fill it")
                continue
            sizes.append(np.array(lengths, np.int64))
            records.append(np.full(len(lengths), number, np.int64))
        record, size = np.concatenate(records), np.concatenate(sizes)
        order = np.argsort(record, kind="stable")
        record, size = record[order], size[order]
        _, counts = np.unique(record, return_counts=True)
        return _Rows(record, self.seq[record] + counted(counts), 1, size)

    def _first_lengths(self, which: "Numbers") -> "Numbers":
        """The lengths of the first entries; 0 for a record without one."""
        some = self.entries[which] > 0
        found = np.zeros(len(which), np.int64)
        found[some] = unsigned(self.data, self.body[which[some]], 4)
        return found

    def _alike(self, which: "Numbers") -> "NDArray[np.bool_]":
        """Whether all messages of a record have one length: then their places are computed, not walked."""
        length = self._first_lengths(which)
        alike = self.end[which] - self.body[which] == (4 + length) * self.entries[which]
        some = np.flatnonzero(alike)
        step = 4 + length[some]
        record, at = _entries(np.arange(len(some)), self.body[which[some]], self.entries[which[some]], step)
        other = unsigned(self.data, at, 4) != step[record] - 4
        alike[some[record[other]]] = False
        return np.asarray(alike, np.bool_)

    def _lengths(self, number: int, count: int) -> list[int] | None:
        """The lengths of a record's entries; None if they do not fill it exactly."""
        at, end = int(self.body[number]), int(self.end[number])
        data, length_at = self.bytes, _LENGTH.unpack_from
        found = []
        for _ in range(count):
            if at + 4 > end:
                return None
            (length,) = length_at(data, at)
            at += 4 + length
            found.append(length)
        return found if at == end else None

    def _one_by_one(self, kind: RecordKind, read: Any) -> _Rows:
        """Rare records: `read` yields (sequence, size, deliveries, origin) of each entry."""
        record: list[int] = []
        rows: list[tuple[int, int, int, str | None]] = []
        for number in self._of(kind):
            try:
                some = list(read(int(number)))
            except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
                self._fault(number, f"an entry cannot be read: {type(error).__name__}")
                continue
            rows += some
            record += [int(number)] * len(some)
        seq, size, deliveries, origin = zip(*rows, strict=True) if rows else ((), (), (), ())
        return _Rows(record, seq, 1, size, deliveries, [(each, None) for each in origin])

    def _letters(self, number: int) -> Iterator[tuple[int, int, int, str | None]]:
        entries = int(self.entries[number])
        lengths = self._lengths(number, 2 * entries)
        if lengths is None:
            raise ValueError("its entries do not fill it")
        at = int(self.body[number])
        for entry in range(entries):
            about, size = lengths[2 * entry : 2 * entry + 2]
            origin = _origin(bytes(self.bytes[at + 4 : at + 4 + about]))
            yield int(self.seq[number]) + entry, size, _NONE, origin
            at += 8 + about + size

    def _kept(self, number: int) -> Iterator[tuple[int, int, int, str | None]]:
        at, end = int(self.body[number]), int(self.end[number])
        for _ in range(int(self.entries[number])):
            seq, deliveries, _, about, size = _KEPT.unpack_from(self.bytes, at)
            at += _KEPT.size
            origin = _origin(bytes(self.bytes[at : at + about])) if about else None
            at += about + size
            if at > end or seq > _SEQ_MAX:
                raise ValueError("it is shorter than its entries")
            yield seq, size, deliveries, origin
        if at != end:
            raise ValueError("its entries do not fill it")

    def _jobs(self, number: int) -> Iterator[tuple[int, int, int, str | None]]:
        for seq, size, _, origin in self._kept(number):
            yield seq, size, _NONE, origin

    def _alone(self, *kinds: RecordKind) -> _Rows:
        which = self._of(*kinds)
        return _Rows(which, self.seq[which], 0)

    # -- the result

    def _batch(self, record: "Numbers", numbers: "Numbers", texts: Any) -> pa.RecordBatch:
        batch = self.batch
        good = ~np.isin(record, list(self.faults))
        bad = ~good
        topics = batch.column("topic").take(pa.array(record))
        reason = self.reason[record]
        reason[reason >= len(REASONS)] = 0
        # an unreadable record has the time of its index entry
        own = pa.array(self.time[record] * 1000).cast(time_type())
        times = pc.if_else(pa.array(good), own, batch.column("timestamp").take(pa.array(record)))
        null = pa.scalar(None, pa.string())
        columns = [
            topics,
            batch.column("offset").take(pa.array(record)),
            times,
            pc.if_else(pa.array(good), pa.scalar("dms"), null),
            pc.if_else(pa.array(good), topics, null),
            pa.array(NAMES, pa.string()).take(pa.array(self.kind[record])),
            *(pa.array(row, mask=(row == _NONE) | bad) for row in numbers),
            pa.array(REASONS, pa.string()).take(pa.array(np.where(bad, 0, reason))),
            *(pa.array(row, pa.string()) for row in texts),
            pa.array([self.faults.get(int(number)) for number in record], pa.string())
            if self.faults
            else pa.nulls(len(record), pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _entries(
    which: "Numbers", body: "Numbers", entries: "Numbers", size: "Numbers | int"
) -> "tuple[Numbers, Numbers]":
    """Each entry of `which` records, all of a record `size` long: its record, and where it begins.

    `size` may differ from record to record; it is then given for each of `which`.
    """
    counts = entries[which]
    record = np.repeat(which, counts)
    step = np.repeat(size, counts) if isinstance(size, np.ndarray) else size
    return record, body[record] + step * counted(counts)


def _origin(about: bytes) -> str | None:
    known = json.loads(about)
    origin = known.get("origin") if "head" in known else known["origin"]
    if origin is not None and not isinstance(origin, str):
        raise TypeError("an origin is a name")
    return origin


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
