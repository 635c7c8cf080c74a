"""The messages of a queue that wait for their time, and are not ready before.

Those of a durable queue are in its log alone (`cold_records`). They stay there when their time has come: each
is read back when it is about the next one out. What has no record is in memory, and so is what has a large
body, whose reference is short.

Times are said by the wall clock, in Unix milliseconds, since they outlive the process. They are waited for by
the broker's own clock: a delay is as long as it was, whatever is done to the wall clock meanwhile. A time
that a header names (`eta`) is one of the wall clock, and moves where that is set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from dmp.cold_records import ColdHead, ColdRecords, TriesNote, cold_message
from dmp.once import HEADER
from dmp.queue_records import PAGES, PUTS, MessageReader, number_in
from dmp.refusals import shown
from dmp.tries import tried
from shared.errors import CorruptRecord, StoreError
from shared.queues.cold import LOST, ColdMessages, DamageTeller, is_cold, is_lost
from shared.queues.core import HOT_LEAST_BYTES
from shared.queues.waiting import ClockWatch, Waiting
from shared.storage.format import LENGTH_BYTES, length_at
from shared.storage.lost import Lost
from shared.turns import Turn, batched

if TYPE_CHECKING:
    import structlog

    from dmp.message import Head
    from dmp.queue_log import QueueLog
    from dmp.queues import Queue, QueueContext
    from shared.queues.runs import Run

READ_BYTES = 1 << 20
"""Of messages that are read back at once, about; and `ITEMS` at most. Where they are in no order in a log of
100 MB, one takes 0.1 ms."""
ROOM_SECONDS = 0.05
"""A message with no time to live lives so long once it is read, where that was begun when it was due: who had
room for it then gets it, however long the disk takes."""
LOOK_AGAIN_SECONDS = 60.0
"""The system's clock may be set: a time is looked at again so soon."""
_NUMBERS_END = 1 << 62
"""No message has such a number: from here on is what a feed gave back, with a number that another has, too,
or below 0."""


