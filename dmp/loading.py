"""What a start makes of a durable queue's log.

`load` finds the messages at the front, for memory, where the rest stands, and what waits for its time. What
cannot be read is passed over and counted as lost, unless it had left. What a lost record says to have left is
there again, redelivered. The log is read twice. The first time tells which numbers have left, and which were
written again out of their order; what is above all of these is there as it came, and needs no memory. The
second time makes messages of what is below, and of as many more as there is room for.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from dmp import queue_records as records
from dmp.queue_log import due_of_record
from dmp.queue_records import PUTS, MessageReader
from dmp.tries import tried
from shared.errors import CorruptRecord
from shared.storage.format import LENGTH_BYTES
from shared.storage.lost import Lost

if TYPE_CHECKING:
    from dmp.bodies import Bodies
    from dmp.cold_records import TriesNote
    from dmp.later import Later
    from dmp.queue_log import Cold, QueueLog
    from shared.queues.runs import Run

_LOAD_BYTES = 1 << 20


@attrs.define(eq=False)
class _Past:
    """What has left, and how far that, and what was copied, goes."""

    mixed_to: int = -1
    following: int = 0
    known_lost_to: int = 0  # whatever is lost below this offset, a purge has done with
    tried: dict[int, TriesNote] = attrs.Factory(dict)
    _taken: array[int] = attrs.Factory(lambda: array("Q"))
    _ranges: list[tuple[int, int]] = attrs.Factory(list)
    _last: int = -1

    def note(self, op: int, data: bytes, start: int, end: int, offset: int) -> None:
        """Raises ValueError, IndexError, struct.error."""
        if op == records.Op.TAKEN:
            numbers = records.numbers_in(data, start, end)
            self._taken.extend(numbers)
            highest = max(numbers)
            self.mixed_to = max(self.mixed_to, highest)
        elif op == records.Op.TRIED:
            noted, numbers = records.tried_in(data, start, end)
            self.tried.update(dict.fromkeys(numbers, noted))
            highest = max(numbers)
            self.mixed_to = max(self.mixed_to, highest)
        elif op == records.Op.PURGED:
            first, stop = records.numbers_in(data, start, end)
            if (first, stop) == records.KNOWN_LOST:
                self.known_lost_to = offset
                return
            self._ranges.append((first, stop))
            highest = stop - 1
            self.mixed_to = max(self.mixed_to, highest)
        else:
            highest = records.number_in(data, start)
            if op in PUTS:
                if highest <= self._last:
                    self.mixed_to = max(self.mixed_to, highest)
                self._last = max(self._last, highest)
        self.following = max(self.following, highest + 1)

    def sort(self) -> None:
        self._taken = array("Q", sorted(self._taken))

    def has_left(self, number: int) -> bool:
        place = bisect_left(self._taken, number)
        return (place < len(self._taken) and self._taken[place] == number) or any(
            first <= number < end for first, end in self._ranges
        )


async def load(
    queue_log: QueueLog, cold: Cold | None, room_bytes: int, bodies: Bodies, later: Later
) -> tuple[list[Run], int, list[Lost]]:
    """The messages in memory, each as a run, in the queue's order; the first number that was never used; and
    what cannot be read, and was not known to be so when the queue was last purged. What waits for its time is
    in the log's `waiting`.

    Raises StoreError. `room_bytes`: for messages in memory, where others may be in `cold`.
    """
    from shared.storage.log import WholeRecords  # waits for the disk, as a start alone may

    log = queue_log.log
    past = _Past()
    reading = WholeRecords(log, log.first, _LOAD_BYTES)
    while data := await reading.read():
        offset = reading.offset
        for op, start, end in records.operations(data):
            try:
                past.note(records.Op(op), data, start, end, offset + start)
            except (ValueError, IndexError, struct.error):
                reading.pass_over(Lost(offset + start, end - start, 1))
    past.sort()
    queue_log.tried = {number: noted for number, noted in past.tried.items() if not past.has_left(number)}
    found: dict[int, Run] = {}
    waiting: dict[int, bytes] = {}
    waiting_bytes, now_ms, ahead_ms = 0, later.now_ms, later.ahead()
    reader = MessageReader(log.file.path)
    record_bytes = cold_at = 0
    again = WholeRecords(log, log.first, _LOAD_BYTES)
    while data := await again.read():
        offset = again.offset
        for op, start, end in records.operations(data):
            if op not in PUTS:
                continue
            number = records.number_in(data, start)
            if number <= past.mixed_to and past.has_left(number):
                continue
            place, noted = offset + start - LENGTH_BYTES, past.tried.get(number)
            due_ms, by_clock = due_of_record(data, start) if noted is None else noted[1:]
            waits = due_ms > now_ms and op == records.Op.PUT
            try:
                message = None if waits and not later.looks_at_heads else reader.read(data, start, end, place)
            except CorruptRecord:
                reading.pass_over(Lost(offset + start, end - start, 1))
                continue
            if waits:
                waiting_bytes += 0 if number in waiting else end - start + LENGTH_BYTES
                body_bytes = records.body_bytes_in(data, start, end)
                waiting[number] = later.found(place, due_ms, by_clock, ahead_ms, noted, body_bytes, message)
                queue_log.tried.pop(number, None)
                continue
            assert message is not None
            if message.head.large and number not in found and not bodies.claim(message.bodies[0]):
                reading.pass_over(Lost(offset + start, end - start, 1))
                continue
            in_order = message.head.due_ms is None or message.head.due_ms <= now_ms
            if cold is None or number <= past.mixed_to or not in_order or (room_bytes > 0 and not cold.count):
                room_bytes -= message.head.cost_bytes
                if noted is not None:
                    message.head = tried(message.head, *noted)
                message.tries = 1  # nobody wrote down whether it had been given out
                found.pop(number, None)
                found[number] = message
                continue
            if not cold.count:
                cold.first, cold_at = number, message.offset
            cold.count += 1
            cold.end = number + 1
            cold.body_bytes += message.head.body_bytes
            if message.head.large:
                cold.large[number] = message.bodies[0]
            record_bytes += message.stride
    some_cold = cold is not None and cold.count > 0
    queue_log.found(list(found.values()), cold_at if some_cold else math.inf)
    if cold is not None and some_cold:
        cold.restore(cold_at, record_bytes, past.following, now_ms)
    queue_log.found_waiting(waiting, waiting_bytes)
    lost = [each for each in reading.lost if each.offset >= past.known_lost_to]
    return sorted(found.values(), key=attrgetter("first")), past.following, lost
