"""A durable queue's log: what was put in and what was taken out, and how messages come back from it.

`QueueLog` keeps the log's size down. All below the oldest message that is still there is dropped. While less
than half of the log is live, the oldest messages are written again at its end, a few at each change; what
they were copied from goes when the copies are on the disk. So one message that nobody takes never pins the
disk, and there is no pause.

`Cold` is the tail of the queue that is not in memory: its messages are read back in batches, when their turn
comes. They stand in the log in the order of their numbers, behind everything that the queue has in memory.
None of them has left: a queue gives out from its front only. So a place in the log and a count say it all;
and when each run of messages expires, where they do. Cold messages are not copied: they move on by being
read.

`load` is what a start makes of the log: the messages at the front, in memory, and where the rest stands. What
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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import attrs

from dmp import queue_records as records
from dmp.bodies import Bodies
from dmp.message import Head, Message
from dmp.queue_records import PAGES, PUTS, MessageReader, put_bytes
from shared.errors import CorruptRecord, StoreError
from shared.queues.cold import ColdReader
from shared.storage.lost import Lost

if TYPE_CHECKING:
    from shared.storage.store import Log, Ticket

SLACK_BYTES = 256 << 10  # dead bytes that nobody minds; also the least that is dropped at once
COPIES = 64
_COPY_BYTES = 256 << 10
"""At most so many of the oldest messages, and bytes of them, are written again at one change."""
READ_BYTES = 256 << 10  # of what is cold, read back at once
_EXPIRY_SECONDS = 0.01
"""Messages whose lives end within this of each other are noted as one run; they may live so much longer."""
_LOAD_BYTES = 1 << 20


@attrs.define(eq=False)
class QueueLog:
    """One queue's log, and where in it its messages stand. `cold_at`: from there on is what is cold."""

    log: Log
    cold_at: int | None = attrs.field(default=None, init=False)
    _live: dict[int, Message] = attrs.field(factory=dict, init=False)
    """Messages in memory that have a record, by number, in the order of their records."""
    _copied: dict[int, Message] = attrs.field(factory=dict, init=False)
    """Messages in memory whose records were written again, likewise by number."""
    _copying: bool = attrs.field(default=False, init=False)
    _parting: set[int] = attrs.field(factory=set, init=False)
    """Of those in memory: the record that they leave is appended, and the disk may refuse it."""
    _live_bytes: int = attrs.field(default=0, init=False)
    _cold_bytes: int = attrs.field(default=0, init=False)  # of these, on the disk alone, or lost there
    _taken: list[int] = attrs.field(factory=list, init=False)
    _appended: deque[tuple[int, bytes]] = attrs.field(factory=deque, init=False)
    """Records that messages have left, with their offsets; all that may not be written are among them."""
    _refused: list[bytes] = attrs.field(factory=list, init=False)
    """Records that were rolled back, and those of what was cold, until they are appended."""

    def appended(self, head: Head, messages: Sequence[Message], offset: int) -> int:
        """The records of `messages` were appended at `offset`. Returns where they end."""
        size = put_bytes(head)
        for message in messages:
            message.offset = offset
            offset += size
        return offset

    def keep(self, messages: Sequence[Message]) -> None:
        """The messages are on the disk and in memory. Those that have no record are passed over."""
        live = self._live
        head: Head | None = None
        size = total = 0
        for message in messages:
            if message.offset >= 0:
                live[message.number] = message
                if message.head is not head:
                    head = message.head
                    size = put_bytes(head)
                total += size
        self._live_bytes += total

    def found(self, messages: Sequence[Message], cold_at: float) -> None:
        """Add messages that a start has found, in the order of their records.

        Those behind `cold_at`, the offset of the first cold record, are copies. Cold messages are loaded
        later, and go before them.
        """
        self.keep(messages)
        for message in messages:
            if message.offset > cold_at:
                self._copied[message.number] = self._live.pop(message.number)

    def keep_cold(self, record_bytes: int) -> None:
        """Records of so many bytes are on the disk alone."""
        self._live_bytes += record_bytes
        self._cold_bytes += record_bytes

    def loaded(self, messages: Sequence[Message]) -> None:
        """The messages were cold, and are in memory now."""
        for message in messages:
            self._live[message.number] = message
            self._cold_bytes -= put_bytes(message.head)

    def is_copy(self, message: Message) -> bool:
        """Whether its record is not the one that it came with."""
        return message.number in self._copied

    def take(self, messages: Iterable[Message]) -> None:
        """The messages leave the queue; `flush` writes that down. Those that have no record are passed
        over."""
        live, copied, taken = self._live, self._copied, self._taken
        if not live and not copied:
            return  # a purge of 100,000 that are not persistent
        head: Head | None = None
        size = total = 0
        for message in messages:
            number = message.number
            if live.pop(number, None) is not None or copied.pop(number, None) is not None:
                if message.head is not head:
                    head = message.head
                    size = put_bytes(head)
                total += size
                taken.append(number)
        self._live_bytes -= total

    def take_cold(self, first: int, end: int) -> None:
        """What was cold leaves the queue, from the first number to the end; `flush` writes that down."""
        self._refused.append(records.purged(first, end))

    def cold_left(self) -> None:
        """Nothing is cold any more: it counts as dead."""
        self._live_bytes -= self._cold_bytes
        self._cold_bytes = 0

    def lost_is_known(self) -> None:
        """What was lost so far is known to be lost: a start does not tell of it again. Raises StoreError."""
        self._append(records.purged(*records.KNOWN_LOST))

    def leaving(self, messages: Sequence[Message]) -> bytes:
        """The record that messages leave the queue, for `Store.append_all`; b"" where none of them has a
        record."""
        numbers = [message.number for message in messages]
        return records.taken([number for number in numbers if number in self._live or number in self._copied])

    def part(self, messages: Sequence[Message]) -> None:
        """That record is appended. Until `left` or `stay` tells what became of it, theirs get no copies:
        these would bring the messages back."""
        self._parting.update([message.number for message in messages])

    def left(self, messages: Sequence[Message]) -> None:
        """The record of `leaving` is written: the messages have left."""
        self.stay(messages)
        before = len(self._taken)
        self.take(messages)
        del self._taken[before:]

    def stay(self, messages: Sequence[Message]) -> None:
        """The disk has refused it."""
        if self._parting:
            self._parting.difference_update([message.number for message in messages])

    def flush(self) -> Ticket | None:
        """Write what was taken, and tidy. Raises StoreError; the next flush tries again."""
        if self.log.deleted:
            return None
        ticket = None
        while self._refused:
            ticket = self._append(self._refused[0])
            del self._refused[0]
        if self._taken:
            ticket = self._append(records.taken(self._taken))
            self._taken = []
        with suppress(StoreError):  # tidying can wait; what was taken is written
            self._tidy()
        return ticket

    def rolled_back(self) -> bool:
        """Appends were rolled back. True: the next flush appends some again, which nobody else would."""
        visible = self.log.visible
        self._refused += [record for offset, record in self._appended if offset >= visible]
        self._appended.clear()
        return bool(self._refused)

    def _append(self, record: bytes) -> Ticket:
        """Append the record that messages have left. Raises StoreError."""
        offset, ticket = self.log.append(record, 1, reserved=True)
        appended, visible = self._appended, self.log.visible
        while appended and appended[0][0] < visible:
            appended.popleft()
        appended.append((offset, record))
        return ticket

    def _tidy(self) -> None:
        log = self.log
        dead = log.visible - log.first - self._live_bytes
        if dead < SLACK_BYTES:
            return
        if dead > self._live_bytes and not self._copying:
            self.copy_oldest()
        below = min([log.visible, *map(_first_offset, filter(None, (self._live, self._copied)))])
        if self.cold_at is not None:
            below = min(below, self.cold_at)
        if below - log.first >= SLACK_BYTES:
            log.drop_below(below)

    def copy_oldest(self) -> None:
        """Write the oldest again. Until the copies are on the disk it is the originals that count."""
        log, bound = self.log, self.log.visible
        if self.cold_at is not None:
            bound = min(bound, self.cold_at)
        copies: list[tuple[Message, int]] = []
        copied = 0
        for held in sorted(filter(None, (self._live, self._copied)), key=_first_offset):
            for message in held.values():
                if message.offset >= bound or len(copies) == COPIES or copied > _COPY_BYTES:
                    break
                if message.number in self._parting:
                    continue
                record = records.put(message.head, (message,))
                offset, ticket = log.append(record, 1, reserved=True)
                copies.append((message, offset))
                copied += len(record)
        if copies:
            self._copying = True
            ticket.when_done(lambda ticket: self._copies_done(ticket, copies))

    def _copies_done(self, ticket: Ticket, copies: Sequence[tuple[Message, int]]) -> None:
        self._copying = False
        if ticket.error is not None or self.log.deleted:
            return
        for message, offset in copies:
            number = message.number
            if self._live.pop(number, None) is not None or self._copied.pop(number, None) is not None:
                message.offset = offset
                self._copied[number] = message


