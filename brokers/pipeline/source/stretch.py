"""How far a stream's batch goes in a log: the same for logs of every place, which only tell what they hold.

A `Stretch` asks for index entries, and where only a part of one is wanted, for its records. Whoever has the
log answers, at once or for many stretches in one go. What cannot be had is no end: it is passed over here in
one piece, and told by whoever reads it. So a stretch with anything before it always moves on.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import attrs

from brokers.pipeline.source.spans import LogSpot
from shared.storage.format import LENGTH_BYTES, IndexEntry, length_at

LOOK_BYTES = 1 << 20
"""Whose index entries are asked for first: most batches of many logs end there."""
LOOK_BYTES_MAX = 32 << 20
RECORDS_BYTES = 16 << 10
"""Of an entry's records at least so much is asked for at once."""


class Entries(NamedTuple):
    """Which index entries touch [start, stop)? The answer is `FoundEntries`."""

    start: int
    stop: int


class RecordsAt(NamedTuple):
    """What stands at `start`, a record's start? The answer: some `size` bytes; b"": they cannot be had."""

    start: int
    size: int


class FoundEntries(NamedTuple):
    """Entries in order, all there are from where they were asked for up to `stop`."""

    marks: Iterable[IndexEntry]
    stop: int


Need = Entries | RecordsAt
Walk = Generator[Need, Any, None]


@attrs.define(eq=False)
class Stretch:
    """A batch's part of one log, from a record's start on: `stop`, and how many `records` that is, so far.

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
    """Where bytes are counted from: what is not there any more counts for nothing."""

    def __attrs_post_init__(self) -> None:
        self.stop = self._began = self.start

    def walk(self) -> Walk:
        """Go on, as far as the limits let it. Each need that it yields is sent its answer."""
        end, look = self.spot.end, LOOK_BYTES
        at = max(self.stop, self.spot.first)  # what retention has taken is passed over
        while at < end:
            found: FoundEntries = yield Entries(at, min(at + look, end))
            for mark in found.marks:
                low = max(mark.offset, at)
                if not self.records:
                    self._began = low
                if low == mark.offset and self._fits(mark.end, mark.records):
                    self._take(mark.end, mark.records)
                elif (yield from self._take_part(mark, low)):
                    return
                at = mark.end
            at = max(at, found.stop)
            look = min(4 * look, LOOK_BYTES_MAX)
        self.stop = max(self.stop, end)

    def _take_part(self, mark: IndexEntry, low: int) -> Generator[Need, Any, bool]:
        """Of a mark the records from `low` on that fit. Whether there is one that does not."""
        while low < mark.end:
            if self.records and not self._fits(low + LENGTH_BYTES, 1):
                return True
            data: bytes = b"" if mark.damaged else (yield RecordsAt(low, self._wanted(mark, low)))
            if len(data) < LENGTH_BYTES:
                return self._take_unseen(mark, low)
            for stop in _ends(data, low, mark.end):
                if self.records and not self._fits(stop, 1):
                    return True
                self._take(stop, 1)
            low = self.stop
        return False

    def _take_unseen(self, mark: IndexEntry, low: int) -> bool:
        """What is left of a mark whose records cannot be had. Whether it does not fit."""
        is_whole = low == mark.offset
        count = mark.records if is_whole else 0
        if self.records and not self._fits(mark.end, count):
            return True
        self._take(mark.end, count)
        self.is_exact = self.is_exact and is_whole
        return False

    def _wanted(self, mark: IndexEntry, low: int) -> int:
        """How many bytes from `low` on are worth looking at."""
        size = mark.end - low
        if self.records_max is not None:
            average = mark.length // max(mark.records, 1) + 1
            size = min(size, (self.records_max - self.records) * average)
        if self.bytes_max is not None:
            size = min(size, self._began + self.bytes_max - low)
        return min(max(size, RECORDS_BYTES), mark.end - low)

    def _fits(self, stop: int, records: int) -> bool:
        return (self.records_max is None or self.records + records <= self.records_max) and (
            self.bytes_max is None or stop - self._began <= self.bytes_max
        )

    def _take(self, stop: int, records: int) -> None:
        self.stop = stop
        self.records += records


Asked = tuple[Stretch, Need]


def advance_all(stretches: Iterable[Stretch], answers: Callable[[list[Asked]], Iterable[Any]]) -> None:
    """Go on with all of them side by side. `answers`: to what is asked, in order."""
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
    """Where the records end that begin in `data`, which stands at `start`; garbage ends at `stop`."""
    at = 0
    while at + LENGTH_BYTES <= len(data) and start + at < stop:
        at += LENGTH_BYTES + length_at(data, at)[0]
        yield min(start + at, stop)
