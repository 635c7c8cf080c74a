"""What has a time in one queue: messages that wait or age, deliveries that must be acknowledged, jobs.

*Expiry*: delays, lifetimes, delivery limits, and where dead letters go. Only queues whose messages have one
of these have it. A lifetime or delay of the queue is the same for all messages of the row. So times are kept
as pairs (due, sequence): all messages before the sequence are due then. Messages of nearly the same time
share a pair, and are late by at most a thousandth of the time. A message delayed by a NACK has an entry of
its own. The queue has one entry in the engine's timers: its next time.

Dead letters move to their dead-letter queue, or are dropped if none is named. They go in slices, so many of
them hold up nobody. If the dead-letter queue is missing or full, or the disk refuses, their queue is
*parked*: it tries again each second, with as many as there is room for, or with one.

*Jobs* are messages that came with PRODUCE_WITH (`dms.job_head`). Each is in one of four places. It *waits*
for its time; it is *ready*, by priority, key and place; a consumer *holds* it; or it is *aside*: dead, or
looked at by an action. In a durable queue those that wait are cold (`dms.cold_jobs`), and so are ready ones
while memory is scarce. The front of what is ready is read back when somebody takes it. A job stands where it
came: behind the messages of the row that came before it, and before the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dms.cold_jobs import (
    NO_RECORD,
    cold_job,
    cold_job_of,
    cold_run,
    head_of,
    is_cold_job,
    make_cold,
    read_back,
    timed,
)
from dms.job_head import JOB_FIRST, JobHead, pack_job, pack_new_job, times_of, unpack_job
from dms.job_requests import JobRequest
from dms.records import JOB_RECORD_BYTES, TTL, DeadLetter, Reason
from dms.wire import Refusal, Status, malformed
from shared.errors import StoreError
from shared.queues.cold import (
    PLAIN_BYTES,
    ColdMessages,
    due_of,
    is_cold,
    is_lost,
    moved,
    place_of,
    tries_of,
)
from shared.queues.dedup import SeenKeys
from shared.queues.due_times import DueTimes
from shared.queues.keys import Keys
from shared.queues.runs import RUN_MOST, Run, split_after, split_at, split_by, to_spans
from shared.queues.unacked import Delivery
from shared.queues.waiting import Waiting
from shared.schedules import Due
from shared.turns import Turn, batched

if TYPE_CHECKING:
    from dms.engine import Consumer, Queue
    from dms.options import Options
    from shared.queues.naming import MessageName
    from shared.storage.store import Ticket

CLOCK_LOOK_MS = 60_000
"""The wall clock is looked at so often where there are schedules, or jobs for a time of it."""
CLOCK_STEP_MS = 1000
"""The clock was set where it has gone so much more, or less, than time has passed."""
TRY_AGAIN_MS = 1000
"""A parked queue tries again at this interval."""
RETURNED_MAX = 10_000
"""Dead letters leave the row, and wait in memory, while fewer messages than this have left it and wait."""
EVER = 1 << 62
REASON_TEXTS = {Reason.TTL: TTL, Reason.MAX_DELIVERIES: "max_deliveries"}
"""The reason in a dead letter."""


WAITING_BYTES = 150
"""Memory of a job that waits for its time, beside its bytes: 140 by tracemalloc, 220 with a lifetime."""
READ_AHEAD = 256
"""Cold jobs that are read back at once."""
KNOWN_BYTES = 350
"""Memory of a `dedup` key that is known."""
FORGET_MS = 1000
"""How late keys may be forgotten."""
KNOWN_MAX = 1_000_000
"""Keys that a queue knows, of jobs that it has and of those that came lately."""
_ONCE = b'"dedup"'
_EXPIRES = b'"expires"'
_AT = b'"at"'
"""JSON of a job is only read where it has one of these."""


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
        return self._reading

    def _dead_read(self, runs: Sequence[Run]) -> None:
        self._reading = any(map(is_cold, runs))  # nothing more can be read, and they stay
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


class Jobs:
    """The jobs of one queue, by sequence. Times are ages of the engine, in milliseconds."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.tail = JOB_FIRST
        """The sequence of the next job."""
        self.waiting: Waiting[bytes] = Waiting()
        """Cold jobs; in a queue without a log each as it would stand in a record."""
        self.ready = self._new_keys()
        self.held: dict[int, Run] = {}
        self._aside: dict[int, Run] = {}
        """Those that were taken out, and nobody holds."""
        self._reader = None if queue.cold is None else ColdMessages(queue.cold.log, queue.cold, read_back)
        self._reads_front = False
        self.not_yet = False
        """The next one is on its way from the log; or some were lost, and who asked was told."""
        self.record_bytes = 0.0
        """Bytes of the records of all that are visible: of those that have left it is the mean."""
        self._runs: dict[int, Run] = {}
        """Those that are in `ready`."""
        self._unplaced: dict[int, Run] = {}
        """Ready and held jobs of which `ready` does not know yet, while options change."""
        self._lives: Waiting[bool] = Waiting()
        """When each is too old."""
        self._seen = SeenKeys()
        self.coming = 0
        """Jobs that the disk does not have yet."""
        self._by_clock = False
        """Some job came for a time of the wall clock."""
        times = queue.engine.times
        self._wall_ahead_ms = times.wall_ms() - times.now_ms()
        """What the wall clock was ahead of the age when it was last looked at."""
        self.memory_bytes = 0
        """Of the queue's memory: what its jobs take however cold they are."""
        self._known_bytes = 0
        """What the memory of messages was charged for known keys."""
        self._since_row = 0
        """Where keys take turns: jobs that were delivered since the row had its turn."""
        self._unconfirmed: dict[int, Ticket] = {}
        """What the answer to a repeated key waits for: jobs with a key that the disk does not have yet."""

    def _new_keys(self) -> Keys:
        self._order = per_key, fair, priority_max = _order_of(self.queue.options)
        return Keys(per_key, fair=fair, priority_max=priority_max)

    def options_changed(self) -> None:
        """The queue's options have changed: what is ready stands anew, if they say in which order. The queue
        delivers nothing until all does."""
        if self._order == _order_of(self.queue.options):
            return
        before, self.ready = self.ready, self._new_keys()
        self._unplaced = {**self._runs, **self.held}
        self.queue.await_returns()
        self.queue.engine.long_work.add(self._place_anew(before))

    def _place_anew(self, before: Keys) -> Iterator[None]:
        ready, unplaced = self.ready, self._unplaced
        try:
            for seqs in batched([*unplaced]):
                if ready is not self.ready:
                    return  # the options have changed again
                for seq in seqs:
                    run = unplaced.pop(seq, None)
                    if run is None:
                        continue
                    if seq in self.held:
                        ready.take_over(run.head.key)
                    else:
                        ready.add(run, run.head.priority, run.head.key)
                yield
            for seqs in batched([*self.waiting.numbers] if ready.per_key == 1 else ()):
                for seq in seqs:
                    job = self.waiting.get(seq)
                    if job is not None:
                        self._waits(seq, job)
                yield
        finally:
            self.queue.all_returned()
        yield from before.forgotten()

    # -- jobs arrive

    def produce(
        self, asked: JobRequest, body: bytes, *, done: Mapping[str, int] | None = None
    ) -> Ticket | None:
        """Add what PRODUCE_WITH asks for; `done`: it is of a schedule. None: done. Raises Refusal."""
        queue, times, options = self.queue, self.queue.engine.times, self.queue.options
        now, unix_ms = times.stamp()
        known_until = 0
        if asked.dedup:
            known = self._seen.number_of(asked.dedup, now)
            if known is not None:
                queue.engine.counts.repeated += 1
                return self._unconfirmed.get(known)
            if len(self._seen) >= KNOWN_MAX:
                text = f"{queue.text} knows {KNOWN_MAX} keys already"
                raise Refusal(Status.QUEUE_FULL, text, limit="dedup")
            known_until = due_at(now, options.dedup_ms) if options.dedup_ms else 0
        if queue.depth >= options.depth:
            raise Refusal(Status.QUEUE_FULL, f"{queue.text} holds its {options.depth} messages")
        delay_ms = options.delay_ms if asked.delay_ms is None else asked.delay_ms
        if asked.at_ms:
            delay_ms = max(asked.at_ms - times.wall_ms(), 0)
        ttl_ms = options.ttl_ms if asked.ttl_ms is None else asked.ttl_ms
        if 0 < ttl_ms < delay_ms:
            raise malformed(f"ttl_ms ({ttl_ms}) is below its delay ({delay_ms}): it would die undelivered")
        expires, due = due_at(now, ttl_ms) if ttl_ms else 0, due_at(now, delay_ms) if delay_ms else 0
        form = pack_new_job(asked.about, unix_ms, queue.tail, expires, known_until, due, body)
        return self.add(form, body, asked.dedup, known_until, done=done)

    def add(
        self,
        form: bytes,
        body: bytes,
        dedup: str,
        known_until: int = 0,
        *,
        moved: bool = False,
        done: Mapping[str, int] | None = None,
    ) -> Ticket | None:
        """Add a job; `moved`: it is in memory already, and needs no room there. Raises Refusal."""
        queue, engine, memory = self.queue, self.queue.engine, self.queue.memory
        if memory.unsynced:
            engine.sync_budget()
        if queue.crowded and not moved:  # on disk or not: something of each job is in memory
            queue.refuse_crowded()
        if memory.full and not moved and (queue.log is None or memory.jobs_full):
            raise Refusal(Status.QUEUE_FULL, "the server has no memory for more jobs", limit="memory")
        ticket = None
        if queue.log is not None:
            try:
                if done is None:
                    ticket = queue.log.job(form, self.tail)
                else:
                    ticket = queue.log.scheduled(form, self.tail, done)
            except StoreError as error:
                queue.detach_or_refuse(error)
        self.came(body, dedup, known_until, ticket)
        if ticket is None:
            if engine.durable is not None:
                engine.count_not_durable()
            self.arrived(self.tail - 1, (form,), NO_RECORD)
            if queue.line:
                queue.dispatch()
        return ticket

    def welcome(self, jobs: Sequence[tuple[JobHead, bytes]], now: int) -> list[bytes]:
        """The forms of jobs that come from another queue, where their place, key and lifetime were others."""
        queue = self.queue
        for head, _ in jobs:
            head.behind, head.known_until, head.text = queue.tail, 0, ""  # its key came, but not here
            head.expires = due_at(now, queue.options.ttl_ms) if queue.options.ttl_ms else 0
            if head.dedup and self._seen.number_of(head.dedup, now) is not None:
                head.dedup = ""
        return [pack_job(0, head, body) for head, body in jobs]

    def came(self, body: bytes, dedup: str, known_until: int, ticket: Ticket | None) -> None:
        """A job is in the queue, and not visible yet."""
        queue, engine = self.queue, self.queue.engine
        engine.counts.produced += 1
        for observe in engine.observers:
            observe(queue.name, (body,))
        queue.depth += 1
        if dedup:
            self._seen.add(dedup, self.tail, known_until)
            self._charge_known()
            if ticket is not None:
                self._unconfirmed[self.tail] = ticket
        self.tail += 1
        self.coming += 1

    def _charge_known(self) -> None:
        known_bytes = KNOWN_BYTES * len(self._seen)
        self._charge(known_bytes - self._known_bytes)
        self._known_bytes = known_bytes

    def _charge(self, size: int) -> None:
        """Memory that jobs take in a durable queue too: so much more, or less."""
        self.queue.charge(size)
        self.queue.memory.jobs_bytes += size
        self.memory_bytes += size

    def arrived(self, first: int, forms: Sequence[bytes], place: int) -> None:
        """Jobs are visible; `place`: where in the log the first one's record is."""
        self.coming -= len(forms)
        now, plain = self.queue.engine.times.now_ms(), 0
        for seq, form in enumerate(forms, first):
            if self._unconfirmed:
                self._unconfirmed.pop(seq, None)
            size = JOB_RECORD_BYTES + len(form)
            if place == NO_RECORD:
                self._enter(seq, form, now)
                continue
            _, due = times_of(form)
            self.record_bytes += size
            if due > now:
                job = cold_job_of(form, place)
                if len(job) == PLAIN_BYTES:
                    self.waiting.add(seq, due, job)
                    plain += 1
                else:
                    self._enter(seq, job, now)
            elif self.queue.may_load_more:
                self._enter(seq, form, now, place)
            else:
                self._enter(seq, cold_job_of(form, place), now)
            place += size
        if plain:
            self._charge((WAITING_BYTES + PLAIN_BYTES) * plain)
        self._charge_known()
        self.arm()

    def refused(self, first: int, forms: Sequence[bytes]) -> None:
        """The disk refused the newest jobs."""
        self.tail = first
        self.coming -= len(forms)
        for seq, form in enumerate(forms, first):
            self._unconfirmed.pop(seq, None)
            if _ONCE in form:
                self._seen.undo(unpack_job(form)[1].dedup)
        self._charge_known()

    def _enter(self, seq: int, job: bytes, now: int, place: int = NO_RECORD) -> None:
        """A job waits from now on, or is ready; `place`: of its record, unless it is cold."""
        due = due_of(job) if is_cold_job(job) else times_of(job)[1]
        run = None
        if due <= now:
            run = _run_of(seq, job, place)
        if _EXPIRES in job:
            head = _run_of(seq, job, place).head if run is None else run.head
            if head.expires:
                self._lives.add(seq, head.expires, True)
        if run is None:
            self._wait(seq, due, job)
        else:
            self.queue.charge_runs((run,))
            self._make_ready(run)

    def _wait(self, seq: int, due: int, job: bytes) -> None:
        self.waiting.add(seq, due, job)
        self._by_clock = self._by_clock or _AT in job
        self._waits(seq, job)
        self._charge(WAITING_BYTES + len(job))

    def _make_ready(self, run: Run) -> None:
        self._runs[run.first] = run
        self.ready.requeue(run, run.head.priority, run.head.key)

    # -- jobs are delivered, and return

    def take_next(self) -> Run | None:
        """Take the job that is to be delivered next; None: none is, or a message of the row is."""
        run = self._first_loaded()
        if run is None:
            return None
        now = self.queue.engine.times.now_ms()
        if 0 < run.head.expires <= now:  # its timer has not come yet
            self.on_time(now)
            run = self._first_loaded()
            if run is None:
                return None
        if self.ready.first_priority == 0 and self._row_goes_first(run.head):
            return None
        run = self.ready.take(1)
        del self._runs[run.first]
        self.held[run.first] = run
        return run

    def _first_loaded(self) -> Run | None:
        """The next job that may be taken, with its body; None: there is none, or `not_yet`."""
        self.not_yet = False
        run = self.ready.first()
        if run is not None and is_cold(run):
            before = len(self._runs)
            if not self._reads_front:
                self._read_front()
            run = self.ready.first()
            if len(self._runs) < before or (run is not None and is_cold(run)):
                self.not_yet = True
                return None
        return run

    def _read_front(self) -> None:
        """Read back the jobs that are to be delivered next."""
        assert self._reader is not None
        runs = [run for run in self.ready.upcoming(READ_AHEAD) if is_cold(run)]
        inside = self._reads_front = True

        def done() -> None:
            queue, self._reads_front = self.queue, False
            lost = [run.first for run in runs if is_lost(run)]
            if lost:
                queue.drop([run for seq in lost if (run := self.take_out(seq)) is not None])
                queue.wake_by(queue.engine.times.now_ms())
            if not inside and queue.line and not queue.deleted:
                queue.dispatch()

        self.load(runs, done)
        inside = False

    def load(self, runs: Iterable[Run], then: Callable[[], None]) -> None:
        """Have the bodies of jobs in memory; see `ColdMessages.load`. Of copies the memory is not counted."""
        if self._reader is None:
            then()
            return
        costs = [(run, run.head.cost_bytes) for run in runs if is_cold(run)]

        def done() -> None:
            for run, cost_bytes in costs:
                if run.bodies and run in (self._runs.get(run.first), self._aside.get(run.first)):
                    self.queue.charge(run.head.cost_bytes - cost_bytes)
            then()

        self._reader.load([run for run, _ in costs], done)

    def _row_goes_first(self, head: JobHead) -> bool:
        queue = self.queue
        if queue.ready.requeued:
            first = queue.ready.requeued[0][0]
        elif queue.head < min(queue.end, queue.released):
            first = queue.head
        else:
            return False
        if not queue.options.fair:
            return first < head.behind
        if self._since_row < self.ready.in_line:
            self._since_row += 1
            return False
        self._since_row = 0
        return True

    def before_first(self, seq: int, most: int) -> int:
        """How many of the row's messages from `seq` on, at most so many, stand before the first job."""
        run = self.ready.first()
        if run is None:
            return most
        return 1 if self.queue.options.fair else max(min(most, run.head.behind - seq), 1)

    def released(self, runs: Iterable[Run]) -> None:
        """Consumers do not hold these any more."""
        for run in runs:
            if self.held.pop(run.first, None) is not None:
                if self._unplaced.pop(run.first, None) is None:
                    self.ready.release(run.head.key)
                self._aside[run.first] = run

    def held_again(self, run: Run) -> None:
        """The acknowledgement of a job is undone."""
        self.held[run.first] = run
        self.ready.take_over(run.head.key)
        self.came_back(run)

    def place(self, run: Run, delay_ms: int = 0) -> int:
        """A job that was taken waits again. Returns the age at which it is due; 0: it may go now."""
        queue, head = self.queue, run.head
        now = queue.engine.times.now_ms()
        assert queue.expiry is not None
        before = self._aside.pop(run.first, run)
        run.offset = before.offset  # where it was split, a part of it may not know that its record was moved
        if 0 < head.expires <= now:
            self._aside[run.first] = run
            queue.expiry.died(run, Reason.TTL)
            return 0
        if delay_ms:
            head.due = due_at(now, delay_ms)
        if head.due <= now:
            if run.offset != NO_RECORD and not (is_cold(run) or queue.may_load_more):
                queue.uncharge_runs((run,))
                make_cold(run)
                queue.charge_runs((run,))
            self._make_ready(run)
            return 0
        queue.uncharge_runs((run,))
        if run.offset == NO_RECORD:
            self._wait(run.first, head.due, pack_job(run.tries, head, run.bodies[0]))
        else:
            self._wait(run.first, head.due, cold_job(run.offset, head.due, run.tries, head))
        self.arm()
        return int(head.due)

    def take_out(self, seq: int) -> Run | None:
        """Take out a job that waits or is ready; it stays in the queue. None: it is held, dead or gone."""
        job = self.waiting.take(seq)
        if job is not None:
            run = self._aside[seq] = self._no_longer_waiting(seq, job)
            return run
        ready = self._runs.pop(seq, None)
        if ready is None:
            return None
        if self._unplaced.pop(seq, None) is None:
            ready = self.ready.remove(ready, ready.head.priority, ready.head.key)
        self._aside[seq] = ready
        return ready

    def _waits(self, seq: int, job: bytes) -> None:
        """A job waits for its time: one that was tried may hold its key."""
        if self.ready.per_key == 1 and (tries_of(job) if is_cold_job(job) else times_of(job)[0]):
            self.ready.waits(seq, _run_of(seq, job).head.key, tried=True)

    def _no_longer_waiting(self, seq: int, job: bytes) -> Run:
        run = _run_of(seq, job)
        self.ready.waits_no_more(seq, run.head.key)
        self._charge(-WAITING_BYTES - len(job))
        self.queue.charge_runs((run,))
        return run

    def take_some(self, most: int) -> list[Run]:
        """Take out so many, in no order."""
        seqs = [*islice(self._runs, most)]
        if most > len(seqs):
            seqs += islice(self.waiting.numbers, most - len(seqs))
        return [run for seq in seqs if (run := self.take_out(seq)) is not None]

    def gone(self, runs: Iterable[Run]) -> None:
        """Messages have left the queue."""
        for run in runs:
            if run.first >= JOB_FIRST:
                self.record_bytes -= self.record_bytes / max(self._visible + 1, 1)
                self._aside.pop(run.first, None)
                if run.head.dedup:
                    self._seen.leave(run.head.dedup)
                if run.head.expires:
                    self._lives.take(run.first)
        self._charge_known()

    def came_back(self, run: Run) -> None:
        """A job has not left after all: the disk has refused that."""
        if run.head.dedup:
            self._seen.back(run.head.dedup, run.first)
        if run.head.expires:
            self._lives.add(run.first, run.head.expires, True)

    # -- by name

    def sequence_of(self, name: MessageName) -> int | None:
        """The sequence of a job that is in the queue. None: there is none."""
        seq = self._seen.waiting(name.dedup) if name.dedup else name.number
        return seq if seq in self.waiting or seq in self._runs or seq in self.held else None

    # -- time

    def arm(self) -> None:
        """Have `on_time` called when something is due."""
        due = min(self.waiting.next, self._lives.next, self._seen.next + FORGET_MS)
        if self._by_clock and self.waiting:
            due = min(due, self.queue.engine.times.now_ms() + CLOCK_LOOK_MS)
        if due < float("inf"):
            self.queue.wake_by(int(due))

    def on_time(self, now: int) -> None:
        """Jobs whose time has come are ready, and those whose life has ended are dead."""
        queue, turn = self.queue, Turn()
        assert queue.expiry is not None
        self._look_at_clock(now)
        while (due := self.waiting.pop(now)) is not None:
            if not (self._by_clock and self._reckon(*due, now)):
                self._make_ready(self._no_longer_waiting(*due))
            if turn.over():
                break
        while (ended := self._lives.pop(now)) is not None:
            run = self.take_out(ended[0])
            if run is not None:  # else it is held, and dies if it returns
                queue.expiry.died(run, Reason.TTL)
            if turn.over():
                break
        self._seen.forget(now)
        self._charge_known()
        self.arm()

    def _look_at_clock(self, now: int) -> None:
        """Where the wall clock was set, jobs for a time of it are due at another age."""
        ahead_ms = self.queue.engine.times.wall_ms() - now
        if self._by_clock and abs(ahead_ms - self._wall_ahead_ms) > CLOCK_STEP_MS:
            self.queue.engine.upkeep.add(self._reckon_anew())
            self._wall_ahead_ms = ahead_ms

    def _reckon_anew(self) -> Iterator[None]:
        for seqs in batched([*self.waiting.numbers]):
            for seq in seqs:
                job = self.waiting.get(seq)
                if job is not None:
                    self._reckon(seq, job, self.queue.engine.times.now_ms(), always=True)
            yield
        self.arm()

    def _reckon(self, seq: int, job: bytes, now: int, *, always: bool = False) -> bool:
        """Have a job wait until its time of the wall clock, unless that has come, or it was delivered.
        `always`: also where it has come. Returns whether the job waits."""
        if _AT not in job:
            return False
        run = _run_of(seq, job)
        left_ms = run.head.at_ms - self.queue.engine.times.wall_ms()
        if run.tries or not run.head.at_ms or (left_ms <= 0 and not always):
            return False
        due = run.head.due = due_at(now, max(left_ms, 0))
        again = timed(job, 0, due) if is_cold_job(job) else pack_job(0, run.head, run.bodies[0])
        self.waiting.add(seq, due, again)
        return True

    # -- what the log has

    @property
    def _visible(self) -> int:
        """How many there are."""
        return len(self.waiting) + len(self._runs) + len(self.held) + len(self._aside)

    @property
    def count(self) -> int:
        """How many are visible, and nobody holds them; without the dead."""
        return len(self.waiting) + len(self._runs)

    @property
    def sequences(self) -> list[int]:
        """Of those that wait or are ready, in no order."""
        return [*self.waiting.numbers, *self._runs]

    def copy_of(self, seq: int) -> Run | None:
        """A job as it is now, which may be cold. None: it has left."""
        job = self.waiting.get(seq)
        if job is not None:
            return _run_of(seq, job)
        run = self._runs.get(seq) or self.held.get(seq) or self._aside.get(seq)
        return None if run is None else run.part(0, 1)

    def places(self) -> Iterator[list[tuple[int, bytes]]]:
        """All jobs, as a start is to find them in the log: in lists, each as of when it is asked for."""
        for seqs in batched([*self.waiting.numbers, *self._runs, *self.held, *self._aside]):
            found = [(seq, self.cold(seq)) for seq in seqs]
            yield [(seq, job) for seq, job in found if job is not None]

    def move(self, seq: int, before: int, place: int) -> None:
        """The record of a job was at one place, and is at another now."""
        job = self.waiting.get(seq)
        if job is not None:
            if is_cold_job(job) and place_of(job) == before:
                self.waiting.replace(seq, moved(job, place))
            return
        run = self._runs.get(seq) or self.held.get(seq) or self._aside.get(seq)
        if run is not None and run.offset == before:
            run.offset = place

    def cold(self, seq: int) -> bytes | None:
        """A job as a cold one. None: it has left, or has no record."""
        job = self.waiting.get(seq)
        if job is not None:
            return job if is_cold_job(job) else None
        run = self._runs.get(seq) or self.held.get(seq) or self._aside.get(seq)
        if run is None or run.offset < 0:
            return None
        return cold_job(run.offset, run.head.due, run.tries, run.head)

    def left_keys(self) -> Iterator[list[tuple[str, int, int]]]:
        """The keys of jobs that have left, as a SEEN record has them: in lists."""
        self._seen.forget(self.queue.engine.times.now_ms())
        return batched(self._seen.left_keys())

    def restore(
        self, jobs: dict[int, bytes], tail: int, seen: Iterable[Sequence[Any]], record_bytes: float
    ) -> None:
        """What was in the queue when the server ended; `seen`: keys, numbers and ends of windows. Empties
        `jobs`."""
        times = self.queue.engine.times
        now, wall_ms = times.now_ms(), times.wall_ms()
        self.tail = tail
        for key, seq, until in seen:
            if until > now:
                self._seen.add(key, seq, until)
                self._seen.leave(key)
        self.record_bytes = record_bytes
        others: list[tuple[int, bytes]] = []
        self.waiting.fill(_plain_ones(jobs, now, others))
        self._charge((WAITING_BYTES + PLAIN_BYTES) * len(self.waiting))
        while others:
            seq, job = others.pop()
            if len(job) > PLAIN_BYTES:
                head = head_of(job)
                if head.dedup:
                    self._seen.add(head.dedup, seq, head.known_until)
                if head.at_ms and not tries_of(job):  # the clock went on while no server ran
                    due = due_at(now, head.at_ms - wall_ms) if head.at_ms > wall_ms else 0
                    job = timed(job, 0, due)
            self._enter(seq, job, now)
        self._charge_known()
        self.arm()


