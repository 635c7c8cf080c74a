"""How many records a part of a log has, by the log's index: each entry has a count.

A long log has many entries. They are summed in slices, for as long as the caller allows. Counts from the
log's beginning are remembered every few thousand entries, and the next question continues there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import thread_time

import attrs
import trio

from logmq.topics import Topics
from shared.errors import StoreError
from shared.storage.format import LENGTH_BYTES, count_records, length_at
from shared.storage.log import Log, read_records

STEP_BYTES = 64 << 10
"""Bytes examined first: one entry, or many small ones. Then as many bytes as have about `ENTRIES_AT_ONCE`."""
ENTRIES_AT_ONCE = 256
"""Entries per slice: some hundred microseconds."""
KEPT_ENTRIES = 4096


class OutOfTime(Exception):
    """The count is not finished; what was counted is remembered."""


@attrs.define(eq=False)
class _Counted:
    """The number of records between the first of `offsets` and each of them."""

    offsets: list[int]
    counts: list[int]

    def keep(self, offset: int, count: int) -> None:
        if offset > self.offsets[-1]:  # otherwise another question has come further
            self.offsets.append(offset)
            self.counts.append(count)


@attrs.define(eq=False)
class _Time:
    """The processor time that one question may take, without that of other tasks in between."""

    left: float
    _began: float = attrs.Factory(lambda: thread_time())

    async def turn(self) -> None:
        """Let other tasks run. Raises OutOfTime."""
        self.left -= thread_time() - self._began
        if self.left < 0:
            raise OutOfTime
        await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        self._began = thread_time()


class RecordCounts:
    """Counts records in a range of a topic's log."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._logs: dict[int, _Counted] = {}

    async def between(self, log: Log, start: int, stop: int, seconds: float) -> int | None:
        """How many records are in [start, stop), both record boundaries. None: `seconds` of processor time
        are too few, or the log is damaged there.
        """
        try:
            return await self._between(log, max(start, log.first), min(stop, log.visible), _Time(seconds))
        except (StoreError, OutOfTime):
            return None

    async def back_from_end(self, log: Log, count: int) -> int:
        """Where the last `count` records begin, or the first kept one. Raises StoreError."""
        first, end, time = log.first, log.visible, _Time(float("inf"))
        skip = await self._between(log, first, end, time) - count
        if skip <= 0:
            return first
        known = self._counted(log)
        place = bisect_left(known.offsets, first)
        at = first
        if place < len(known.offsets):
            offsets, counts = known.offsets[place:], known.counts[place:]
            head = await self._between(log, first, offsets[0], time)
            if skip >= head:
                found = bisect_right(counts, skip - head + counts[0]) - 1
                at, skip = offsets[found], skip - head - (counts[found] - counts[0])
        async with aclosing(self._pieces(log, at, end, time)) as pieces:
            async for start, _, records in pieces:
                if records > skip:
                    return await _behind(log, start, skip)
                skip -= records
        return end

    async def _between(self, log: Log, start: int, stop: int, time: _Time) -> int:
        if start >= stop:
            return 0
        known = self._counted(log)
        if start <= known.offsets[-1] < stop:
            await self._extend(log, known, stop, time)
        first, last = bisect_left(known.offsets, start), bisect_right(known.offsets, stop) - 1
        if first > last:
            return await self._sum(log, start, stop, time)
        begins, ends = known.offsets[first], known.offsets[last]
        between = known.counts[last] - known.counts[first]
        return await self._sum(log, start, begins, time) + between + await self._sum(log, ends, stop, time)

    async def _extend(self, log: Log, known: _Counted, stop: int, time: _Time) -> None:
        """Count on up to `stop`, and remember the result."""
        end, count, looked = known.offsets[-1], known.counts[-1], 0
        try:
            async with aclosing(self._pieces(log, end, stop, time)) as pieces:
                async for _, end, records in pieces:
                    count += records
                    looked += 1
                    if looked % KEPT_ENTRIES == 0:
                        known.keep(end, count)
        except OutOfTime:
            known.keep(end, count)
            raise

    async def _sum(self, log: Log, start: int, stop: int, time: _Time) -> int:
        async with aclosing(self._pieces(log, start, stop, time)) as pieces:
            return sum([records async for _, _, records in pieces])

    async def _pieces(
        self, log: Log, start: int, stop: int, time: _Time
    ) -> AsyncGenerator[tuple[int, int, int]]:
        """All of [start, stop), entry by entry: where it begins and ends, and how many records it has."""
        step = STEP_BYTES
        while start < stop:
            entries = log.index_entries(start, min(start + step, stop))
            if not entries:
                return
            for entry in entries:
                end = min(entry.end, stop)
                if end <= start:
                    continue
                whole = start == entry.offset and end == entry.end
                yield start, end, entry.records if whole else await _count(log, start, end)
                start = end
            step = max(STEP_BYTES, 2 * step if len(entries) < ENTRIES_AT_ONCE else step // 2)
            await time.turn()

    def _counted(self, log: Log) -> _Counted:
        if len(self._logs) > 2 * len(self._topics) + 16:
            there = self._topics.by_id()
            self._logs = {key: known for key, known in self._logs.items() if key in there}
        known = self._logs.get(log.id)
        if known is None:
            known = self._logs[log.id] = _Counted([log.first], [0])
        while len(known.offsets) > 1 and known.offsets[1] <= log.first:
            del known.offsets[0], known.counts[0]
        return known


async def _count(log: Log, start: int, end: int) -> int:
    """How many records a part of an entry has. Raises StoreError."""
    count = 0
    while start < end and (data := await read_records(log, start, min(end - start, STEP_BYTES))):
        count += count_records(data) or 0
        start += len(data)
    return count


async def _behind(log: Log, start: int, count: int) -> int:
    """The offset of the record `count` records behind `start`. Raises StoreError."""
    while count:
        data = await read_records(log, start, STEP_BYTES)
        if not data:
            break
        at = 0
        while at < len(data) and count:
            at += LENGTH_BYTES + length_at(data, at)[0]
            count -= 1
        start += at
    return start