def _first_offset(held: dict[int, Message]) -> int:
    return next(iter(held.values())).offset


class ColdOwner(Protocol):
    """The queue, as its cold part sees it."""

    def loaded(self, messages: list[Message]) -> None:
        """The messages are in memory now; none where nothing can be read. An `expires` of inf says that this
        is not known here."""

    def on_cold_read(self) -> None:
        """What was on its way when `fetch` returned is there."""


@attrs.define(eq=False)
class Cold(ColdReader):
    """Messages that are in the log alone: `count`, numbered from `first` up to `end`, maybe with gaps."""

    _queue_log: QueueLog
    _owner: ColdOwner
    count: int = attrs.field(default=0, init=False)
    body_bytes: int = attrs.field(default=0, init=False)
    first: int = attrs.field(default=0, init=False)
    end: int = attrs.field(default=0, init=False)
    large: dict[int, bytes] = attrs.field(factory=dict, init=False)
    """References of large bodies, by number. The queue has these, also of messages that cannot be read."""
    lost: Lost | None = attrs.field(default=None, init=False)
    """What was passed over because it cannot be read."""
    damaged: StoreError | None = attrs.field(default=None, init=False)  # why nothing more can be read
    _reader: MessageReader = attrs.field(init=False)
    _ours: int = attrs.field(default=0, init=False)  # the first number of this process
    _expires: deque[tuple[int, float]] = attrs.field(factory=deque, init=False)
    """Up to this number, at this time."""

    def __attrs_post_init__(self) -> None:
        self._reader = MessageReader(self.log.file.path)

    def add(self, messages: Sequence[Message]) -> None:
        """New messages stand in the log, and can be read there."""
        if not self.count:
            self.first = messages[0].number
            self._move_to(messages[0].offset)
        elif not self._expires:
            self._expires.append((self.end - 1, math.inf))  # of those before
        self.count += len(messages)
        self.body_bytes += sum([message.head.body_bytes for message in messages])
        self.end = messages[-1].number + 1
        self.large.update({message.number: message.body for message in messages if message.head.large})
        self._queue_log.keep_cold(sum([put_bytes(message.head) for message in messages]))
        for expires, those in groupby(messages, attrgetter("expires")):
            self._note(expires, [message.number for message in those][-1])

    def restore(self, offset: int, record_bytes: int, ours: int) -> None:
        """A start has counted what it leaves in the log, from `offset` on. `ours`: the first number that was
        not used before."""
        self._ours = ours
        self._queue_log.keep_cold(record_bytes)
        self._move_to(offset)

    def clear(self) -> None:
        """All of it has left."""
        self._fetching = None  # what is on its way is not wanted any more
        self.count = self.body_bytes = 0
        self._expires.clear()
        self._queue_log.cold_at = None

    def fetch(self) -> None:
        """Read the first messages back, maybe at once."""
        if self.count and not self._fetching and self.damaged is None:
            self._read_on(READ_BYTES)

    def _takes_more(self, data: bytes | StoreError) -> bool:
        messages: list[Message] = []
        if isinstance(data, CorruptRecord) or data == b"":
            self._pass_over()
        elif isinstance(data, StoreError):
            self.damaged = data
        else:
            messages = self._read(data)
        if self.count and not messages and self.damaged is None:
            return True  # nothing but what is not there any more
        self._owner.loaded(messages)
        return False

    def _on_read(self) -> None:
        self._owner.on_cold_read()

    def _pass_over(self) -> None:
        """Go on behind what cannot be read, and count it as lost."""
        log = self.log
        if self.offset < log.visible:
            self.lost = log.lost_at(self.offset)
            self._move_to(self.lost.end)
        else:
            self.lost = self.lost or Lost(self.offset, 0, self.count)
            self.clear()

    def messages_in(self, data: bytes, start: int, first: int) -> Iterator[Message | Lost]:
        """The messages of the queue, numbered `first` or more, in the records that stand at `start`."""
        for op, at, end in records.operations(data):
            if op in PUTS or op in PAGES:
                number = records.number_in(data, at)
                if number < first or (op in PAGES and number < self._ours):
                    continue  # an older one, copied forward; or one that went with its process
                try:
                    message = self._reader.read(data, at, end, start + at - 4)
                except CorruptRecord:
                    yield Lost(start + at, end - at, 1)
                    continue
                if message.head.large and number not in self.large:
                    continue  # a start has not found the body, and did not count it
                message.redelivered = number < self._ours
                yield message
                first = number + 1

    def _read(self, data: bytes) -> list[Message]:
        start = self.offset
        messages: list[Message] = []
        for message in self.messages_in(data, start, self.first):
            if isinstance(message, Lost):
                self.lost = message
                continue
            self.large.pop(message.number, None)
            messages.append(message)
            self.first = message.number + 1
            if len(messages) == self.count:
                break
        self.count -= len(messages)
        self.body_bytes -= sum([message.head.body_bytes for message in messages])
        self._date(messages)
        self._queue_log.loaded(messages)
        if self.count:
            self._move_to(start + len(data))
        else:
            self.clear()
        return messages

    def _move_to(self, offset: int) -> None:
        self.offset = self._queue_log.cold_at = offset

    def _note(self, expires: float, last: int) -> None:
        runs = self._expires
        if runs and runs[-1][1] - _EXPIRY_SECONDS <= expires <= runs[-1][1]:
            runs[-1] = last, runs[-1][1]
        else:
            runs.append((last, expires + _EXPIRY_SECONDS))

    def _date(self, messages: Sequence[Message]) -> None:
        runs = self._expires
        for message in messages:
            while runs and runs[0][0] < message.number:
                runs.popleft()
            if runs and message.number >= self._ours:
                message.expires = runs[0][1]


