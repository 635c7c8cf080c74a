"""The deadlines of one queue's messages: delays, lifetimes, delivery limits; and where dead letters go.

Only queues whose messages have one of these have an `Expiry`. A lifetime or delay of the queue is the same
for all messages of the row. So times are kept as pairs (due, sequence): all messages before the sequence are
due then. Messages of nearly the same time share a pair, and are late by at most a thousandth of the time. A
message delayed by a NACK has an entry of its own. The queue has one entry in the engine's timers: its next
time.

Dead letters move to their dead-letter queue, or are dropped if none is named. They go in slices, so many of
them hold up nobody. If the dead-letter queue is missing or full, or the disk refuses, their queue is
*parked*: it tries again each second, with as many as there is room for, or with one.

Deliveries that must be acknowledged in time have `AckDeadlines`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dms.job_head import JOB_FIRST
from dms.records import TTL, DeadLetter, Reason
from dms.wire import Refusal
from shared.queues.cold import (
    is_cold,
    is_lost,
)
from shared.queues.due_times import DueTimes
from shared.queues.runs import RUN_MOST, Run, split_after, split_at, split_by, to_spans
from shared.queues.unacked import Delivery
from shared.queues.waiting import Waiting
from shared.turns import Turn

if TYPE_CHECKING:
    from dms.engine import Consumer, Queue

TRY_AGAIN_MS = 1000
"""A parked queue tries again at this interval."""
RETURNED_MAX = 10_000
"""Dead letters leave the row, and wait in memory, while fewer messages than this have left it and wait."""
EVER = 1 << 62
REASON_TEXTS = {Reason.TTL: TTL, Reason.MAX_DELIVERIES: "max_deliveries"}
"""The reason in a dead letter."""


class Expiry:
    """The deadlines of one queue's messages, in milliseconds of the engine's age (`dms.times`)."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        options = queue.options
        self.lifetimes, self.delays = DueTimes(), DueTimes()
        self.expired = 0
        """All messages before this sequence are dead: while the row begins before it, none of it is
        delivered."""
        self.released = queue.head if options.delay_ms else queue.released
        """No message before this sequence is delayed any more."""
        self._put_off: Waiting[Run] = Waiting()
        """Messages that left the row and may not be delivered yet, by the first sequence of their run."""
        self._dead: dict[Reason, deque[Run]] = {Reason.TTL: deque(), Reason.MAX_DELIVERIES: deque()}
        """Messages that left the row, and will leave the queue."""
        self._reading = False
        """Whether dead jobs are on their way from the log."""
        self._parked_until = 0
        """When a parked queue tries again; 0: not parked."""
        self._ttl_ms = options.ttl_ms
        self._delay_ms = options.delay_ms
        self._gate()

    def options_changed(self) -> None:
        """The queue's options have changed. New messages get the new times. Present ones keep their lifetime
        or delay; a new lifetime begins now for them, a new delay does not apply.
        """
        queue, options = self.queue, self.queue.options
        if not options.ttl_ms:
            self.lifetimes.clear()
            self.expired = 0
        elif not self._ttl_ms:
            self._add(self.lifetimes, options.ttl_ms, queue.tail)
        if not options.delay_ms:
            self.delays.clear()
            self.released = EVER
        elif not self._delay_ms:
            self.released = queue.tail
        self._ttl_ms, self._delay_ms = options.ttl_ms, options.delay_ms
        self._gate()
        self.arm()

    # -- calls of the queue

    def on_produced(self, tail: int) -> None:
        """Messages before `tail` are in the queue."""
        if self._ttl_ms:
            self._add(self.lifetimes, self._ttl_ms, tail)
        if self._delay_ms:
            self._add(self.delays, self._delay_ms, tail)
        self.arm()

    def _add(self, times: DueTimes, after_ms: int, tail: int) -> None:
        """Messages before `tail` are due `after_ms` from now, or a thousandth of that later.

        `after_ms` may be less than it was. Then they are due with those before them, unless these have left:
        all messages of the queue came since the last entry.
        """
        due = due_at(self.queue.engine.times.now_ms(), after_ms)
        grain = after_ms // 1000
        if times and due + grain < times[-1][0] and self.queue.depth <= tail - times[-1][1]:
            times.clear()
        times.add(due, tail, grain)

    def undo_produced(self, tail: int) -> None:
        """The disk refused messages from `tail` on."""
        self.lifetimes.cut(tail)
        self.delays.cut(tail)
        self.expired = min(self.expired, tail)
        if self._delay_ms:
            self.released = min(self.released, tail)
        self._gate()

    def on_returned(self, run: Run, *, nacked: bool, delay_ms: int = 0) -> int:
        """Messages that left the row wait again: they are deliverable, delayed, or dead. Returns until when a
        NACK delays them; 0: it does not. `delay_ms`: by which time, other than the queue's options say."""
        options = self.queue.options
        if options.max_deliveries and run.tries >= options.max_deliveries:
            self.died(run, Reason.MAX_DELIVERIES)
            return 0
        if nacked and options.retry_ms and not delay_ms:
            delay_ms = options.retry_delay_ms(run.tries)
        if run.first >= JOB_FIRST:
            assert self.queue.jobs is not None
            return self.queue.jobs.place(run, delay_ms)
        dead, alive = split_at((run,), self.expired)
        self._dead[Reason.TTL].extend(dead)
        for part in alive:
            if delay_ms:
                due = due_at(self.queue.engine.times.now_ms(), delay_ms)
                self.put_off(part, due)
                return due
            ready, delayed = split_at((part,), self.released)
            for each in ready:
                self.queue.ready.requeue(each)
            for each in delayed:  # a redrive has looked at them, and their delay is not over
                for place, seq in enumerate(each.numbers):
                    self.put_off(each.part(place, place + 1), self.delays.due_of(seq))
        return 0

    def died(self, run: Run, reason: Reason) -> None:
        """Messages that are in no place any more are dead: they go in the next slice, or with `bury`."""
        self._dead[reason].append(run)
        self._soon()

    def put_off(self, run: Run, due: int) -> None:
        """Messages that left the row may not be delivered before `due`."""
        self._put_off.add(run.first, due, run)
        self.queue.wake_by(due)

    def delayed_run(self, number: int) -> Run | None:
        """The run of a message that left the row and waits for its time."""
        return next((run for _, _, run in self._put_off if number in run.numbers), None)

    def hasten(self, number: int) -> None:
        """A message that left the row, and waits for its time, is delivered now."""
        run = self.delayed_run(number)
        assert run is not None
        due = next(due for first, due, _ in self._put_off if first == run.first)
        self._put_off.take(run.first)
        place = number - run.first
        for part in (run.part(0, place), run.part(place + 1, len(run))):
            if part.bodies:
                self.put_off(part, due)
        one = run.part(place, place + 1)
        self.queue.ready.requeue(one)
        if self.queue.log is not None:
            self.queue.log.note_returned([(number, one.tries, 0)], nacked=True)
        if self.queue.line:
            self.queue.dispatch()

    def runs(self) -> Iterator[tuple[Run, int]]:
        """The messages that are delayed or dead, each run with the age at which it is due; 0: it is dead."""
        for _, due, run in self._put_off:
            yield run, due
        for dead in self._dead.values():
            for run in dead:
                yield run, 0

    def take_some(self, most: int) -> list[Run]:
        """Take out some that are delayed or dead, at most so many messages."""
        runs: list[Run] = []
        while most > 0 and self._put_off:
            run = self._put_off.take(next(iter(self._put_off.numbers)))
            assert run is not None
            runs.append(run)
            most -= len(run)
        for dead in self._dead.values():
            while most > 0 and dead:
                runs.append(dead.popleft())
                most -= len(runs[-1])
        return runs

    def row_grew(self) -> None:
        """More of the row is visible, or was read back."""
        if self.head_expired:
            self._expire()
            self.bury()
            self.arm()
            if not self.queue.ready.loaded:  # there may be more to read back: in a slice of its own
                self._soon()

    def row_moved(self) -> None:
        """The row begins later: messages before that are lost."""
        self._gate()

    def forget(self) -> None:
        """A purge removed all messages that no consumer holds."""
        self._put_off.clear()
        for dead in self._dead.values():
            dead.clear()
        self.unpark()
        self._gate()

    @property
    def head_expired(self) -> bool:
        """Whether the row's front is dead. Until that has left, nothing of the row is delivered."""
        return self.expired > self.queue.head

    @property
    def requeued_expired(self) -> bool:
        """Whether the oldest that was requeued is dead. Until those have left, nothing is delivered."""
        requeued = self.queue.ready.requeued
        return bool(requeued) and requeued[0][0] < self.expired

    @property
    def delayed(self) -> int:
        """Messages that left the row and may not be delivered yet."""
        return sum([len(run) for _, _, run in self._put_off])

    @property
    def dead(self) -> int:
        """Dead messages that have not left: their target is missing or full, or their slice has not come."""
        row = max(min(self.expired, self.queue.end) - self.queue.head, 0)
        return row + sum([len(run) for dead in self._dead.values() for run in dead])

    # -- time

    def arm(self) -> None:
        """Have the engine call `on_time` when something is due."""
        parked = self._parked_until
        may_bury = not (parked or self._reading) and any(self._dead.values())
        if may_bury or self.requeued_expired or self._may_leave():
            self._soon()
            return
        firsts: list[float] = [times[0][0] for times in (self.lifetimes, self.delays) if times]
        if parked:
            firsts.append(parked)
        if self._put_off:
            firsts.append(self._put_off.next)
        if firsts:
            self.queue.wake_by(int(min(firsts)))

    def _soon(self) -> None:
        """Have `on_time` called again in another slice."""
        self.queue.wake_by(self.queue.engine.times.now_ms())

    def on_time(self, now: int) -> None:
        queue = self.queue
        self.released = self.delays.passed(now) or self.released
        self.expired = self.lifetimes.passed(now) or self.expired
        if self._parked_until <= now:
            self.unpark()
        if self.expired:
            self._expire()
        self._gate()
        self._take_due(now)
        self.bury()
        self.arm()
        if queue.line:
            queue.dispatch()

    def _gate(self) -> None:
        """Tell the queue up to where its row may be delivered."""
        self.queue.released = 0 if self.head_expired else self.released

    def _take_due(self, now: int) -> None:
        """Delayed messages that are due become deliverable, or are dead by now."""
        turn = Turn()
        while (due := self._put_off.pop(now)) is not None:
            self.on_returned(due[1], nacked=False)
            if turn.over():
                break

    # -- death

    def _expire(self) -> None:
        """Remove messages past their lifetime from the requeued ones, and from the row's front."""
        queue = self.queue
        turn = Turn()
        while self.requeued_expired:
            run = queue.ready.take_requeued(self.expired - queue.ready.requeued[0][0])
            self._dead[Reason.TTL].append(run)
            if turn.over():
                break
        count = self._may_leave()
        if queue.options.dead_letter:
            self._dead[Reason.TTL].extend(queue.take_row(count))
            self._fetch()
        elif count:
            self._drop_front(count)
        self._gate()

    def _fetch(self) -> None:
        """Read back more of the row's dead messages, if there is room in memory."""
        queue = self.queue
        if queue.cold is None or queue.ready.loaded or not self.head_expired:
            return
        if not self._parked_until or (queue.may_load_more and queue.returned < RETURNED_MAX):
            queue.cold.fetch()

    def _may_leave(self) -> int:
        """How many of the row's dead messages may leave it now."""
        queue = self.queue
        count = min(self.expired, queue.end) - queue.head
        if count <= 0:
            return 0
        parked, name = self._parked_until, queue.options.dead_letter
        if not name:
            return 0 if parked else count
        count = min(count, queue.ready.loaded, RETURNED_MAX - queue.returned)
        if count > 0 and not queue.may_load_more:
            if parked:
                return 0
            count = min(count, max(self._room(), 0 if any(self._dead.values()) else 1))
        return max(count, 0)

    def _drop_front(self, count: int) -> None:
        queue = self.queue
        try:
            queue.log_gone([(queue.head, count)], Reason.TTL)
        except Refusal:
            self._park()
            return
        queue.drop_front(count)
        queue.engine.counts.dropped += count

    def bury(self) -> None:
        """Move some dead letters to their queue, or drop them if none is named; the rest follows soon."""
        turn = Turn()
        while not self._parked_until and any(self._dead.values()):
            if not self._bury_some(max(min(self._room(), RUN_MOST), 1)):
                return
            if turn.over_now():
                self._soon()
                return

    def _bury_some(self, most: int) -> bool:
        """Move or drop so many dead letters. False: jobs among them are on their way from the log."""
        if self._reads_dead():
            return False
        for reason, dead in self._dead.items():
            if dead:
                runs: list[Run] = []
                while dead and most > 0:
                    first, rest = split_after((dead.popleft(),), most)
                    dead.extendleft(rest)
                    runs += first
                    most -= len(first[0])
                left = self._bury(runs, reason)
                dead.extendleft(reversed(left))
                if left:
                    self._park()
                break
        return True

    def _reads_dead(self) -> bool:
        """Whether dead jobs are read back: those that come to another queue need their bodies."""
        queue = self.queue
        if queue.jobs is None or not queue.options.dead_letter:
            return False
        cold = [run for dead in self._dead.values() for run in islice(dead, RUN_MOST) if is_cold(run)]
        if not cold or self._reading:
            return self._reading
        self._reading = True
        queue.jobs.load(cold, partial(self._dead_read, cold))
        return self._reading or self.parked

    def _dead_read(self, runs: Sequence[Run]) -> None:
        self._reading = False
        if any(map(is_cold, runs)):  # they cannot be read now
            self._park()
        for dead in self._dead.values():
            lost = [run for run in dead if is_lost(run)]
            for run in lost:
                dead.remove(run)
            self.queue.drop(lost)
        self._soon()

    def _bury(self, runs: list[Run], reason: Reason) -> list[Run]:
        """Move as many as there is room for, the oldest first. Returns those that stay.

        A message that time alone has brought through a circle of queues does not go round again: it is
        dropped.
        """
        queue, engine = self.queue, self.queue.engine
        name = queue.options.dead_letter
        target = engine.find(name) if name else None
        room = self._room()
        dropped, moving, left = list[Run](), list[Run](), list[Run]()
        letters: list[bytes] = []
        for run in sorted(runs, key=attrgetter("first")):
            if not name:
                dropped.append(run)
                continue
            of_run = [self._letter(run, body, reason) for body in run.bodies]
            for circles, part in split_by(run, [name in letter.passed for letter in of_run]):
                if circles:
                    dropped.append(part)
                    continue
                fitting, rest = split_after((part,), room - len(letters))
                for each in fitting:
                    place = each.first - run.first
                    letters += of_run[place : place + len(each)]
                moving += fitting
                left += rest
        try:
            if dropped:
                queue.log_gone(to_spans(dropped), reason)
                engine.counts.dropped += sum(map(len, dropped))
                queue.drop(dropped)
                dropped = []
            if target is not None and moving:
                engine.move(queue, target, moving, letters, reason)
                engine.counts.dead_lettered += len(letters)
                moving = []
        except Refusal:
            pass  # those stay
        return sorted([*dropped, *moving, *left], key=attrgetter("first"))

    def _letter(self, run: Run, body: bytes, reason: Reason) -> DeadLetter:
        queue = self.queue
        return DeadLetter.of(
            body,
            queue.text,
            REASON_TEXTS[reason],
            run.tries,
            time_ms=queue.engine.times.unix_ms(),
            head=run.head,
        )

    # -- parking

    def _park(self) -> None:
        engine = self.queue.engine
        engine.counts.held_back += 1
        self._parked_until = engine.times.now_ms() + TRY_AGAIN_MS
        self.queue.wake_by(self._parked_until)
        engine.tell_held_back(self.queue)

    def unpark(self) -> None:
        """Try again as soon as something dies, or is called."""
        self._parked_until = 0

    @property
    def parked(self) -> bool:
        return self._parked_until > 0

    def _room(self) -> int:
        """How many dead letters have a place."""
        queue, name = self.queue, self.queue.options.dead_letter
        if not name:
            return RUN_MOST
        target = queue.engine.find(name)
        return 0 if target is None else max(target.room, 0)

    # -- a restart

    @property
    def state(self) -> dict[str, Any]:
        """The fields of a SNAPSHOT record."""
        return {
            "expired": self.expired,
            "released": self.released if self._delay_ms else 0,
            "lives": list(self.lifetimes),
            "delays": list(self.delays),
        }

    def restore(
        self, state: Mapping[str, Any], state_age_ms: int, produced: Sequence[tuple[int, int]]
    ) -> None:
        """Restore the last snapshot's state. `produced`: (age, sequence behind) of messages since then."""
        tail = state.get("tail", 1)
        if self._ttl_ms:
            self.expired = state.get("expired", 0)
            self.lifetimes.restore(state.get("lives", ()))
            if not self.lifetimes and self.expired < tail:  # no lifetime was set at the snapshot
                self.lifetimes.append((due_at(state_age_ms, self._ttl_ms), tail))
            self.lifetimes.restore((due_at(age_ms, self._ttl_ms), upto) for age_ms, upto in produced)
        if self._delay_ms:
            self.released = state.get("released", 1) or tail  # 0: no delay was set at the snapshot
            self.delays.restore(state.get("delays", ()))
            self.delays.restore((due_at(age_ms, self._delay_ms), upto) for age_ms, upto in produced)


