"""A durable queue's log: what was put in and what was taken out, and how messages come back from it.

`QueueLog` keeps the log's size down. All below the oldest message that is still there is dropped. While less
than half of the log is live, the oldest messages are written again at its end, a few at each change; what
they were copied from goes when the copies are on the disk. So one message that nobody takes never pins the
disk, and there is no pause. A copy is the record itself, read from the log. So the log knows numbers and
places alone (`RecordPlaces`), whoever holds the messages, and in whatever runs.

`Cold` is the tail of the queue that is not in memory: its messages are read back in batches, when their turn
comes. They stand in the log in the order of their numbers, behind everything that the queue has in memory.
None of them has left: a queue gives out from its front only. So a place in the log and a count say it all;
and when each run of messages expires, where they do. Cold messages are not copied: they move on by being
read.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Protocol

import attrs

from dmp import queue_records as records
from dmp.cold_records import ColdRecords, TriesNote, cold_message
from dmp.queue_records import PAGES, PUTS, MessageReader, due_in
from dmp.tries import tried
from shared.errors import CorruptRecord, StoreError
from shared.queues.cold import ColdReader, place_of
from shared.queues.copying import COPIES, COPY_BYTES, Copying
from shared.queues.runs import Run, join
from shared.queues.undoing import Undoing
from shared.storage.format import LENGTH_BYTES
from shared.storage.lost import Lost
from shared.turns import batched

if TYPE_CHECKING:
    from shared.storage.store import Ticket

SLACK_BYTES = 256 << 10  # dead bytes that nobody minds; also the least that is dropped at once
READ_BYTES = 256 << 10  # of what is cold, read back at once
TAKEN_MOST = 8192
"""Numbers in a record of very many that leave at once: 0.3 ms to write."""
_EXPIRY_SECONDS = 0.01
"""Messages whose lives end within this of each other are noted as one run; they may live so much longer."""


class RecordPlaces:
    """Where in a log the records of messages in memory stand, by number: in as few spans as can be.

    Records stand in the order of their numbers, but for those that were written again (`copied`): these stand
    behind, in the order of this dict.
    """

    __slots__ = ("_spans", "_start", "copied", "scattered")

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int, int]] = []
        """From `_start` on: the first number, the end, where the first one's record is, the bytes of each."""
        self._start = 0
        self.copied: dict[int, int] = {}
        """Where the records are that were written again, by number."""
        self.scattered: dict[int, int] = {}
        """The same of messages that were cold on their own: in no order. `lowest` does not know these."""

    def __bool__(self) -> bool:
        return len(self._spans) > self._start or len(self.copied) > 0 or len(self.scattered) > 0

    def add(self, run: Run) -> None:
        """The messages have records, which stand behind those of all others."""
        spans, first, offset, stride = self._spans, run.first, run.offset, run.stride
        if len(spans) > self._start:
            start, end, place, size = spans[-1]
            if first < end:  # a start has found them behind later ones: they are copies
                self.copied.update(zip(run.numbers, count(offset, stride), strict=False))
                return
            if first == end and stride == size and place + (end - start) * size == offset:
                spans[-1] = start, run.end, place, size
                return
        spans.append((first, run.end, offset, stride))

    def remove(self, first: int, end: int) -> int:
        """Messages from the first number to the end have no record any more that counts; how many had one."""
        spans = self._spans
        at = self._start
        if at < len(spans) and spans[at][0] != first:
            at = max(bisect_right(spans, (first, math.inf), at) - 1, at)
        gone = 0
        while at < len(spans):
            start, stop, offset, stride = spans[at]
            if start >= end:
                break
            low, high = max(start, first), min(stop, end)
            if low >= high:
                at += 1
                continue
            gone += high - low
            rest = []
            if start < low:
                rest.append((start, low, offset, stride))
            if high < stop:
                rest.append((high, stop, offset + (high - start) * stride, stride))
            if rest or at > self._start:
                spans[at : at + 1] = rest
                at += len(rest)
            else:  # the front: moving all that is behind it would cost with each
                at = self._start = at + 1
        if self._start * 2 > len(spans):
            del spans[: self._start]
            self._start = 0
        if self.copied and gone < end - first:
            gone += sum([self.copied.pop(number, None) is not None for number in range(first, end)])
        if self.scattered and gone < end - first:
            gone += sum([self.scattered.pop(number, None) is not None for number in range(first, end)])
        return gone

    def place_of(self, number: int) -> int | None:
        """Where the record of a message stands; None: it has none."""
        at = bisect_right(self._spans, (number, math.inf), self._start) - 1
        if at >= self._start:
            start, end, offset, stride = self._spans[at]
            if number < end:
                return offset + (number - start) * stride
        place = self.copied.get(number)
        return self.scattered.get(number) if place is None else place

    def move(self, number: int, offset: int) -> None:
        """The record of a message was written again, behind all others."""
        self.remove(number, number + 1)
        self.copied[number] = offset

    @property
    def lowest(self) -> float:
        """Where the first of the records in order stands; inf where there is none."""
        spans, copied = self._spans, self.copied
        return min(
            spans[self._start][2] if len(spans) > self._start else math.inf,
            next(iter(copied.values())) if copied else math.inf,
        )

    def stretch(self, lowest: int) -> int:
        """How many bytes of the log, from there on, hold enough to be written again at one change."""
        end = lowest
        messages = 0
        for start, stop, offset, stride in self._spans[self._start : self._start + COPIES]:
            if messages >= COPIES or offset - lowest >= COPY_BYTES:
                break
            messages += stop - start
            end = offset + min(stop - start, COPIES) * stride
        return min(end - lowest, COPY_BYTES) or COPY_BYTES