def _order_of(options: Options) -> tuple[int, bool, int]:
    """What options say of the order of jobs, as `Keys` takes it."""
    return options.per_key, options.fair, max(options.priorities - 1, 0)


def _plain_ones(
    jobs: dict[int, bytes], now: int, others: list[tuple[int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """Take out all jobs: those that wait, and of which only numbers are known, with their times; the others
    are added to that list. There may be a million, and none is twice in memory."""
    while jobs:
        seq, job = jobs.popitem()
        due = due_of(job)
        if len(job) == PLAIN_BYTES and due > now:
            yield seq, due, job
        else:
            others.append((seq, job))


class DueSchedules:
    """The schedules of one queue, each with the time up to which it is done. Times are of the wall clock."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: dict[str, int] = {}
        """By what a schedule says, up to when it was done at the start."""
        self.due: list[Due] = []

    def restore(self, done: Mapping[str, int]) -> None:
        self._known = dict(done)

    @property
    def done(self) -> dict[str, int]:
        return {each.name: each.done_ms for each in self.due}

    def begin(self) -> None:
        """The queue has the schedules of its options from now on; those that it had already go on."""
        queue = self._queue
        schedules = queue.options.schedule
        if not (schedules or self.due):
            return
        now_ms = queue.engine.times.wall_ms()
        known = {**self._known, **self.done}
        named = {each.name: each for each in (Due(schedule, now_ms) for schedule in schedules)}
        self.due = [
            Due.going_on(each.schedule, known[name], now_ms) if name in known else each
            for name, each in named.items()
        ]
        if queue.log is not None and self.done.keys() != known.keys():
            try:
                queue.log.schedules_begin(self.done)
            except StoreError:
                pass  # where the server ends before one is due, they begin anew
        self.arm()

    def arm(self) -> None:
        """Have `on_time` called when one is due, or in a minute: the wall clock may have jumped."""
        times = self._queue.engine.times
        following = [each.next_ms for each in self.due if each.next_ms is not None]
        if following:
            wait_ms = min(max(min(following) - times.wall_ms(), 0), CLOCK_LOOK_MS)
            self._queue.wake_by(due_at(times.now_ms(), wait_ms))

    def on_time(self) -> None:
        """Add the jobs that are due. What has no place is tried again in a second."""
        queue, times = self._queue, self._queue.engine.times
        now_ms = times.wall_ms()
        if any(each.done_ms > now_ms for each in self.due):
            self.due = [Due.going_on(each.schedule, each.done_ms, now_ms) for each in self.due]
        for each in self.due:
            before = each.done_ms
            time = each.take(now_ms)
            if time is None:
                continue
            try:
                asked = JobRequest(headers={"scheduled": time})
                queue.made_for_jobs().produce(asked, each.schedule.body.encode(), done=self.done)
                queue.engine.counts.scheduled += 1
            except Refusal as refusal:
                self.due[self.due.index(each)] = Due(each.schedule, before)
                queue.engine.counts.scheduled_late += 1
                queue.engine.log.warning(
                    "a scheduled message has no place: it comes when there is room",
                    queue=queue.text,
                    reason=str(refusal),
                )
                queue.wake_by(due_at(times.now_ms(), TRY_AGAIN_MS))
                return
        self.arm()


def due_at(now: int, after_ms: int) -> int:
    """When `after_ms` have surely passed: plus one, because ages are rounded down."""
    return now + after_ms + 1


def _run_of(seq: int, job: bytes, place: int = NO_RECORD) -> Run:
    """A job that is cold, or as it stands in a record, which is at `place`."""
    if is_cold_job(job):
        return cold_run(seq, job)
    tries, head, body = unpack_job(job)
    return Run(head, [body], seq, tries, place)