class AckDeadlines:
    """The deliveries of one queue that must be acknowledged in time, by their ids.

    One whose time has passed returns as if its consumer had been lost, and counts as a delivery. What has
    come back in another way is still here, until its time.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._held: Waiting[Consumer] = Waiting()

    def begin(self, consumer: Consumer, ids: Iterable[bytes]) -> None:
        """The time begins, or begins anew."""
        queue = self._queue
        due = due_at(queue.engine.times.now_ms(), queue.options.ack_ms)
        for delivery_id in ids:
            self._held.add(int.from_bytes(delivery_id), due, consumer)
        queue.wake_by(due)

    def acked(self, deliveries: Sequence[Delivery[bytes, Queue]]) -> None:
        for ids, _, _ in deliveries:
            for delivery_id in ids:
                self._held.take(int.from_bytes(delivery_id))

    def on_time(self, now: int) -> None:
        """Take back what is overdue."""
        queue, turn = self._queue, Turn()
        while (due := self._held.pop(now)) is not None:
            number, consumer = due
            delivery = None if consumer.gone else consumer.unacked.get(number.to_bytes(4))
            if delivery is not None and delivery[1] is queue:
                run = consumer.give_back(number.to_bytes(4))
                assert run is not None
                queue.engine.counts.overdue += 1
                queue.requeue((run,), nacked=False)
            if turn.over():
                break
        if self._held:
            queue.wake_by(int(self._held.next))


def due_at(now: int, after_ms: int) -> int:
    """When `after_ms` have surely passed: plus one, because ages are rounded down."""
    return now + after_ms + 1