@attrs.define(eq=False)
class QueueLog(Copying):
    """One queue's log, and where in it its messages stand. `cold_at`: from there on is what is cold."""

    cold_at: int | None = attrs.field(default=None, init=False)
    _places: RecordPlaces = attrs.field(factory=RecordPlaces, init=False)
    """Of the messages in memory that have a record."""
    arriving_from: Callable[[], float] = attrs.field(default=lambda: math.inf, init=False)
    """From there on stands what is not ready yet. It may be visible: where it waits for a bucket."""
    _parting: set[int] = attrs.field(factory=set, init=False)
    """Of those in memory: the record that they leave is appended, and the disk may refuse it."""
    waiting: ColdRecords = attrs.field(factory=ColdRecords, init=False)
    """Of those that wait for their time, or have, and are in the log alone."""
    _unordered_from: float = attrs.field(default=math.inf, init=False)
    """No record of these, or of what is `scattered`, is below this offset."""
    _copied_to: float = attrs.field(default=-math.inf, init=False)
    """Up to there copies are being made of all that counts: below that nothing new may be unordered."""
    _live_bytes: int = attrs.field(default=0, init=False)
    _cold_bytes: int = attrs.field(default=0, init=False)  # of these, on the disk alone, or lost there
    _taken: list[int] = attrs.field(factory=list, init=False)
    _taking: int = attrs.field(default=0, init=False)
    """How many `take_all` are under way: until what they take is written its records stay."""
    _tried: list[tuple[TriesNote, list[int]]] = attrs.field(factory=list, init=False)
    """What is to be written of failed tries and times, and of which numbers."""
    tried: dict[int, TriesNote] = attrs.field(factory=dict, init=False)
    """Of messages that are there: their failed tries, and when they are due. Copies have it with them."""
    _appended: Undoing = attrs.field(factory=Undoing, init=False)
    """Records that messages have left: those that the disk refuses are appended again."""
    _refused: list[bytes] = attrs.field(factory=list, init=False)
    """Records that were rolled back, and those of what was cold, until they are appended."""

    def keep(self, run: Run) -> None:
        """The messages are on the disk and in memory. Those that have no record are passed over."""
        if run.offset >= 0:
            self._places.add(run)
            self._live_bytes += run.stride * len(run.bodies)

    def found(self, messages: Sequence[Run], cold_at: float) -> None:
        """Add messages that a start has found, each as a run, in the order of their records.

        Those behind `cold_at`, the offset of the first cold record, are copies. Cold messages are loaded
        later, and go before them.
        """
        for message in messages:
            if message.offset > cold_at:
                self._places.copied[message.first] = message.offset
                self._live_bytes += message.stride
            else:
                self.keep(message)

    def keep_cold(self, record_bytes: int) -> None:
        """Records of so many bytes are on the disk alone."""
        self._live_bytes += record_bytes
        self._cold_bytes += record_bytes

    def loaded(self, runs: Iterable[Run]) -> None:
        """The messages were cold, and are in memory now."""
        for run in runs:
            self._places.add(run)
            self._cold_bytes -= run.stride * len(run.bodies)

    def wait(self, message: Run, due: int, priority: int, texts: Mapping[str, str]) -> bool:
        """A message waits for its time from now on, in the log alone. False: it has no record. `due`: by the
        broker's clock; `priority`, `texts`: as of `cold_message`."""
        number = message.first
        place = self._places.place_of(number)
        if place is None:
            return False
        self._places.remove(number, number + 1)
        head = message.head
        cold = cold_message(
            place,
            due,
            head.tries,
            noted=self.tried.pop(number, None) is not None,
            seen=message.tries > 0,
            by_clock=head.by_clock,
            body_bytes=head.body_bytes,
            priority=priority,
            texts=texts,
        )
        self._unordered(place)
        self.waiting.add(number, cold, message.stride)
        return True

    def found_waiting(self, messages: Mapping[int, bytes], record_bytes: int) -> None:
        """A start has found messages that wait."""
        if messages:
            self.waiting.fill(messages, record_bytes)
            self._live_bytes += record_bytes
            self._unordered_from = min(map(place_of, messages.values()))

    def wait_no_more(self, number: int, stride: int = 0, *, lost: bool = False) -> Run | None:
        """A message that waited is not in the log alone any more: as a cold run. None: it did not wait.
        `stride`: the bytes of its record, where they are known. `lost`: it is not in the log, either."""
        waiting = self.waiting
        noted, before = waiting.noted(number), waiting.record_bytes
        run = waiting.take(number, stride)
        if run is None:
            return None
        if lost:
            self._live_bytes -= run.stride
        else:
            self._scatter(run, noted)
        if not waiting:  # those that were taken out unread were reckoned with the mean
            self._live_bytes -= round(before) - run.stride
            waiting.record_bytes = 0.0
        return run

    def take_out_cold(self, message: Run) -> None:
        """A message in the midst of what is cold is in memory, alone."""
        self._cold_bytes -= message.stride
        self._scatter(message, None)

    def _scatter(self, message: Run, noted: TriesNote | None) -> None:
        self._unordered(message.offset)
        self._places.scattered[message.first] = message.offset
        if noted is not None:
            self.tried[message.first] = noted

    def _unordered(self, place: int) -> None:
        if not (self.waiting or self._places.scattered):
            self._unordered_from = place
        self._unordered_from = min(self._unordered_from, place)
        if place < self._copied_to:
            self._copied_to = -math.inf

    def is_copy(self, number: int) -> bool:
        """Whether a message's record is not the one that it came with."""
        return number in self._places.copied

    def take(self, runs: Iterable[Run]) -> None:
        """The messages leave the queue; `flush` writes that down. Those that have no record are passed
        over."""
        self._taken += self._forget(runs)

    def _forget(self, runs: Iterable[Run]) -> list[int]:
        """The messages are not here any more. Returns the numbers of those that have a record."""
        places, numbers = self._places, list[int]()
        if self.tried:
            runs = [*runs]
            for run in runs:
                for number in run.numbers:
                    self.tried.pop(number, None)
        if not places:
            return numbers  # a purge of 100,000 that are not persistent
        for run in runs:
            if run.offset >= 0:
                self._live_bytes -= run.stride * places.remove(run.first, run.end)
                numbers += run.numbers
        return numbers

    def note_tried(self, runs: Iterable[Run]) -> None:
        """So many tries of the messages have failed, as their heads say; `flush` writes that down."""
        for run in runs:
            if run.offset >= 0:
                noted, numbers = TriesNote.of(run.head), [*run.numbers]
                self._tried.append((noted, numbers))
                self.tried.update(dict.fromkeys(numbers, noted))

    def clear_waiting(self) -> ColdRecords:
        """Nothing waits in the log alone any more, nor has; `take_all` writes down that all that has left."""
        waiting = self.waiting
        self._live_bytes -= round(waiting.record_bytes)
        waiting.reading.clear()  # what is on its way is not wanted any more
        self.waiting = ColdRecords()
        self.waiting.ahead_ms = waiting.ahead_ms
        return waiting

    def take_all(
        self, runs: Sequence[Run], waiting: ColdRecords, cold: tuple[int, int] | None
    ) -> Iterator[None]:
        """Very many messages leave the queue, in turns: runs, what waited in the log alone, whether its time
        had come or not, and what was cold, from a first number to an end. What was taken is written at one
        flush, behind the last turn, so that a crash takes back all of it or nothing."""
        parts, numbers = list[bytes](), list[int]()
        self._taking += 1
        backward = batched(reversed(runs))  # what stands behind a place that goes is moved
        for some in chain(map(self._forget, backward), batched(waiting)):
            numbers += some
            if len(numbers) >= TAKEN_MOST:
                parts.append(records.taken(numbers))
                numbers = []
            yield
        self._taking -= 1
        self._refused += parts
        self._taken += numbers
        if cold is not None:
            self._take_cold(*cold)

    def _take_cold(self, first: int, end: int) -> None:
        """What was cold leaves the queue, but for what has come out of the midst."""
        places = self._places
        stay = sorted([n for n in (*places.scattered, *places.copied) if first <= n < end])
        for start, stop in zip([first, *[number + 1 for number in stay]], [*stay, end], strict=True):
            if start < stop:
                self._refused.append(records.purged(start, stop))
        for number in {number for number in self.tried if first <= number < end}.difference(stay):
            del self.tried[number]

    def cold_left(self) -> None:
        """Nothing is cold any more: it counts as dead."""
        self._live_bytes -= self._cold_bytes
        self._cold_bytes = 0

    def lost_is_known(self) -> None:
        """What was lost so far is known to be lost: a start does not tell of it again. Raises StoreError."""
        self._append(records.purged(*records.KNOWN_LOST))

    def leaving(self, runs: Iterable[Run]) -> bytes:
        """The record that messages leave the queue, for `Store.append_all`; b"" where none of them has a
        record."""
        return records.taken([number for run in runs if run.offset >= 0 for number in run.numbers])

    def part(self, runs: Iterable[Run]) -> None:
        """That record is appended. Until `left` or `stay` tells what became of it, theirs get no copies:
        these would bring the messages back."""
        for run in runs:
            self._parting.update(run.numbers)

    def left(self, runs: Sequence[Run]) -> None:
        """The record of `leaving` is written: the messages have left."""
        self.stay(runs)
        self._forget(runs)

    def stay(self, runs: Iterable[Run]) -> None:
        """The disk has refused it."""
        if self._parting:
            for run in runs:
                self._parting.difference_update(run.numbers)

    def flush(self) -> Ticket | None:
        """Write what was taken, and tidy. Raises StoreError; the next flush tries again."""
        if self.log.deleted:
            return None
        ticket = None
        while self._refused:
            ticket = self._append(self._refused[0])
            del self._refused[0]
        while self._tried:
            ticket = self._append(records.tried(*self._tried[0]))
            del self._tried[0]
        if self._taken:
            ticket = self._append(records.taken(self._taken))
            self._taken = []
        if not self._taking:
            with suppress(StoreError):  # tidying can wait; what was taken is written
                self._tidy()
        return ticket

    def rolled_back(self) -> bool:
        """Appends were rolled back. True: the next flush appends some again, which nobody else would."""
        self._appended.confirmed(self.log.visible)
        self._appended.undo()
        return bool(self._refused)

    def _append(self, record: bytes) -> Ticket:
        """Append the record that messages have left. Raises StoreError."""
        _, ticket = self.log.append(record, 1, reserved=True)
        self._appended.confirmed(self.log.visible)
        self._appended.add(self.log.end, partial(self._refused.insert, 0, record))
        return ticket

    def _tidy(self) -> None:
        log = self.log
        end = min(log.visible, self.arriving_from())
        dead = end - log.first - self._live_bytes
        if dead < SLACK_BYTES:
            return
        if dead > self._live_bytes and not self.busy:
            self.copy_oldest()
        below = min(end, self._lowest)
        if self.cold_at is not None:
            below = min(below, self.cold_at)
        if below - log.first >= SLACK_BYTES:
            log.drop_below(int(below))

    def copy_oldest(self) -> None:
        """Write the oldest again, as they stand in the log."""
        bound = self.log.visible if self.cold_at is None else min(self.log.visible, self.cold_at)
        lowest = self._lowest
        if lowest < bound:
            self._copied_to = bound
            self.copy(int(lowest), bound, self._places.stretch(int(lowest)))

    @property
    def _lowest(self) -> float:
        """No record of a message that waits, or is in memory, is below this offset."""
        lowest = self._places.lowest
        if self.waiting or self._places.scattered:
            lowest = min(lowest, self._unordered_from)
        return lowest

    def copies_in(self, data: bytes, start: int) -> Iterator[tuple[int, int, int, bytes, int]]:
        for op, at, end in records.operations(data):
            beginning = at - LENGTH_BYTES
            place = start + beginning
            if op not in PUTS and op not in PAGES:
                continue
            number = records.number_in(data, at)
            if not self.is_at(number, place):
                continue
            if number in self._parting:
                if number in self._places.scattered:  # the disk may refuse that it leaves: its record stays
                    self._copied_to = -math.inf
                continue
            copy, noted = data[beginning:end], self.tried.get(number) or self.waiting.noted(number)
            if noted is not None:
                copy += records.tried(noted, [number])
            yield number, place, start + end, copy, 1 + (noted is not None)

    def is_at(self, number: int, place: int) -> bool:
        return place in (self._places.place_of(number), self.waiting.place_of(number))

    def move(self, number: int, before: int, place: int) -> None:
        if number in self.waiting:
            self.waiting.move(number, place)
        else:
            self._places.move(number, place)

    def copied(self, end: int) -> None:
        if self._unordered_from < end <= self._copied_to:
            self._unordered_from = end


