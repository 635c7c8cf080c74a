"""How far a stream's batch goes in a log, the same way for folders and servers.

A `BatchRange` asks its reader for index entries, and for records where it takes only a part of an entry. A
range that cannot be read does not end a batch. It is passed over whole, and its reader reports it. So a batch
with anything ahead always moves on.
"""

from collections.abc import Iterator

import attrs

from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.reader import SourceReader
from shared.storage.format import LENGTH_BYTES, IndexEntry, length_at

RECORDS_BYTES = 16 << 10
"""At least so many bytes of an entry's records are asked for at once."""


@attrs.define(eq=False)
class BatchRange:
    """A batch's part of one log, from a record's start to `stop`, so far, and its number of `records`.

    It has `records_max` records and `bytes_max` bytes at most (None: no limit), but one record at least. With
    a higher limit it can go on. `is_new`: no batch had the log before.
    """

    log: LogRange
    start: int
    records_max: int | None = None
    bytes_max: int | None = None
    records: int = 0
    is_new: bool = False
    stop: int = attrs.field(init=False)
    _began: int = attrs.field(init=False)
    """Where the bytes are counted from: behind what retention has dropped."""

    def __attrs_post_init__(self) -> None:
        self.stop = self._began = self.start

    @property
    def length(self) -> int:
        """How many bytes the log has from the start on."""
        return self.log.stop - self.start

    def advance(self, reader: SourceReader) -> None:
        """Go on as far as the limits allow."""
        at = max(self.stop, self.log.start)  # passes over what retention has dropped
        for entry in reader.entries_from(self.log, at):
            low = max(entry.offset, at)
            if not self.records:
                self._began = low
            if low == entry.offset and self._fits(entry.end, entry.records):
                self._take(entry.end, entry.records)
            elif self._take_part(reader, entry, low):
                return
            at = entry.end
        self.stop = max(self.stop, self.log.stop)

    def _take_part(self, reader: SourceReader, entry: IndexEntry, low: int) -> bool:
        """Take the records of an entry that fit, from `low` on. Returns whether one did not fit."""
        while low < entry.end:
            if self.records and not self._fits(low + LENGTH_BYTES, 1):
                return True
            data = b"" if entry.damaged else reader.records(self.log, low, self._wanted(entry, low))
            if len(data) < LENGTH_BYTES:
                return self._take_unseen(entry, low)
            for stop in _ends(data, low, entry.end):
                if self.records and not self._fits(stop, 1):
                    return True
                self._take(stop, 1)
            low = self.stop
        return False

    def _take_unseen(self, entry: IndexEntry, low: int) -> bool:
        """Take the rest of an entry whose records cannot be read. Returns whether it did not fit."""
        count = entry.records if low == entry.offset else 0
        if self.records and not self._fits(entry.end, count):
            return True
        self._take(entry.end, count)
        return False

    def _wanted(self, entry: IndexEntry, low: int) -> int:
        """Return how many bytes from `low` on are worth reading."""
        size = entry.end - low
        if self.records_max is not None:
            average = entry.length // max(entry.records, 1) + 1
            size = min(size, (self.records_max - self.records) * average)
        if self.bytes_max is not None:
            size = min(size, self._began + self.bytes_max - low)
        return min(max(size, RECORDS_BYTES), entry.end - low)

    def _fits(self, stop: int, records: int) -> bool:
        return (self.records_max is None or self.records + records <= self.records_max) and (
            self.bytes_max is None or stop - self._began <= self.bytes_max
        )

    def _take(self, stop: int, records: int) -> None:
        self.stop = stop
        self.records += records


def _ends(data: bytes, start: int, stop: int) -> Iterator[int]:
    """Yield where the records of `data`, which begins at `start`, end. Garbage ends at `stop`."""
    at = 0
    while at + LENGTH_BYTES <= len(data) and start + at < stop:
        at += LENGTH_BYTES + length_at(data, at)[0]
        yield min(start + at, stop)