class Later(DamageTeller):
    """All that waits in one queue: `count` messages. It also says what of the queue's log cannot be read."""

    def __init__(self, queue: Queue, context: QueueContext) -> None:
        super().__init__(context.timers)
        self._queue = queue
        self._context = context
        self.count = 0
        self._warm: Waiting[Run] | None = None
        """Those in memory. None: there was none yet. An empty one is 400 bytes, and most queues need none."""
        self._others = _NUMBERS_END
        self._reader: ColdMessages | None = None
        self._records: MessageReader | None = None
        self._back: dict[int, Run] = {}
        """Those that were just read back, by number."""
        self._cold_bytes = 0
        """What the memory of messages was charged for those in the log alone."""
        self._clock: ClockWatch | None = None
        """None: no message came for a time of the wall clock."""

    # -- times

    @property
    def now_ms(self) -> int:
        """Unix time."""
        return int(self._context.wall_seconds() * 1000)

    @property
    def _clock_ms(self) -> int:
        return int(self._context.timers.now() * 1000)

    def ahead(self) -> int:
        """How much the wall clock is ahead of the broker's, rounded down: no message is early."""
        return math.floor(self.now_ms - self._context.timers.now() * 1000)

    @property
    def _eta_header(self) -> bytes | None:
        """The header with a time."""
        header, name = self._queue.kind.arguments.eta_header, self._queue.name
        return header or self._context.settings.eta_header.of(name.decode(errors="replace"))

    def in_time(self, head: Head) -> Head:
        """The head of messages that come here: one of their own, where they are to wait for a time."""
        if head.due_ms is not None:
            return head
        header = self._eta_header
        return head if not head.delay_ms and header is None else head.in_time(self.now_ms, header)

    # -- in

    def waits(self, run: Run) -> bool:
        """Whether the time of messages has not come."""
        return bool(run.head.due_ms) and run.head.due_ms > self.now_ms

    def stands_apart(self, run: Run) -> bool:
        """Whether messages with a time wait for it, or are due at once: of these only large ones may stand
        among what is cold."""
        row = self._queue.row
        if row.cold is not None and not run.head.large:
            return True
        return not row.has_cold and self.waits(run)

    def keep(self, run: Run) -> bool:
        """Have messages wait, if their time has not come; whether they do."""
        waits = self.waits(run)
        if waits:
            self.put(run)
        return waits

    def keep_those(self, runs: Iterable[Run]) -> list[Run]:
        """Have those of messages from the log wait whose time has not come. Returns the others."""
        now = []
        for run in runs:
            if self.keep(run):
                self._queue.row.waits((run,))
            else:
                now.append(run)
        return now

    def put(self, run: Run) -> None:
        """Have messages wait for their time, which are in memory and counted there."""
        head, log = run.head, self._queue.log
        due = max(head.due_ms - self.ahead(), 0)
        if head.by_clock:
            self._clock = self._clock or ClockWatch(self.ahead())
        self.count += len(run.bodies)
        for message in run.singles() if len(run.bodies) > 1 else (run,):
            if (
                log is None
                or head.large
                or not log.wait(message, due, self._priority(head), self._texts(head))
            ):
                self._keep_warm(message, due)
                continue
            self._queue.uncharge_runs((message,))
            self._context.memory.left((message,))
            self._charge_cold(log)

    def _keep_warm(self, message: Run, due: int) -> None:
        if self._warm is None:
            self._warm = Waiting()
        number = message.first
        if number < 0 or number in self._warm:
            number = self._others = self._others + 1
        self._warm.add(number, due, message)

    def _priority(self, head: Head | ColdHead) -> int:
        """Which priority a cold message has, where its queue has some."""
        if not self._queue.kind.arguments.priority_max:
            return 0
        return head.priority if isinstance(head, ColdHead) else head.noted.priority

    def _texts(self, head: Head | ColdHead) -> dict[str, str]:
        """What a cold message is known by: its headers that name it, or hold its key."""
        queue, headers = self._queue, list[bytes]()
        if queue.once is not None:
            headers.append(HEADER)
        if queue.row.keys is not None:
            headers.append(queue.row.key_header)
        return {header.decode(errors="replace"): text for header in headers if (text := head.text_in(header))}

    def _charge_cold(self, log: QueueLog) -> None:
        more = log.waiting.memory_bytes - self._cold_bytes
        self._cold_bytes += more
        self._context.memory.cold_bytes += more
        self._queue.charge(more)
        self._context.memory.changed()

    # -- a start

    @property
    def looks_at_heads(self) -> bool:
        """Whether `found` needs the messages."""
        return self._queue.once is not None or not self._queue.ready.in_order

    def found(
        self,
        place: int,
        due_ms: int,
        by_clock: bool,
        ahead_ms: int,
        noted: TriesNote | None,
        body_bytes: int,
        message: Run | None,
    ) -> bytes:
        """A message that a start has found, whose time has not come. `ahead_ms`: as `ahead` said then."""
        if by_clock:
            self._clock = self._clock or ClockWatch(ahead_ms)
        return cold_message(
            place,
            max(due_ms - ahead_ms, 0),
            0 if noted is None else noted.tries,
            noted=noted is not None,
            seen=True,
            by_clock=by_clock,
            body_bytes=body_bytes,
            priority=0 if message is None else self._priority(message.head),
            texts={} if message is None else self._texts(message.head),
        )

    def recovered(self, log: QueueLog) -> None:
        """All that a start has found waits."""
        self.count += len(log.waiting)
        self._charge_cold(log)
        for runs in log.waiting.known():
            self._queue.row.waits(runs)
            if self._queue.once is not None:
                for run in runs:
                    self._queue.once.found(run)

    # -- out

    def __iter__(self) -> Iterator[Run]:
        """The messages in memory, the next one due first."""
        for _, _, run in sorted((due, key, run) for key, due, run in self._warm or ()):
            yield run

    def find(self, number: int) -> Run | None:
        """The message of this number, which waits, or is cold though its time has come; it stays."""
        run = None if self._warm is None else self._warm.get(number)
        if run is None and self._queue.log is not None:
            run = self._queue.log.waiting.get(number)
        return run

    def take_out(self, number: int) -> Run | None:
        """Take out a message that `find` finds. None: it is not here."""
        run, log, row = (
            None if self._warm is None else self._warm.take(number),
            self._queue.log,
            self._queue.row,
        )
        if run is not None:
            self.count -= 1
        elif log is not None and number in log.waiting:
            if number in log.waiting.due:
                row.take_out(number)
            else:
                self.count -= 1
            run = log.wait_no_more(number)
            assert run is not None
            self._charge_cold(log)
            self._queue.charge_runs((run,))
        if run is not None:
            row.waits_no_more((run,))
            self._queue.free_keys(())
        return run

    def take_due(self) -> tuple[list[Run], bool]:
        """Messages whose time has come wait no more: very many in turns. Returns these, of which some may be
        cold, and stay so; and whether more are due."""
        if self._clock is not None and (more_ms := self._clock.moved_ms(self.ahead())):
            self._context.work.add(self._reckon_anew(more_ms))
        runs: list[Run] = []
        now, turn, log = self._clock_ms, Turn(), self._queue.log
        more = False
        while not more and self._warm is not None and (found := self._warm.pop(now)) is not None:
            runs.append(found[1])
            more = turn.over()
        while not more and log is not None and (run := log.waiting.pop_due(now)) is not None:
            runs.append(run)
            more = turn.over()
        self.count -= len(runs)
        if runs and log is not None:
            self._charge_cold(log)
        return runs, more

    @property
    def next_seconds(self) -> float:
        """In how many seconds to look again; inf: nothing waits."""
        if not self.count:
            return float("inf")
        log = self._queue.log
        due = min(
            math.inf if self._warm is None else self._warm.next, math.inf if log is None else log.waiting.next
        )
        return min(max((due - self._clock_ms) / 1000, 0.0), LOOK_AGAIN_SECONDS)

    def clear(self) -> tuple[Waiting[Run], ColdRecords]:
        """Nothing waits any more, nor has waited and is cold. Returns what did, in memory and in the log
        alone, whose record `take_all` writes. It is still to be freed."""
        warm: Waiting[Run] = self._warm or Waiting()
        self._warm, self.count, log = None, 0, self._queue.log
        if log is None:
            return warm, ColdRecords()
        cold = log.clear_waiting()
        self._charge_cold(log)
        return warm, cold

    # -- what is in the log alone

    def read_back(self, places: Sequence[Run]) -> None:
        """Have messages in memory that stand in the row by these runs, and are cold: maybe at once, and maybe
        not all."""
        queue, log = self._queue, self._queue.log
        if log is None or self.error or log.waiting.reading:
            return
        waiting, began = log.waiting, self._clock_ms
        most = (HOT_LEAST_BYTES if self._context.memory.scarce else READ_BYTES) // waiting.mean_bytes + 1
        by_number = {run.first: run for run in places if is_cold(run)}
        for number in islice(by_number, most):
            run = waiting.get(number)
            assert run is not None
            waiting.reading[number] = run
        cold = [*waiting.reading.values()]
        if self._reader is None:
            self._reader = ColdMessages(log.log, self, self._read_back)
        inside = True

        def done() -> None:
            for run in cold:
                message = self._back.pop(run.first, None)
                if waiting.reading.pop(run.first, None) is run:  # else it was taken out meanwhile
                    self._was_read(log, run, message, by_number[run.first], began)
            if not (inside or queue.deleted):
                queue.on_cold_read()
                queue.arm()

        self._reader.load(cold, done)
        inside = False

    def _was_read(self, log: QueueLog, run: Run, message: Run | None, place: Run, began_ms: int) -> None:
        """A message was read back, or is lost, or cannot be read."""
        queue, number, lost = self._queue, run.first, is_lost(run)
        if message is None and not lost:
            return
        due_ms = log.waiting.due_ms(number)
        was = log.wait_no_more(number, 0 if message is None else message.stride, lost=lost)
        assert was is not None
        self._charge_cold(log)
        if message is None:
            queue.row.take_out(number)
            queue.charge_runs((was,))
            queue.forget((was,), taken=False)
            queue.free_keys(())
            return
        message.expires, now = queue.lives.end(message.head, due_ms / 1000), self._clock_ms
        if began_ms < now and due_ms >= began_ms - ROOM_SECONDS * 1000:
            message.expires = max(message.expires, now / 1000 + ROOM_SECONDS)
        queue.charge_runs((message,))
        queue.row.read(place, message)

    def _read_back(self, run: Run, data: bytes, start: int) -> None:
        message = self.message_in(data, start, run)
        if message is None:
            self.lose(Lost(run.offset, 0, 1))
            run.offset = LOST
        else:
            self._back[run.first] = message

    def message_in(self, data: bytes, start: int, cold: Run) -> Run | None:
        """A cold message as its record has it, and the log's notes, in records that stand at `start`; None:
        it is not there."""
        assert self._queue.log is not None
        if self._records is None:
            self._records = MessageReader(self._queue.log.log.file.path)
        at = cold.offset - start + LENGTH_BYTES
        end = at + length_at(data, at - LENGTH_BYTES)[0]
        if data[at] not in PUTS | PAGES or number_in(data, at) != cold.first:
            return None
        try:
            message = self._records.read(data, at, end, cold.offset)
        except CorruptRecord:
            return None
        if cold.head.noted:
            message.head = tried(message.head, *TriesNote.of(cold.head))
        message.tries = cold.tries
        return message

    @property
    def named(self) -> tuple[structlog.stdlib.BoundLogger, str]:
        return self._context.log, shown(self._queue.name)

    def lose(self, lost: Lost) -> None:
        if not self._queue.lost:
            self._queue.lost = True
            self._context.queue_lost(self._queue.name, lost)

    def refuse(self, error: StoreError) -> None:
        self._context.counts.failed_reads += 1

    def read_again(self) -> None:
        if not self._queue.deleted:
            self._queue.row.load_front()
            self._queue.on_cold_read()
            self._queue.arm()

    def _reckon_anew(self, more_ms: int) -> Iterator[None]:
        """Times of the wall clock come so much later, or earlier."""
        log, warm = self._queue.log, self._warm
        for number, due, run in [] if warm is None else [*warm]:
            if run.head.by_clock and warm is self._warm and number in (warm or ()):
                assert warm is not None
                warm.add(number, max(due + more_ms, 0), run)
        for numbers in batched([] if log is None else log.waiting.waiting):
            assert log is not None
            for number in numbers:
                log.waiting.shift(number, more_ms)
            yield
        self._queue.arm()
