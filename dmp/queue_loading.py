"""What a start makes of a queue's log: the messages at the front, in memory, and where the rest stands.

What cannot be read is passed over. Of the messages there, those that had left are not missed, and the others
are lost. What a lost record says to have left is there again, redelivered.

The log is read twice. The first time tells which numbers have left, and which were written again out of their
order; what is above all of these is there as it came, and needs no memory. The second time makes messages of
what is below, and of as many more as there is room for.
"""

import math
import struct
from array import array
from bisect import bisect_left
from operator import attrgetter

import attrs

from dmp.bodies import Bodies
from dmp.cold import Left
from dmp.message import Message
from dmp.queue_log import QueueLog
from dmp.queue_records import KNOWN_LOST, PUTS, MessageReader, Op, number_in, numbers_in, places, put_bytes
from shared.errors import CorruptRecord
from shared.storage.log import Lost, WholeRecords

_READ_BYTES = 1 << 20


@attrs.frozen
class Loaded:
    """`messages`: in the queue's order. `following`: the first number that was never used. `lost`: what
    cannot be read, and was not known to be so when the queue was last purged."""

    messages: list[Message]
    cold: Left | None
    following: int
    lost: list[Lost]


class _Past:
    """What has left, and how far that, and what was copied, goes."""

    def __init__(self) -> None:
        self.mixed_to = -1
        self.following = 0
        self.known_lost_to = 0
        """Whatever is lost below this offset, a purge has done with."""
        self._taken = array("Q")
        self._ranges: list[tuple[int, int]] = []
        self._last = -1

    def note(self, op: int, data: bytes, start: int, end: int, offset: int) -> None:
        """Raises ValueError, IndexError, struct.error."""
        if op == Op.TAKEN:
            numbers = numbers_in(data, start, end)
            self._taken.extend(numbers)
            highest = max(numbers)
            self.mixed_to = max(self.mixed_to, highest)
        elif op == Op.PURGED:
            first, stop = numbers_in(data, start, end)
            if (first, stop) == KNOWN_LOST:
                self.known_lost_to = offset
                return
            self._ranges.append((first, stop))
            highest = stop - 1
            self.mixed_to = max(self.mixed_to, highest)
        else:
            highest = number_in(data, start)
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


async def load(queue_log: QueueLog, room_bytes: float, bodies: Bodies) -> Loaded:
    """Raises StoreError. `room_bytes`: for messages in memory, as long as there is a choice."""
    log = queue_log.log
    past = _Past()
    reading = WholeRecords(log, log.first, _READ_BYTES)
    while data := await reading.read():
        offset = reading.offset
        for op, start, end in places(data):
            try:
                past.note(Op(op), data, start, end, offset + start)
            except (ValueError, IndexError, struct.error):
                reading.pass_over(Lost(offset + start, end - start, 1))
    past.sort()
    found: dict[int, Message] = {}
    large: dict[int, bytes] = {}
    reader = MessageReader(log.file.path)
    count = body_bytes = record_bytes = first = last = cold_at = 0
    again = WholeRecords(log, log.first, _READ_BYTES)
    while data := await again.read():
        offset = again.offset
        for op, start, end in places(data):
            if op not in PUTS:
                continue
            number = number_in(data, start)
            if number <= past.mixed_to and past.has_left(number):
                continue
            try:
                message = reader.read(data, start, end, offset + start - 4)
            except CorruptRecord:
                reading.pass_over(Lost(offset + start, end - start, 1))
                continue
            if message.head.large and number not in found and not bodies.claim(message.body):
                reading.pass_over(Lost(offset + start, end - start, 1))
                continue
            if number <= past.mixed_to or (room_bytes > 0 and not count):
                room_bytes -= message.head.cost_bytes
                message.redelivered = True  # nobody wrote down whether it had been given out
                found.pop(number, None)
                found[number] = message
                continue
            if not count:
                first, cold_at = number, message.offset
            count += 1
            body_bytes += message.head.body_bytes
            if message.head.large:
                large[number] = message.body
            record_bytes += put_bytes(message.head)
            last = number
    queue_log.found(list(found.values()), cold_at if count else math.inf)
    cold = Left(count, body_bytes, record_bytes, first, last + 1, cold_at, large) if count else None
    return Loaded(
        sorted(found.values(), key=attrgetter("number")),
        cold,
        past.following,
        [each for each in reading.lost if each.offset >= past.known_lost_to],
    )