@attrs.define(eq=False)
class _Past:
    """What has left, and how far that, and what was copied, goes."""

    mixed_to: int = -1
    following: int = 0
    known_lost_to: int = 0  # whatever is lost below this offset, a purge has done with
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
    queue_log: QueueLog, cold: Cold | None, room_bytes: int, bodies: Bodies
) -> tuple[list[Message], int, list[Lost]]:
    """The messages in memory, in the queue's order; the first number that was never used; and what cannot be
    read, and was not known to be so when the queue was last purged.

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
    found: dict[int, Message] = {}
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
            try:
                message = reader.read(data, start, end, offset + start - 4)
            except CorruptRecord:
                reading.pass_over(Lost(offset + start, end - start, 1))
                continue
            if message.head.large and number not in found and not bodies.claim(message.body):
                reading.pass_over(Lost(offset + start, end - start, 1))
                continue
            if cold is None or number <= past.mixed_to or (room_bytes > 0 and not cold.count):
                room_bytes -= message.head.cost_bytes
                message.redelivered = True  # nobody wrote down whether it had been given out
                found.pop(number, None)
                found[number] = message
                continue
            if not cold.count:
                cold.first, cold_at = number, message.offset
            cold.count += 1
            cold.end = number + 1
            cold.body_bytes += message.head.body_bytes
            if message.head.large:
                cold.large[number] = message.body
            record_bytes += put_bytes(message.head)
    some_cold = cold is not None and cold.count > 0
    queue_log.found(list(found.values()), cold_at if some_cold else math.inf)
    if cold is not None and some_cold:
        cold.restore(cold_at, record_bytes, past.following)
    lost = [each for each in reading.lost if each.offset >= past.known_lost_to]
    return sorted(found.values(), key=attrgetter("number")), past.following, lost
