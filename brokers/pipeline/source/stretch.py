"""How far a stream's batch goes in a log, the same way for folders and servers.

A `Stretch` asks for index entries, and for records where it takes only a part of an entry. The folder or the
server answers, one stretch at a time or many. A range that cannot be read does not end a stretch. It is
passed over whole, and its reader reports it. So a stretch with anything ahead always moves on.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import attrs

from brokers.pipeline.source.spans import LogSpot
from shared.storage.format import LENGTH_BYTES, IndexEntry, length_at

LOOK_BYTES = 1 << 20
"""The entries of so many bytes are asked for first. Most batches of many logs end within them."""
LOOK_BYTES_MAX = 32 << 20
RECORDS_BYTES = 16 << 10
"""At least so many bytes of an entry's records are asked for at once."""


class Entries(NamedTuple):
    """Asks which index entries touch [start, stop). The answer is `FoundEntries`."""

    start: int
    stop: int


class RecordsAt(NamedTuple):
    """Asks for some `size` bytes at `start`, a record's start. The answer b"" means that there are none."""

    start: int
    size: int


class FoundEntries(NamedTuple):
    """All entries, in order, from where they were asked for up to `stop`."""

    entries: Iterable[IndexEntry]
    stop: int


Need = Entries | RecordsAt
Walk = Generator[Need, Any, None]


@attrs.define(eq=False)
class Stretch:
    """A batch's part of one log, from a record's start to `stop`, so far, and its number of `records`.

    It has `records_max` records and `bytes_max` bytes at most (None: no limit), but one record at least. With
    a higher limit it can go on. `is_exact`: whether all its records could be counted.
    """

    spot: LogSpot
    start: int
    records_max: int | None = None
    bytes_max: int | None = None
    records: int = 0
    is_exact: bool = True
    stop: int = attrs.field(init=False)
    _began: int = attrs.field(init=False)
    """Where the bytes are counted from: behind what retention has dropped."""

    def __attrs_post_init__(self) -> None:
        self.stop = self._began = self.start

    def walk(self) -> Walk:
        """Go on as far as the limits allow. The caller sends the answer to each need that is yielded."""
        end, look = self.spot.end, LOOK_BYTES
        at = max(self.stop, self.spot.first)  # passes over what retention has dropped
        while at < end:
            found: FoundEntries = yield Entries(at, min(at + look, end))
            for entry in found.entries:
                low = max(entry.offset, at)
                if not self.records:
                    self._began = low
                if low == entry.offset and self._fits(entry.end, entry.records):
                    self._take(entry.end, entry.records)
                elif (yield from self._take_part(entry, low)):
                    return
                at = entry.end
            at = max(at, found.stop)
            look = min(4 * look, LOOK_BYTES_MAX)
        self.stop = max(self.stop, end)

    def _take_part(self, entry: IndexEntry, low: int) -> Generator[Need, Any, bool]:
        """Take the records of an entry that fit, from `low` on. Returns whether one did not fit."""
        while low < entry.end:
            if self.records and not self._fits(low + LENGTH_BYTES, 1):
                return True
            data: bytes = b"" if entry.damaged else (yield RecordsAt(low, self._wanted(entry, low)))
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
        is_whole = low == entry.offset
        count = entry.records if is_whole else 0
        if self.records and not self._fits(entry.end, count):
            return True
        self._take(entry.end, count)
        self.is_exact = self.is_exact and is_whole
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


Asked = tuple[Stretch, Need]


def advance_all(stretches: Iterable[Stretch], answers: Callable[[list[Asked]], Iterable[Any]]) -> None:
    """Go on with all stretches side by side. `answers` returns the answers to all questions, in order."""
    walks = [(stretch, stretch.walk()) for stretch in stretches]
    waiting = [(stretch, walk, need) for stretch, walk in walks if (need := next(walk, None)) is not None]
    while waiting:
        found = zip(waiting, answers([(stretch, need) for stretch, _, need in waiting]), strict=True)
        waiting = [
            (stretch, walk, need)
            for (stretch, walk, _), answer in found
            if (need := _sent(walk, answer)) is not None
        ]


def _sent(walk: Walk, answer: Any) -> Need | None:
    try:
        return walk.send(answer)
    except StopIteration:
        return None


def _ends(data: bytes, start: int, stop: int) -> Iterator[int]:
    """Yield where the records of `data`, which begins at `start`, end. Garbage ends at `stop`."""
    at = 0
    while at + LENGTH_BYTES <= len(data) and start + at < stop:
        at += LENGTH_BYTES + length_at(data, at)[0]
        yield min(start + at, stop)