class ColdOwner(Protocol):
    """The queue, as its cold part sees it."""

    def loaded(self, runs: list[Run]) -> None:
        """The messages are in memory now. An `expires` of inf says that this
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
    _reader: MessageReader = attrs.field(init=False)
    _ours: int = attrs.field(default=0, init=False)  # the first number of this process
    _started_ms: int = attrs.field(default=0, init=False)
    """When that began, in Unix ms: what it found that was due later does not stand here."""
    _taken_out: set[int] = attrs.field(factory=set, init=False)
    """Numbers that have come out of the midst."""
    _expires: deque[tuple[int, float]] = attrs.field(factory=deque, init=False)
    """Up to this number, at this time."""

    def __attrs_post_init__(self) -> None:
        self._reader = MessageReader(self.log.file.path)

    def add(self, run: Run) -> None:
        """New messages stand in the log, and can be read there."""
        count = len(run.bodies)
        if not self.count:
            self.first = run.first
            self._move_to(run.offset)
        elif not self._expires:
            self._expires.append((self.end - 1, math.inf))  # of those before
        self.count += count
        self.body_bytes += run.head.body_bytes * count
        self.end = run.end
        if run.head.large:
            self.large.update(zip(run.numbers, run.bodies, strict=True))
        self._queue_log.keep_cold(run.stride * count)
        self._note(run.expires, run.end - 1)

    def restore(self, offset: int, record_bytes: int, ours: int, now_ms: int) -> None:
        """A start has counted what it leaves in the log, from `offset` on. `ours`: the first number that was
        not used before."""
        self._ours, self._started_ms = ours, now_ms
        self._queue_log.keep_cold(record_bytes)
        self._move_to(offset)

    def clear(self) -> None:
        """All of it has left."""
        self._fetching = None  # what is on its way is not wanted any more
        self.count = self.body_bytes = 0
        self._expires.clear()
        self._taken_out.clear()
        self._queue_log.cold_at = None

    def fetch(self) -> None:
        """Read the first messages back, maybe at once."""
        if self.count and not self._fetching and self.teller.error is None:
            self._read_on(READ_BYTES)

    def _takes_more(self, data: bytes | Lost) -> bool:
        runs: list[Run] = []
        if isinstance(data, Lost):
            self._move_to(data.end)
            self.teller.lose(data)
        elif data == b"":  # the newest are lost
            self.teller.lose(Lost(self.offset, 0, self.count))
            self.clear()
        else:
            runs = self._read(data)
        if self.count and not runs:
            return True  # nothing but what is not there any more
        self._owner.loaded(runs)
        return False

    def _on_read(self) -> None:
        self._owner.on_cold_read()

    def messages_in(self, data: bytes, start: int, first: int) -> Iterator[Run | Lost]:
        """The messages of the queue, numbered `first` or more, in the records that stand at `start`: each as
        a run."""
        for op, at, end in records.operations(data):
            if op in PUTS or op in PAGES:
                number = records.number_in(data, at)
                if number < first or number in self._taken_out:
                    continue  # an older one, copied forward
                if number < self._ours and (op in PAGES or due_of_record(data, at)[0] > self._started_ms):
                    continue  # one that went with its process, or waits for its time
                try:
                    message = self._reader.read(data, at, end, start + at - 4)
                except CorruptRecord:
                    yield Lost(start + at, end - at, 1)
                    continue
                if message.head.large and number not in self.large:
                    continue  # a start has not found the body, and did not count it
                if number >= self._ours and message.head.due_ms and not message.head.large:
                    continue  # one that waits for its time, or has
                message.tries = int(number < self._ours)
                noted = self._queue_log.tried.get(number)
                if noted is not None:
                    message.head = tried(message.head, *noted)
                yield message
                first = number + 1

    def take_out(self, message: Run) -> bool:
        """A message out of the midst, as it was read, is in memory. False: it is not here any more."""
        number = message.first
        if not (self.first <= number < self.end) or number in self._taken_out or not self.count:
            return False
        message.expires = self._expiry_of(number)
        self.large.pop(number, None)
        self._taken_out.add(number)
        self.count -= 1
        self.body_bytes -= message.head.body_bytes
        self._queue_log.take_out_cold(message)
        if not self.count:
            self.clear()
        return True

    def _read(self, data: bytes) -> list[Run]:
        start = self.offset
        runs: list[Run] = []
        for message in self.messages_in(data, start, self.first):
            if isinstance(message, Lost):
                self.teller.lose(message)
                continue
            self.large.pop(message.first, None)
            message.expires = self._expires_of(message.first)
            self.first = message.end
            self.count -= 1
            self.body_bytes -= message.head.body_bytes
            join(runs, message)
            if not self.count:
                break
        self._queue_log.loaded(runs)
        if self.count:
            self._move_to(start + len(data))
        else:
            self.clear()
        return runs

    def _move_to(self, offset: int) -> None:
        self.offset = self._queue_log.cold_at = offset

    def _note(self, expires: float, last: int) -> None:
        runs = self._expires
        if runs and runs[-1][1] - _EXPIRY_SECONDS <= expires <= runs[-1][1]:
            runs[-1] = last, runs[-1][1]
        else:
            runs.append((last, expires + _EXPIRY_SECONDS))

    def _expires_of(self, number: int) -> float:
        """Of the next message; inf where it is not known here."""
        runs = self._expires
        while runs and runs[0][0] < number:
            runs.popleft()
        return self._expiry_of(number)

    def _expiry_of(self, number: int) -> float:
        return next((expires for last, expires in self._expires if last >= number >= self._ours), math.inf)


def due_of_record(data: bytes, start: int) -> tuple[int, bool]:
    """As `due_in`; 0 also where the record says nothing of use."""
    try:
        return due_in(data, start)
    except (IndexError, struct.error):
        return 0, False
