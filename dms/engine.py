"""The queue engine: queues, the order of their messages, and their consumers. No connections.

Down: a session calls `Queue.produce`, `Queue.line_up` (credits), `Engine.ack`, `Queue.requeue` (a NACK) and
`Engine.gone`. A change that must be durable first returns a ticket. Up: the engine calls a session through
its `DeliveryReceiver`, and nothing else.

Theory of operation. A queue's messages are runs in the core of queues (`shared.queues.core`), whose numbers
are called *sequences* here, from 1 in order of arrival. What DMS adds is who gets a message, what waits for
its time or for a dead-letter queue (`dms.expiry`), and the records of the log.

Credits wait in `line` in order of arrival. Either messages are ready or credits wait: `dispatch` sees to
that. On disk every change is also a record in the queue's log (`dms.queue_log`).

Long work is done in slices, and other tasks run in between (`Engine.long_work`, and a queue's timer). Such
work is delivery to many credits, the end of many credits, and the return of a lost connection's deliveries.
While messages return, their queue delivers nothing (`stops`), so the order is as if they had returned at
once.

A paused queue delivers nothing either. It accepts messages, and they expire. Its row in the table says that
it is paused, so it stays so after a restart.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from itertools import count as counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import structlog

from dms import records
from dms.cold_jobs import NO_RECORD
from dms.delivery_ids import DeliveryIds
from dms.expiry import EVER, AckDeadlines, Expiry
from dms.job_head import JOB_FIRST, JobHead, said
from dms.jobs import DueSchedules, Jobs
from dms.memory import MessageMemory
from dms.metrics import Counts
from dms.options import Options
from dms.queue_log import Arrival, QueueLog
from dms.records import NotOurs, Reason, RecordKind
from dms.runs import counted
from dms.settings import DmsSettings, LossCounts
from dms.wire import NOT_HELD, Refusal, Status, malformed, refusal_for
from shared.budget import Account, OverBudget, unbounded
from shared.errors import StoreError, StoreReadOnly
from shared.queues import core, pausing
from shared.queues.cold import ColdReader, DamageTeller
from shared.queues.core import (
    HELD_BYTES,
    MESSAGE_BYTES,
    RunQueue,
)
from shared.queues.runs import Ready, Run, bodies_bytes, split_by, to_spans
from shared.queues.unacked import Delivery, Unacked
from shared.queues.undoing import Undoing
from shared.queues.waits import Waits
from shared.rates import TokenBucket
from shared.storage.lost import Lost, describe_lost
from shared.turns import LongWork, Turn, batched, taken_out

if TYPE_CHECKING:
    from dms.times import Times
    from shared.storage.store import Log, Namespace, Store, Ticket
    from shared.storage.table import Table

logger = structlog.stdlib.get_logger("brokers.dms")

QUEUE_BYTES = 8 << 10
"""Memory of an empty queue with its log: 7.0 KB by tracemalloc; without a log 2.2."""
SHARES_STEPS = 100
"""What each owner's queues take is added up whenever the memory of all changes by this part of its bound."""
CREDIT_BYTES = 192
"""Memory of a single waiting CONSUME: id, list, `Credit`, and its places in two rows."""
CREDITS_FREE, CREDITS_STEP = 16, 256
"""How many waiting CONSUMEs of a connection are not charged. More are, in steps of the second, until it
ends."""
LINE_LEAST = 64
"""From so many credits in a queue's line on, ended ones are searched for and removed."""
HELD_BACK_WARNED_MS = 60_000
"""The least time between two log lines about dead messages that are held back."""
FETCH_BYTES = 256 << 10
"""Bytes read back at once."""
POSITION_BYTES = 64 << 10
"""Bytes from one entry of `positions` to the next."""
ENGINE_KEY = b"\0"
"""The engine's own row in the table; keys that begin so name no queue."""


Outcome: TypeAlias = "Ticket | Refusal | None"
"""What a change waits for, why it was refused, or None if it is done."""


class DeliveryReceiver(Protocol):
    """A consumer's session, as the engine sees it. Whatever it raises ends its consumer only."""

    def deliver(self, ids: Sequence[bytes], run: Run) -> None:
        """Messages of one queue for the oldest credits, under these delivery ids."""

    def end_credits(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        """The credits of the requests `ids` end without a message."""

    def fail(self, error: Exception) -> None:
        """Another method raised this."""


class Credit:
    """CONSUMEs of one consumer that came together: `ids` from `at` on wait, from now on. `deadline` is the
    session's. It is to be given to `queue.line_up`. All that wait at a time are of one queue.
    """

    __slots__ = ("at", "consumer", "deadline", "ids", "queue")

    def __init__(self, consumer: Consumer, queue: Queue, ids: Sequence[bytes], deadline: float) -> None:
        self.consumer = consumer
        self.queue = queue
        self.ids = ids
        self.at = 0
        self.deadline = deadline
        consumer.waiting += len(ids)
        consumer.credits.append(self)

    @property
    def left(self) -> int:
        return len(self.ids) - self.at


class Consumer:
    """A consumer, known by `number`: its credits, oldest first, and its unacknowledged deliveries.

    `prefetches`: it holds messages before it tries them, so only what it acknowledges counts as delivered.
    """

    __slots__ = (
        "credits",
        "credits_room",
        "delivered",
        "engine",
        "gone",
        "held_bytes",
        "number",
        "prefetches",
        "queue",
        "receiver",
        "unacked",
        "user",
        "waiting",
    )

    def __init__(
        self, engine: Engine, number: int, receiver: DeliveryReceiver, *, prefetches: bool = False
    ) -> None:
        self.engine = engine
        self.number = number
        self.receiver = receiver
        self.queue: Queue | None = None
        """The queue that it consumes."""
        self.credits: deque[Credit] = deque()
        self.waiting = 0
        """CONSUMEs that wait in `credits`."""
        self.credits_room = CREDITS_FREE
        """How many waiting CONSUMEs are charged to the budget, with those that need not be."""
        self.unacked: Unacked[bytes, Queue] = Unacked()
        self.user = ""
        """Who has a share of what all consumers hold; "": it is not counted by user."""
        self.held_bytes = 0
        """Memory of `unacked`, where it is counted by user."""
        self.delivered = 0
        self.gone = False
        self.prefetches = prefetches

    def consume(self, queue: Queue | None) -> None:
        """From now on it consumes this queue, and no other."""
        if self.queue is not None:
            self.queue.consumers -= 1
        self.queue = queue
        if queue is not None:
            queue.consumers += 1

    def may_wait(self, count: int) -> bool:
        """Whether the budget has room for `count` more waiting CONSUMEs."""
        missing = self.waiting + count - self.credits_room
        if missing > 0:
            steps = -(-missing // CREDITS_STEP)
            try:
                self.engine.credits.take(steps * CREDITS_STEP * CREDIT_BYTES, self.user)
            except OverBudget:
                return False
            self.credits_room += steps * CREDITS_STEP
        return True

    @property
    def has_room(self) -> bool:
        """Whether its user may hold more."""
        account = self.engine.unacked
        return account.shares.fits(self.user, account.limit_bytes, 0)

    def took(self, run: Run) -> None:
        """It holds these from now on; only where `user` is counted."""
        self._count_held(_held_bytes((run,)))

    def gave(self, runs: Iterable[Run]) -> None:
        """It does not hold these any more; only where `user` is counted."""
        self._count_held(-_held_bytes(runs))

    def give_back(self, delivery_id: bytes) -> Run | None:
        """Take back a delivery. None: it is not here."""
        delivery = self.unacked.take_one(delivery_id)
        if delivery is None:
            return None
        if self.user:
            self.gave((delivery[2],))
        return delivery[2]

    def gave_all(self) -> None:
        self._count_held(-self.held_bytes)

    def _count_held(self, more: int) -> None:
        self.held_bytes += more
        self.engine.unacked.shares.add(self.user, more)

    def end(self, credit: Credit, refusal: Refusal) -> None:
        """End a credit: tell the session that its remaining CONSUMEs are refused."""
        left = credit.ids[credit.at :]
        credit.at = len(credit.ids)
        self.waiting -= len(left)
        self.credits.remove(credit)
        self._tell(self.receiver.end_credits, left, refusal)

    def end_all(self, refusal: Refusal) -> None:
        """End all credits at once."""
        self._tell(self.receiver.end_credits, self._drop_credits(), refusal)

    def _drop_credits(self) -> list[bytes]:
        left = [each for credit in self.credits for each in credit.ids[credit.at :]]
        for credit in self.credits:
            credit.at = len(credit.ids)
        self.credits.clear()
        self.waiting = 0
        return left

    def forget_credits(self) -> None:
        self._drop_credits()
        self.engine.credits.give((self.credits_room - CREDITS_FREE) * CREDIT_BYTES, self.user)
        self.credits_room = CREDITS_FREE

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """The session raised in another session's call, or the store's: it ends, and nothing is lost."""
        self.engine.gone(self)
        self.receiver.fail(error)


class Queue(RunQueue):
    """One queue, from its creation to its deletion."""

    __slots__ = (
        "bucket",
        "cold",
        "consumers",
        "crowded",
        "deadlines",
        "depth",
        "end",
        "engine",
        "expiry",
        "head",
        "jobs",
        "line",
        "line_most",
        "log",
        "name",
        "options",
        "owner",
        "recovered",
        "released",
        "schedules",
        "tail",
        "text",
    )

    memory: MessageMemory
    ready: Ready

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        super().__init__(engine.memory)
        self.engine = engine
        self.text = name
        self.name = name.encode()
        self.options = options
        self.depth = 0
        """All messages, also those that are held, and those that the disk has not confirmed."""
        self.head = 1
        """The first sequence of the row."""
        self.end = 1
        """The sequence behind the row."""
        self.tail = 1
        """The sequence of the next message that comes; those from `end` on are not visible yet."""
        self.owner = ""
        """Who made it since the start, and has a share of memory."""
        self.crowded = False
        """Its owner's queues together take more than that."""
        self.log: QueueLog | None = None
        """None: in memory, from the beginning or since the disk failed (best-effort)."""
        self.cold: ColdRow | None = None
        self.expiry: Expiry | None = None
        self.bucket: TokenBucket | None = TokenBucket(options.rate) if options.rate else None
        """None: it delivers at any rate."""
        self.deadlines: AckDeadlines | None = AckDeadlines(self) if options.ack_ms else None
        """None: its deliveries have no time limit."""
        self.jobs: Jobs | None = None
        """None: no job has come."""
        self.schedules = DueSchedules(self)
        self.consumers = 0
        """Connections and bridges that consume it."""
        self.recovered = 1
        """Messages below this sequence came before the process was started."""
        self.released = EVER
        """Below this sequence nothing in the row is delayed any more."""
        self.line: deque[Credit] | tuple[()] = ()  # made by the first credit: an empty one is 760 bytes
        self.line_most = LINE_LEAST

    def __repr__(self) -> str:
        return f"<Queue {self.text!r} {self.head}..{self.end}..{self.tail}, {self.returned} returned>"

    @property
    def room(self) -> int:
        """How many more messages it may take."""
        return self.options.depth - self.depth

    @property
    def may_load_more(self) -> bool:
        """Whether more of the queue may be kept in memory. Without a disk it must be."""
        if self.cold is None:
            return True
        hot_bytes = 0 if self.crowded else self.engine.settings.hot_bytes
        memory = self.memory
        return (
            memory.loaded_bytes < hot_bytes and not memory.full
        ) or self.loaded_bytes < core.HOT_LEAST_BYTES

    @property
    def returned(self) -> int:
        """How many messages have left the row, and nobody holds them: requeued ones, and those aside. Jobs
        are not among them."""
        out = self.depth - self.held - (self.tail - self.head)
        return out if self.jobs is None else out - self.jobs.count - self.jobs.coming

    @property
    def loaded_end(self) -> int:
        """The sequence behind the part of the row that is in memory."""
        return self.head + self.ready.loaded

    @property
    def is_cold(self) -> bool:
        """Whether part of the row is not in memory."""
        return self.head + self.ready.loaded < self.end

    def open_log(self, log: Log) -> None:
        """Keep the queue on disk from now on."""
        self.log = QueueLog(log, self, self.engine.times, self.engine.upkeep.add)
        self.cold = ColdRow(self, log)

    def made_for_jobs(self) -> Jobs:
        """Its jobs: there may come some, from now on."""
        if self.jobs is None:
            self.jobs = Jobs(self)
            self.timed()
        return self.jobs

    def timed(self) -> Expiry:
        """Its messages' times: there may be some, from now on."""
        if self.expiry is None:
            self.expiry = Expiry(self)
        return self.expiry

    # -- messages arrive

    def produce(self, bodies: Sequence[bytes], size: int, *, moved: bool = False) -> Ticket | None:
        """Add messages, at most `room`; `size`: bytes of all. None: done. Raises Refusal.

        `moved`: they are in memory already, and need no room there.
        """
        count = len(bodies)
        engine = self.engine
        if self.crowded and self.log is None and not moved:
            self.refuse_crowded()
        memory = self.memory
        if memory.unsynced:
            engine.sync_budget()
            if memory.full and self.log is None and not moved:
                raise no_memory()
        ticket = None
        if self.log is not None:
            try:
                ticket = self.log.produce(bodies, size, self.tail)
            except StoreError as error:
                self.detach_or_refuse(error)
        engine.counts.produced += count
        if engine.observers:
            for observe in engine.observers:
                observe(self.name, bodies)
        if self.tick != engine.waits.tick:
            engine.waits.take_sample(self, self.tail)
        self.depth += count
        self.tail = tail = self.tail + count
        if self.expiry is not None:
            self.expiry.on_produced(tail)
        if ticket is None:
            if engine.durable is not None:
                engine.count_not_durable(count)
            if self.cold is None:  # in memory, all that was produced is visible
                self.end = tail
                self.load(bodies, tail - count, size)
            else:
                self.make_visible(bodies, size)
            if self.line:
                self.dispatch()
        return ticket

    def refuse_crowded(self) -> None:
        """Raise Refusal where its owner's queues take their share of memory still."""
        self.engine.share_memory()
        if self.crowded:
            text = f"the queues of {self.owner} take his share of memory for messages"
            raise Refusal(Status.QUEUE_FULL, text, limit="memory")

    def on_produced(self, count: int) -> None:
        """`count` messages were added, other than by `produce`."""
        self.depth += count
        self.tail += count
        if self.expiry is not None:
            self.expiry.on_produced(self.tail)

    def make_visible(self, bodies: Sequence[bytes], size: int) -> None:
        """The next messages of the row may be delivered; they stay in memory."""
        if self.cold is not None and (self.is_cold or self.cold.waiting):
            self.cold.waiting.append((bodies, size))
            return
        first = self.end
        self.end = first + len(bodies)
        self.load(bodies, first, size)

    def load(self, bodies: Sequence[bytes], first: int, size: int) -> None:
        """Have messages in memory that are behind the loaded part of the row; `size`: bytes of the bodies."""
        self.ready.add_bodies(bodies, first)
        size += MESSAGE_BYTES * len(bodies)
        self.loaded_bytes += size
        self.memory.loaded_bytes += size

    # -- messages are delivered

    def line_up(self, credit: Credit) -> None:
        """Serve a credit now, or let it wait."""
        line = self.line
        if isinstance(line, tuple):
            line = self.line = deque()
        while line and line[0].at == len(line[0].ids):  # those have ended
            line.popleft()
        if len(line) >= self.line_most:  # ended ones behind one that waits hold memory
            waiting = [each for each in line if each.at < len(each.ids)]
            line.clear()
            line.extend(waiting)
            self.line_most = max(LINE_LEAST, 2 * len(line))
        line.append(credit)
        if len(line) == 1 and (self.head < self.end or self.ready.requeued or self.jobs is not None):
            self.dispatch()

    def dispatch(self) -> None:
        """Serve the credits in line, in order, as far as messages are ready."""
        line, engine = self.line, self.engine
        served = False
        turn: Turn | None = None  # one credit alone, as mostly, needs none
        while line and not self.stops:
            credit = line[0]
            want = len(credit.ids) - credit.at
            if not want:
                line.popleft()
                continue
            if turn is None and served:
                turn = Turn()
            if turn is not None and turn.over():
                self.wake_by(engine.times.now_ms())
                return
            served = True
            if not self.deliver_next(want, credit.consumer, credit):
                return

    def deliver_next(self, most: int, consumer: Consumer, credit: Credit | None = None) -> bool:
        """Deliver the next messages that stand together, at most so many; False: none is ready, or those that
        are have expired. `credit`: the first in line, which they are for; None: nothing waits.
        """
        engine, ready, log, jobs = self.engine, self.ready, self.log, self.jobs
        if self.bucket is not None:
            most = min(most, self.bucket.allowance(engine.times.seconds()))
            if not most:
                self.wake_by(engine.times.now_ms() + 1 + int(1000 * self.bucket.wait_seconds))
                return False
        if jobs is not None and (job := jobs.take_next()) is not None:
            run, count = job, 1
            if run.tries:
                self.count_again(run, engine.counts.redelivered)
        elif jobs is not None and jobs.not_yet:
            return False
        elif ready.requeued:
            if self.expiry is not None and self.expiry.requeued_expired:
                self.wake_by(engine.times.now_ms())
                return False
            if jobs is not None:
                most = jobs.before_first(ready.requeued[0][0], most)
            run = ready.take_requeued(most)
            count = len(run.bodies)
            if run.tries:
                self.count_again(run, engine.counts.redelivered)
        else:
            head, cold = self.head, self.cold
            if not ready.loaded and cold is not None and head < self.end and head < self.released:
                cold.fetch()  # this may bring some at once, and may find that some are lost
                head = self.head
                if credit is not None and not credit.left:
                    return False  # it was told of the loss
            loaded = ready.loaded
            if self.released < head + loaded:
                loaded = self.released - head
            if loaded <= 0:
                return False
            if jobs is not None:
                most = jobs.before_first(head, most)
            run = ready.take_row(most if most < loaded else loaded)
            count = len(run.bodies)
            self.head = head = head + count
            if head > self.mark:
                engine.waits.count_sample(self)
            if consumer.prefetches and log is not None:
                log.taken_ahead(run.numbers)
        self.hold(run)
        if self.bucket is not None:
            self.bucket.take(count)
        if not consumer.prefetches:
            run.tries += 1
            if log is not None:
                log.note_delivered(run.first, count)
        delivery_ids = engine.delivery_ids
        number = delivery_ids.next
        if number + count <= delivery_ids.until:
            delivery_ids.next = number + count
        else:
            number = delivery_ids.take(count)
        ids = (number.to_bytes(4),) if count == 1 else counted(number, count)
        consumer.unacked.add(ids, self, run)
        if self.deadlines is not None:
            self.deadlines.begin(consumer, ids)
        if consumer.user:
            consumer.took(run)
        engine.counts.delivered += count
        consumer.delivered += count
        if credit is not None:
            credit.at += count
            consumer.waiting -= count
            if credit.at == len(credit.ids):  # `dispatch` takes it out of the line
                consumer.credits.popleft()
        try:
            consumer.receiver.deliver(ids, run)
        except Exception as error:
            consumer.fail(error)
        return True

    def end_credits(self, refusal: Refusal) -> None:
        """End all credits in line."""
        line, self.line = self.line, ()
        if line:
            self.engine.long_work.add(_end_in_slices(line, refusal))

    # -- messages leave, or are returned

    def ack(self, consumer: Consumer, deliveries: Sequence[Delivery[bytes, Queue]]) -> Ticket | None:
        """Remove acknowledged messages. None: done. Raises Refusal, and then nothing has changed."""
        ticket = None
        runs = [deliveries[0][2]] if len(deliveries) == 1 else [run for _, _, run in deliveries]
        if self.log is not None:
            try:
                if consumer.prefetches:  # they were tried; before the ACK: a note may write what is pending
                    for run in runs:
                        self.log.note_delivered(run.first, len(run.bodies))
                ticket = self.log.ack(runs, partial(self.undo_ack, consumer, deliveries))
            except StoreError as error:
                self.detach_or_refuse(error)
        count = self.release(runs)
        if consumer.user:
            consumer.gave(runs)
        engine = self.engine
        engine.counts.acked += count
        self.depth -= count
        if self.deadlines is not None:
            self.deadlines.acked(deliveries)
        if ticket is None and engine.durable is not None:
            engine.count_not_durable(count)
        if self.jobs is not None:
            self.jobs.released(runs)
            self.jobs.gone(runs)
            if self.options.per_key and self.line:  # more of these keys may go
                self.dispatch()
        return ticket

    def undo_ack(self, consumer: Consumer, deliveries: Sequence[Delivery[bytes, Queue]]) -> None:
        """The disk has refused these ACKs."""
        for _, _, run in deliveries:
            self.depth += len(run)
            self.hold_again(run)
            if run.first >= JOB_FIRST and self.jobs is not None:
                self.jobs.held_again(run)
            self.engine.counts.acked -= len(run)
            if consumer.user and not consumer.gone:
                consumer.took(run)
        if consumer.gone:
            self.requeue([run for _, _, run in deliveries], nacked=False)
        else:
            consumer.unacked.put_back(deliveries)
            if self.deadlines is not None:
                for ids, _, _ in deliveries:
                    self.deadlines.begin(consumer, ids)

    def requeue(
        self, runs: Sequence[Run], *, nacked: bool, delay_ms: int = 0, text: str = ""
    ) -> Ticket | None:
        """Return held messages to their places; `nacked`: their consumer sent a NACK, which may say when they
        may come again, and why they came back. The ticket of what it said, or of when they come; None: there
        is nothing to wait for."""
        count, ticket = self.release(runs), None
        if self.deleted:
            return None
        if self.jobs is not None:
            self.jobs.released(runs)
        self.engine.counts.returned += count
        if text:
            for run in runs:
                said(run, text)
        self.charge_runs(runs)
        if delay_ms:
            self.timed()
        notes: list[tuple[int, int, int]] = []
        for run in runs:
            due = self.place(run, nacked=nacked, delay_ms=delay_ms)
            notes += zip(run.numbers, repeat(run.tries), repeat(due), strict=False)
        if self.log is not None:
            self.log.note_returned(notes, nacked=nacked)
            if text:
                for seq, _, _ in notes:
                    self.log.note_text(seq, text)
            if text or any(due for _, _, due in notes):
                ticket = self.log.flush_notes()
        if self.expiry is not None:
            self.expiry.bury()
        if self.line:
            self.dispatch()
        return ticket

    def place(self, run: Run, *, nacked: bool = False, delay_ms: int = 0) -> int:
        """Messages that left the row may be delivered again: now, later, or never where they have died.
        Returns when, if a NACK delays them; else 0."""
        if self.expiry is not None:
            return self.expiry.on_returned(run, nacked=nacked, delay_ms=delay_ms)
        self.ready.requeue(run)
        return 0

    def take_row(self, most: int) -> list[Run]:
        """Take messages off the row's loaded front. They stay in the queue, aside, and in memory."""
        runs: list[Run] = []
        while most > 0 and self.ready.loaded:
            run = self.ready.take_row(most)
            self.head += len(run.bodies)
            most -= len(run.bodies)
            runs.append(run)
        return runs

    def drop_front(self, count: int) -> None:
        """Messages of the row's front leave, in memory or not."""
        first = self.head
        self.uncharge_runs(self.take_row(min(count, self.ready.loaded)))
        self.head = first + count
        self.depth -= count

    def drop(self, runs: Sequence[Run]) -> None:
        """Messages that nobody holds leave; they are in no place any more."""
        self.uncharge_runs(runs)
        if self.jobs is not None:
            self.jobs.gone(runs)
        self.depth -= sum(map(len, runs))

    def undo_departure(self, runs: Sequence[Run]) -> None:
        """The disk refused that messages left: they are back."""
        self.depth += sum(map(len, runs))
        self.charge_runs(runs)
        for run in runs:
            if run.first >= JOB_FIRST and self.jobs is not None:
                self.jobs.came_back(run)
            self.place(run)
        if self.expiry is not None:
            self.expiry.arm()

    def discard(self, runs: Sequence[Run], reason: Reason) -> Ticket | None:
        """Messages that were taken out leave unacknowledged; they are back where the disk refuses that. None:
        they have left. Raises Refusal, and then nothing has changed."""
        ticket = self.log_gone(to_spans(runs), reason)
        if self.log is not None:
            self.log.departed(partial(self.undo_departure, runs))
        self.drop(runs)
        return ticket

    def take_returned(self, most: int) -> list[Run]:
        """Take out messages that have left the row and nobody holds, at most so many; or jobs. They stay in
        the queue, in no place."""
        runs: list[Run] = []
        while most > 0 and self.ready.requeued:
            runs.append(self.ready.take_requeued(most))
            most -= len(runs[-1])
        if self.expiry is not None:
            runs += self.expiry.take_some(most)
        if self.jobs is not None and not runs:
            runs = self.jobs.take_some(most)
        return runs

    def purge(self) -> tuple[int, Ticket | None]:
        """All that nobody holds leaves, but for jobs that may be delivered: how many. As `discard`."""
        # AMQP has its own. Here the row leaves as one span, in memory or not: 0.04 us a message. There each
        # message has a record and a head, and they leave in turns: 2 us (50,000 durable ones of 100 bytes).
        first, row = self.head, self.end - self.head
        runs = [run for run, _ in self.returned_runs()]
        spans = sorted([*to_spans(runs), *([(first, row)] if row else ())])
        if not spans:
            return 0, None
        ticket = self.log_gone(spans, Reason.PURGED)
        if self.log is not None:
            assert self.cold is not None
            undo = partial(self._undo_purge, first, row, self.cold.row_start() if row else 0, runs)
            self.log.departed(undo, emptied=True)
        self.drop_front(row)
        self.ready.clear_requeued()
        for aside in self.aside:
            aside.clear()
        if self.expiry is not None:
            self.expiry.forget()
        self.drop(runs)
        return row + sum(map(len, runs)), ticket

    def _undo_purge(self, first: int, row: int, offset: int, runs: Sequence[Run]) -> None:
        """The disk has refused it: the row is back, cold, with the record of its first message at `offset`.
        Nothing more of it has become visible meanwhile."""
        if row:
            assert self.cold is not None
            self.cold.begin_at(first, offset)
            self.head = first
            self.depth += row
            if self.expiry is not None:
                self.expiry.row_moved()
        self.undo_departure(runs)

    def log_gone(self, spans: Sequence[tuple[int, int]], reason: Reason) -> Ticket | None:
        """Log that messages (first sequence, count) leave unacknowledged. Raises Refusal."""
        if self.log is not None:
            try:
                return self.log.gone(spans, reason)
            except StoreError as error:
                self.detach_or_refuse(error)
        return None

    def returned_runs(self) -> Iterator[tuple[Run, int]]:
        """All messages that left the row and nobody holds, each run with the age at which it is due; 0: it
        is not delayed. Of jobs those that are aside, or dead. Ask for them in one turn."""
        for _, run in self.ready.requeued:
            yield run, 0
        for aside in self.aside:
            for run in aside:
                yield run, 0
        if self.expiry is not None:
            yield from self.expiry.runs()

    # -- time

    def wake_by(self, age_ms: int) -> None:
        """Have `expire` called at that age or earlier."""
        self.engine.times.wake_by(self, age_ms)

    def expire(self, now: float) -> None:
        """Called by the timers: something is due."""
        if self.deleted:
            return
        if self.log is not None:
            self.log.flush_notes()
        if self.deadlines is not None:
            self.deadlines.on_time(int(now))
        if self.schedules.due:
            self.schedules.on_time()
        if self.jobs is not None:
            self.jobs.on_time(int(now))
        if self.expiry is not None:
            self.expiry.on_time(int(now))
        elif self.line:
            self.dispatch()

    # -- the disk

    def detach_or_refuse(self, error: StoreError) -> None:
        """The store accepts nothing. Raises Refusal, unless the queue may go on in memory."""
        if not (isinstance(error, StoreReadOnly) and self.engine.best_effort):
            raise refusal_for(error) from None
        self.detach(error)

    def detach(self, error: StoreError) -> None:
        """Go on in memory."""
        if self.log is not None:
            self.log.detach()
            self.log = None
        self.engine.warn_memory_only(error)

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        cold, engine = self.cold, self.engine
        assert cold is not None
        for _, offset, first, bodies, size, _ in arrivals:
            if first >= JOB_FIRST:
                assert self.jobs is not None
                self.jobs.arrived(first, bodies, offset)
                continue
            if self.loaded_end >= self.end:  # all of the row is in memory
                if self.head == self.end:
                    cold.positions.clear()
                    cold.positions.append((first, offset))
                else:
                    cold.found_at(first, offset)
                if self.may_load_more:
                    self.load(bodies, first, size)
                else:
                    cold.offset = offset
            self.end = first + len(bodies)
        if self.expiry is not None:
            self.expiry.row_grew()
        if self.line:
            # An answer that waits for the bucket, too, goes out much later than what is delivered now.
            engine.resolving = None if cold.log.mode.shipped else arrivals[-1][-1]
            self.dispatch()
            engine.resolving = None

    def refused(self, arrivals: Sequence[Arrival], durable: int, leaving: Undoing) -> None:
        engine = self.engine
        if engine.memory_only:
            self.detach(engine.disk_failed or StoreReadOnly("the disk has failed"))
            for _, _, first, bodies, size, _ in arrivals:
                if first < JOB_FIRST:
                    self.make_visible(bodies, size)
                elif self.jobs is not None:
                    self.jobs.arrived(first, bodies, NO_RECORD)
        else:
            for _, _, first, bodies, _, _ in reversed(arrivals[durable:]):
                engine.counts.produced -= len(bodies)
                if first >= JOB_FIRST:
                    assert self.jobs is not None
                    self.jobs.refused(first, bodies)
                    self.depth -= len(bodies)
                    continue
                self.tail = first
                if self.expiry is not None:
                    self.expiry.undo_produced(self.tail)
                self.depth -= len(bodies)
            leaving.undo()
            if durable:
                self.arrived(arrivals[:durable])
        if self.line:
            self.dispatch()

    def row_start(self) -> int | None:
        return self.cold.row_start() if self.cold is not None and self.head < self.end else None

    def snapshot_state(self) -> Mapping[str, Any]:
        no_times = {"expired": 0, "released": 0, "lives": [], "delays": []}
        times = self.expiry.state if self.expiry is not None else no_times
        jobs: dict[str, Any] = {}
        if self.jobs is not None:
            jobs = {"jobs": self.jobs.tail, "job_bytes": int(self.jobs.record_bytes)}
        if self.schedules.due:
            jobs["scheduled"] = self.schedules.done
        return {"head": self.head, "tail": self.tail, "home": 0, **times, **jobs}

    def older_than_row(self) -> Iterable[tuple[Run, int]]:
        # No list of pairs: 50,000 new ones at once have the garbage collector look at all there is.
        runs = chain(self.returned_runs(), zip(self.held_runs(), repeat(0), strict=False))
        return runs if self.jobs is None else filter(_is_of_row, runs)

    def held_runs(self) -> list[Run]:
        """All its messages that are held, or on their way back."""
        engine = self.engine
        held = [
            run
            for consumer in engine.consumers.values()
            for _, queue, run in consumer.unacked.runs.values()
            if queue is self
        ]
        return held + [run for returning in engine.returning.values() for run in returning.get(self, ())]

    def append_snapshot(self, data: bytes, count: int, offset: int) -> Ticket:
        engine = self.engine
        assert self.log is not None
        row = engine.table.put_record(self.name, engine.row(self, snapshot=offset))
        _, ticket = engine.store.append_all([(self.log.log, data, count), row], reserved=True)
        engine.counts.snapshots += 1
        return ticket


class ColdRow(ColdReader):
    """The cold part of a queue's row: messages in the log and not in memory, read back in order.

    The front of the row is *hot*, in memory. The rest is read back in batches when its turn comes, skipping
    messages that have left. So a deep queue costs no memory per message. `positions` tell where in the log
    the row is: one entry every few dozen KiB. Jobs are cold by themselves (`dms.cold_jobs`), and are read
    back in any order.

    If the log is damaged, what cannot be read is skipped, and a consumer that asks is told once (`teller`).
    """

    teller: LossTeller

    def __init__(self, queue: Queue, log: Log) -> None:
        super().__init__(log, LossTeller(queue, log))
        self._queue = queue
        self.positions: deque[tuple[int, int]] = deque()
        """(sequence, offset of its record) of messages of the row, from its head on."""
        self.waiting: list[tuple[Sequence[bytes], int]] = []
        """Messages that came after the disk failed: they wait until the cold ones before them are read back.
        """

    # -- where the row is

    def found_at(self, first: int, offset: int) -> None:
        """Messages of the row, from `first` on, begin at this offset."""
        if not self.positions or offset - self.positions[-1][1] >= POSITION_BYTES:
            self.positions.append((first, offset))

    def row_start(self) -> int:
        """No message of the row, which is not empty, is below this offset."""
        positions, head = self.positions, self._queue.head
        while len(positions) > 1 and positions[1][0] <= head:
            positions.popleft()
        return positions[0][1] if positions else self.log.first

    def begin_at(self, first: int, offset: int) -> None:
        """All of the row is cold, from that message on, whose record is there. What is being read is not
        wanted."""
        self.positions = deque([(first, offset)])
        self.offset, self._fetching = offset, None

    # -- reading back

    def fetch(self) -> None:
        """Read more of the row into memory, maybe at once; the queue dispatches when it is there."""
        if not (self._fetching or self.teller.error or self._queue.deleted):
            self._queue.engine.counts.fetches += 1
            self._read_on(FETCH_BYTES)

    def _on_read(self) -> None:
        if self._queue.line and not self._queue.deleted:
            self._queue.dispatch()

    def _takes_more(self, data: bytes | Lost) -> bool:
        """Process what was read; whether more must be read."""
        queue = self._queue
        if queue.deleted:
            return False
        if isinstance(data, Lost):
            self.offset = data.end
            self.teller.lose(data)
            return queue.is_cold and not queue.ready.loaded
        if not data and queue.is_cold and not queue.ready.loaded:  # the newest of the row are lost
            self._skip_lost(queue.end - queue.head)
        try:
            self._take_in(data)
        except (NotOurs, ValueError, KeyError) as error:
            return self._fails(StoreError(f"a record that cannot be read: {error}"))
        while self.waiting and not queue.is_cold:
            waiting, self.waiting = self.waiting, []
            for bodies, size in waiting:
                queue.make_visible(bodies, size)
        if queue.expiry is not None and data:
            queue.expiry.row_grew()
            if queue.expiry.head_expired:  # it reads on in its next slice
                return False
        return queue.is_cold and not queue.ready.loaded and bool(data)

    def _skip_lost(self, count: int) -> None:
        """The first messages of the row, none of them in memory, are lost."""
        queue = self._queue
        queue.head += count
        queue.depth -= count
        if queue.expiry is not None:
            queue.expiry.row_moved()

    def _take_in(self, data: bytes) -> None:
        queue, start = self._queue, self.offset
        at = 0
        for record in records.unpack(data):
            loaded_end = queue.loaded_end
            if (
                record.kind in (RecordKind.ENQUEUED, RecordKind.LETTERS)
                and record.seq + record.entries > loaded_end
            ):
                if record.seq > loaded_end:  # what is between is lost
                    if queue.ready.loaded:  # those before it go first
                        self.offset = start + at
                        return
                    self._skip_lost(record.seq - loaded_end)
                bodies = records.messages_in(data, record)[max(loaded_end - record.seq, 0) :]
                if not queue.ready.loaded:
                    self.positions.clear()
                self.found_at(record.seq, start + at)
                queue.load(bodies, max(record.seq, loaded_end), bodies_bytes(bodies))
            at = record.end
        self.offset = start + len(data)


class LossTeller(DamageTeller):
    """Says what of one queue's log cannot be read: to who is in line, or else to the next that asks."""

    def __init__(self, queue: Queue, log: Log) -> None:
        super().__init__(queue.engine.times.timers)
        self._queue = queue
        self._log = log
        self._lost: list[Lost] = []
        self.untold: StoreError | None = None
        """What the next consumer that asks is told of damage."""

    @property
    def named(self) -> tuple[structlog.stdlib.BoundLogger, str]:
        return logger, self._queue.text

    def lose(self, *lost: Lost) -> None:
        queue, known = self._queue, self._lost
        new = [
            each for each in lost if not any(one.offset < each.end and each.offset < one.end for one in known)
        ]
        if not new:
            return
        known += new
        logger.error(
            "a queue's log is damaged: messages there are lost, or come again that had gone; the others are "
            "served; look at the disk",
            queue=queue.text,
            path=self._log.file.path,
            **describe_lost(new),
        )
        queue.engine.counts.damaged_ranges += len(new)
        self.untold = StoreError(
            f"messages of {queue.text} are lost to damage of its log; ask again for the others"
        )
        if queue.line:
            queue.end_credits(self.tell())

    def tell(self) -> Refusal:
        """What a consumer that asks is told: of damage once, and else while nothing is read."""
        error, self.untold = self.untold or self.error, None
        assert error is not None
        return refusal_for(error)

    def refuse(self, error: StoreError) -> None:
        self._queue.engine.counts.failed_reads += 1
        self._queue.end_credits(refusal_for(error))

    def read_again(self) -> None:
        if not self._queue.deleted:
            self._queue.wake_by(self._queue.engine.times.now_ms())


class Engine:
    """A DMS broker without sockets. Without a `namespace` everything is kept in memory."""

    def __init__(
        self,
        settings: DmsSettings,
        log: structlog.stdlib.BoundLogger,
        times: Times,
        *,
        store: Store | None = None,
        namespace: Namespace | None = None,
        table: Table | None = None,
        budget: Account | None = None,
    ) -> None:
        budget = budget or unbounded()
        self.messages = budget.account("messages")
        """Memory of messages that no consumer holds."""
        self.unacked = self.messages.account("unacked", budget.limit_bytes // 2)
        """Memory of unacknowledged deliveries, at most half of all. If it is full CONSUMEs are refused; ACKs
        never."""
        self.memory = MessageMemory(self.messages, self.unacked)
        self.queue_memory = budget.account("names")
        self._queues_of_users, self._clients_of_users = budget.new_shares(), budget.new_shares()
        self.credits = budget.account("connections").account("credits", budget.limit_bytes // 4)
        """Memory of waiting CONSUMEs: at most a quarter of all, because deliveries need room too."""
        self._shared_bytes = 0
        """Memory of waiting messages when each owner's part of it was last added up."""
        self.settings = settings
        self.log = log
        self._store = store
        self.durable = store if namespace is not None else None
        """The store whose congestion sessions must follow."""
        self._namespace = namespace
        self._table = table
        self.times = times
        self.long_work = LongWork(times.timers.set_now, _report_crash)
        self.upkeep = LongWork(times.timers.set_now, _report_upkeep)
        """Snapshots and copies: nobody waits for them, and with a million jobs they take seconds."""
        self.counts = Counts()
        self.waits = Waits(times.seconds)
        self.queues: dict[bytes, Queue] = {}
        self.consumers: dict[int, Consumer] = {}
        self._numbers = counter(1)
        self.returning: dict[int, dict[Queue, deque[Run]]] = {}
        """By the number of a lost consumer: its messages that are not returned yet."""
        self.draining = False
        self.resolving: Ticket | None = None
        """While one commit's messages are delivered: the ticket that resolves next, whose answers go out with
        them."""
        self.observers: list[Callable[[bytes, Sequence[bytes]], None]] = []
        """Called with messages that arrive in a queue, while somebody traces."""
        self.follows = settings.persist and store is not None and store.follows
        """Another server writes what is here, and gives it out."""
        self.best_effort = settings.disk_failed == "best-effort" and not self.follows
        self._warned_of_disk = False
        self._warned_held_back_ms = -HELD_BACK_WARNED_MS
        self._sources: Counter[str] = Counter()
        """How many queues have a queue of this name as their dead-letter queue."""
        self._asked: dict[Queue, Mapping[str, Any]] = {}
        self._names: list[bytes] | None = None
        self.delivery_ids = DeliveryIds(
            lambda: (ids for consumer in self.consumers.values() for ids, _, _ in consumer.unacked)
        )

    @property
    def persistent(self) -> bool:
        return self._namespace is not None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    @property
    def disk_failed(self) -> StoreError | None:
        return self.store.read_only if self.persistent else None

    @property
    def memory_only(self) -> bool:
        """Whether nothing is written any more, while requests are still accepted (best-effort)."""
        return self.best_effort and self.disk_failed is not None

    def commit_pending(self) -> None:
        """Commit what was changed outside of a turn."""
        if self._store is not None:
            self._store.commit_pending()

    def sync_budget(self) -> None:
        """Charge the accounts with the present memory of messages."""
        self.memory.sync()
        changed = abs(self.memory.loaded_bytes - self._shared_bytes)
        if changed * SHARES_STEPS >= self.messages.limit_bytes:
            self.share_memory()

    def share_memory(self) -> None:
        """Find the queues of owners whose queues together take more than their share of memory."""
        self._shared_bytes = self.memory.loaded_bytes
        taken: Counter[str] = Counter()
        for queue in self.queues.values():
            if queue.owner:
                taken[queue.owner] += queue.loaded_bytes
        if taken:
            messages = self.messages
            for queue in self.queues.values():
                owner = queue.owner
                queue.crowded = not messages.shares.fits(owner, messages.limit_bytes, taken[owner])

    # -- queues

    def find(self, name: str) -> Queue | None:
        return self.queues.get(name.encode())

    def create(self, name: str, asked: Mapping[str, Any], user: str = "") -> tuple[Queue, Ticket | None]:
        """Make a queue for a user. Raises Refusal."""
        self.check_new(name, asked, user)
        queue = self.adopt(name, asked)
        target = queue.options.dead_letter
        if target and self.find(target) is None:
            self.log.warning(
                "a new queue has no dead-letter queue: its dead messages are held back until that is made",
                queue=name,
                dead_letter=target,
            )
        self._queues_of_users.take(queue, user)
        queue.owner = self.messages.shares.bounded(user)
        self.sync_budget()  # where it is full now, dead letters that come go to the disk
        ticket = None

        def options_row(log: Log) -> list[tuple[Log, bytes, int]]:
            return [self.table.put_record(queue.name, _row(log, asked, snapshot=0))]

        if self.memory_only:
            self.count_not_durable()
        elif self._namespace is not None:
            try:
                mode = self.settings.for_queue(name).durability
                has_row = bool(asked) or queue.name in self.table
                log, ticket = self._namespace.create(name, mode, beside=options_row if has_row else None)
                queue.open_log(log)
            except StoreError as error:
                self.discard(queue)
                raise refusal_for(error) from None
            ticket.when_done(lambda ticket: self._undo_create(queue) if ticket.error is not None else None)
        queue.schedules.begin()
        return queue, ticket

    def check_new(self, name: str, asked: Mapping[str, Any], user: str = "") -> None:
        """Raises Refusal where this queue would be refused."""
        settings = self.settings
        if name.encode() in self.queues:
            raise Refusal(Status.QUEUE_EXISTS, f"{name} exists already")
        if len(self.queues) >= settings.queues_max:
            text = f"there are queues_max = {settings.queues_max} queues already"
            raise Refusal(Status.INTERNAL, text, limit="queues_max")
        if not self._queues_of_users.fits(user, settings.queues_max):
            raise Refusal(Status.INTERNAL, f"{user} has his share of queues_max", limit="queues_max")
        self.check_options(name, asked)
        if not self.queue_memory.fits(QUEUE_BYTES) and not self._makes_room(name.encode()):
            try:
                self.queue_memory.check(QUEUE_BYTES)
            except OverBudget as error:
                raise Refusal(Status.INTERNAL, str(error), limit="memory") from None

    def check_options(self, name: str, asked: Mapping[str, Any]) -> None:
        """Raises Refusal where a queue cannot have these options."""
        settings = self.settings
        if asked.get("depth", 0) > settings.depth_max:
            text = f"option depth is at most depth_max = {settings.depth_max}"
            raise Refusal(Status.PROTOCOL_ERROR, text, limit="depth_max")
        if wrong := Options.of(asked, settings.for_queue(name), name).contradiction:
            raise malformed(f"options: {wrong}")

    def _makes_room(self, name: bytes) -> bool:
        """Whether dead letters that wait for a queue of this name hold more memory than it will take.

        Where the budget is full it may be made all the same: they go to the disk, or to consumers at last.
        """
        text = name.decode()
        return (
            sum([queue.loaded_bytes for queue in self.parked if queue.options.dead_letter == text])
            > QUEUE_BYTES
        )

    def asked_of(self, queue: Queue) -> Mapping[str, Any]:
        """The options given when it was created; the settings fill in the others."""
        return self._asked.get(queue, {})

    def adopt(self, name: str, asked: Mapping[str, Any]) -> Queue:
        """Add a queue without a log. Charges the budget even above its limit: the queue may be durable
        already.
        """
        self.queue_memory.charge(QUEUE_BYTES)
        options = Options.of(asked, self.settings.for_queue(name), name)
        queue = Queue(self, name, options)
        if options.timed or options.max_deliveries or options.retry_ms:
            queue.expiry = Expiry(queue)
        self.queues[queue.name] = queue
        self._asked[queue] = asked
        self._sources[options.dead_letter] += 1
        self._name_added(queue.name)
        return queue

    def settings_changed(self, queue: Queue) -> None:
        """Apply the present settings to a queue, except where CREATE_QUEUE set the option."""
        options = Options.of(self._asked[queue], self.settings.for_queue(queue.text), queue.text)
        if options == queue.options:
            return
        if options.contradiction:
            self.log.warning(
                "a queue keeps its options: with the new settings they contradict; mend [dms.queues]",
                queue=queue.text,
                reason=options.contradiction,
            )
            return
        if queue.expiry is None and (options.timed or options.max_deliveries or options.retry_ms):
            queue.expiry = Expiry(queue)
        if queue.expiry is not None:
            queue.expiry.unpark()  # the dead-letter queue may be another one
        self._sources[queue.options.dead_letter] -= 1
        self._sources[options.dead_letter] += 1
        queue.options = options
        queue.bucket = TokenBucket(options.rate) if options.rate else None
        if options.ack_ms and queue.deadlines is None:
            queue.deadlines = AckDeadlines(queue)
        elif not options.ack_ms:
            queue.deadlines = None
        if queue.expiry is not None:
            queue.expiry.options_changed()
        if queue.jobs is not None:
            queue.jobs.options_changed()
        queue.schedules.begin()
        queue.dispatch()

    def discard(self, queue: Queue) -> None:
        """Stop serving a queue. While its log exists its name stays taken."""
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
            self.queue_memory.give(QUEUE_BYTES)
            self._queues_of_users.drop(queue)
        self._asked.pop(queue, None)
        name = queue.options.dead_letter
        self._sources[name] -= 1
        if not self._sources[name]:
            del self._sources[name]
        if self._names is not None and queue.name not in self.queues:
            place = bisect_left(self._names, queue.name)
            if self._names[place : place + 1] == [queue.name]:
                del self._names[place]
        queue.deleted = True
        queue.charge(-queue.loaded_bytes)  # what waits in it does not count any more
        if queue.jobs is not None:
            self.memory.jobs_bytes -= queue.jobs.memory_bytes
        self.memory.sync()
        self.times.timers.forget(queue)

    def delete(self, queue: Queue) -> Ticket | None:
        """Delete a queue: its credits end, and its unacknowledged deliveries become void. Raises Refusal."""
        ticket = None
        if self.memory_only:
            self.count_not_durable()
        elif queue.log is not None:
            assert self._namespace is not None
            try:
                row = [self.table.delete_record(queue.name)] if queue.name in self.table else []
                ticket = self._namespace.delete(queue.text, row)
            except StoreError as error:
                raise refusal_for(error) from None
        asked, loaded_bytes = self._asked[queue], queue.loaded_bytes
        self.discard(queue)
        queue.end_credits(deleted(queue))
        if sources := self._sources[queue.text]:
            self.log.warning(
                "a dead-letter queue was deleted: dead messages are held back until it is made again",
                dead_letter=queue.text,
                queues=sources,
            )

        def decided(ticket: Ticket) -> None:
            if ticket.error is not None and queue.name not in self.queues:  # revive it
                self.queues[queue.name], self._asked[queue] = queue, asked
                self._sources[queue.options.dead_letter] += 1
                self._name_added(queue.name)
                queue.deleted = False
                self.queue_memory.charge(QUEUE_BYTES)
                queue.charge(loaded_bytes)
                if queue.jobs is not None:
                    self.memory.jobs_bytes += queue.jobs.memory_bytes
                if queue.expiry is not None:
                    queue.expiry.arm()

        if ticket is not None:
            ticket.when_done(decided)
        return ticket

    def _undo_create(self, queue: Queue) -> None:
        """The disk refused its creation."""
        if self.memory_only and queue.log is not None:
            queue.detach(self.disk_failed or StoreReadOnly("the disk has failed"))
        elif not queue.deleted:
            self.discard(queue)
            queue.end_credits(deleted(queue))

    def _name_added(self, name: bytes) -> None:
        """Keep names sorted: sorting 50,000 for each listing takes 20 ms."""
        if self._names is not None:
            insort(self._names, name)

    def names(self, after: bytes | None, most: int) -> Sequence[bytes]:
        """The next `most` names behind `after`, sorted; fewer if those are the last."""
        names = self._names
        if names is None:
            names = self._names = sorted(self.queues)
        start = 0 if after is None else bisect_right(names, after)
        return names[start : start + most]

    def row(self, queue: Queue, *, snapshot: int) -> bytes:
        """A queue's row in the table."""
        assert queue.log is not None
        return _row(queue.log.log, self._asked[queue], snapshot, queue.paused)

    def _put_row(self, queue: Queue, asked: Mapping[str, Any], paused: bool) -> Ticket | None:
        """Write a queue's row in the table; None: it is in memory. Raises Refusal."""
        if queue.log is None:
            return None
        before = json.loads(self.table.get(queue.name) or b"{}")
        snapshot = before["snapshot"] if before.get("log") == queue.log.log.id else 0
        try:
            return self.table.put(queue.name, _row(queue.log.log, asked, snapshot, paused))
        except StoreError as error:
            raise refusal_for(error) from None

    def set_paused(self, queue: Queue, paused: bool) -> Ticket | None:
        """Pause or resume a queue. A queue in memory forgets it at exit. Raises Refusal."""
        if queue.paused == paused:
            return None
        ticket = self._put_row(queue, self._asked[queue], paused)
        pausing.switch(queue, paused, ticket)
        return ticket

    def change(self, queue: Queue, asked: Mapping[str, Any]) -> Ticket | None:
        """Give a queue other options than those that it was created with. Raises Refusal."""
        self.check_options(queue.text, asked)
        before = self._asked[queue]

        def use(options: Mapping[str, Any]) -> None:
            if not queue.deleted:
                self._asked[queue] = options
                self.settings_changed(queue)

        ticket = self._put_row(queue, asked, queue.paused)
        use(asked)
        if ticket is not None:
            ticket.when_done(lambda done: None if done.error is None else use(before))
        return ticket

    # -- dead letters

    def dead_obstacle(self, queue: Queue) -> str | None:
        """Why dead letters of `queue` have no place; None: they have one, or are dropped."""
        name, expiry = queue.options.dead_letter, queue.expiry
        if not name or expiry is None:
            return None
        target = self.find(name)
        if target is None:
            return f"there is no queue {name}"
        if not expiry.dead:
            return None
        return f"queue {name} is full" if target.room < 1 else "the disk refuses them"

    def tell_held_back(self, queue: Queue) -> None:
        """Log that a queue's dead messages have no place, once a minute for all queues."""
        now, name = self.times.now_ms(), queue.options.dead_letter
        if not name or now < self._warned_held_back_ms + HELD_BACK_WARNED_MS or queue.expiry is None:
            return
        self._warned_held_back_ms = now
        self.log.warning(
            "dead messages are held back: create their dead-letter queue, or make room in it",
            queue=queue.text,
            dead_letter=name,
            why=self.dead_obstacle(queue),
            dead=queue.expiry.dead,
            queues=sum(1 for _ in self.parked),
        )

    @property
    def parked(self) -> Iterator[Queue]:
        """Queues whose dead letters have no place."""
        named = (queue for queue in self.queues.values() if queue.options.dead_letter)
        return (queue for queue in named if queue.expiry is not None and queue.expiry.parked)

    def move(
        self,
        source: Queue,
        target: Queue,
        runs: Sequence[Run],
        letters: Sequence[bytes],
        reason: Reason,
        jobs: Sequence[tuple[JobHead, bytes]] = (),
    ) -> Ticket | None:
        """Move messages that are aside in one queue to the end of another; or nothing happens. The ticket: of
        their arrival there; None: done. Raises Refusal.

        `letters`: the messages of all `runs` by number, as they arrive; but for those that are `jobs` there.
        """
        size = bodies_bytes(letters)
        ticket = None
        forms = target.made_for_jobs().welcome(jobs, self.times.now_ms()) if jobs else []
        if source.log is None or target.log is None:
            if letters:
                ticket = target.produce(letters, size, moved=True)
            for form, (head, body) in zip(forms, jobs, strict=True):
                ticket = target.made_for_jobs().add(form, body, head.dedup, head.known_until, moved=True)
        else:
            first = target.tail
            moving, count = source.log.moving(runs, reason, target.text)
            record, jobs_at = target.log.arriving(letters, first) if letters else b"", 0
            if target.jobs is not None and forms:
                jobs_at = len(record)
                record += target.log.arriving_jobs(forms, target.jobs.tail)
            arriving = bool(letters) + len(forms)
            try:
                (_, offset), ticket = self.store.append_all(
                    [(source.log.log, moving, count), (target.log.log, record, arriving)], reserved=True
                )
            except StoreError as error:
                raise refusal_for(error) from None
            source.log.departed(partial(source.undo_departure, runs))
            if letters:
                target.log.appended(letters, size, offset, first, ticket)
                target.on_produced(len(letters))
            if target.jobs is not None and forms:
                size = len(record) - jobs_at
                target.log.appended(forms, size, offset + jobs_at, target.jobs.tail, ticket)
                for head, body in jobs:
                    target.jobs.came(body, head.dedup, head.known_until, ticket)
        source.drop(runs)
        return ticket

    # -- consumers

    def consumer(self, receiver: DeliveryReceiver, *, prefetches: bool = False) -> Consumer:
        """A consumer for a session, or a bridge; it is not admitted yet."""
        return Consumer(self, next(self._numbers), receiver, prefetches=prefetches)

    def admit(self, consumer: Consumer, user: str = "") -> bool:
        """Admit a consumer: it may hold messages. False: there are `clients_max` already, or the user's
        share of them."""
        most = self.settings.clients_max
        if len(self.consumers) >= most or not self._clients_of_users.fits(user, most):
            return False
        self.consumers[consumer.number] = consumer
        self._clients_of_users.take(consumer.number, user)
        consumer.user = self.unacked.shares.bounded(user)
        return True

    def ack(self, consumer: Consumer, ids: Sequence[bytes]) -> list[tuple[Sequence[bytes], Outcome]]:
        """ACKs, in their order, grouped by outcome. If an id is not held, returns [] and nothing happens."""
        deliveries = consumer.unacked.take(ids)
        if deliveries is None:
            return []
        if len(deliveries) == 1:
            return [(ids, self._ack(consumer, deliveries[0][1], deliveries))]
        outcomes: list[tuple[Sequence[bytes], Outcome]] = []
        at = 0
        for queue, group in groupby(deliveries, itemgetter(1)):
            of_queue = list(group)
            stop = at + sum([len(delivery[0]) for delivery in of_queue])
            outcomes.append((ids[at:stop], self._ack(consumer, queue, of_queue)))
            at = stop
        return outcomes

    def ack_each(self, consumer: Consumer, ids: Sequence[bytes]) -> list[tuple[Sequence[bytes], Outcome]]:
        """Acknowledge as `ack` does, but each by itself; an id that is not held is refused."""
        outcomes: list[tuple[Sequence[bytes], Outcome]] = []
        refused = not_held()
        for delivery_id in ids:
            outcome = self.ack(consumer, (delivery_id,))
            if outcome:
                outcomes += outcome
            elif outcomes and outcomes[-1][1] is refused:
                outcomes[-1] = (*outcomes[-1][0], delivery_id), refused
            else:
                outcomes.append(((delivery_id,), refused))
        return outcomes

    def _ack(self, consumer: Consumer, queue: Queue, deliveries: Sequence[Delivery[bytes, Queue]]) -> Outcome:
        """ACKs of one queue's messages, which are not in `unacked` any more."""
        if queue.deleted:
            runs = [run for _, _, run in deliveries]
            queue.release(runs)
            if consumer.user:
                consumer.gave(runs)
            return deleted(queue)
        try:
            return queue.ack(consumer, deliveries)
        except Refusal as refusal:
            consumer.unacked.put_back(deliveries)
            return refusal

    def gone(self, consumer: Consumer, untried: Callable[[bytes], bool] | None = None) -> None:
        """A consumer's connection is gone: end its credits, return its deliveries. May be called twice.

        `untried`: whether a delivery, by its id, does not count. None: all count.
        """
        self.consumers.pop(consumer.number, None)
        self._clients_of_users.drop(consumer.number)
        consumer.gone = True
        consumer.consume(None)
        consumer.forget_credits()
        self.release_consumer(consumer, untried)

    def release_consumer(self, consumer: Consumer, untried: Callable[[bytes], bool] | None = None) -> None:
        """Return all that it holds. Until then a message counts as held, in snapshots and exports too.

        Each queue delivers nothing until all of its messages are back.
        """
        held, consumer.unacked = consumer.unacked, Unacked()
        consumer.gave_all()
        oldest = min(held.runs, default=b"")
        by_queue: dict[Queue, deque[Run]] = {}
        for ids, queue, run in held:
            runs = by_queue.get(queue)
            if runs is None:
                runs = by_queue[queue] = deque()
                queue.await_returns()
            counts = "all" if consumer.prefetches else queue.options.loss_counts
            runs.extend(_less_untried(ids, run, _uncounted(counts, oldest, untried)))
        if by_queue:
            self.returning[consumer.number] = by_queue
            self.long_work.add(self._return_in_slices(consumer.number))

    def _return_in_slices(self, number: int) -> Iterator[None]:
        returning = self.returning[number]
        for queue in tuple(returning):
            runs = returning[queue]
            try:
                for batch in taken_out(runs.popleft, runs):
                    queue.requeue(batch, nacked=False)
                    yield
            except Exception as error:
                _report_crash(error)
            finally:
                del returning[queue]
                if not self.draining:  # whoever got them now would soon lose them, too
                    queue.all_returned()
        del self.returning[number]
        self.sync_budget()

    # -- the disk, and shutdown

    def count_not_durable(self, count: int = 1) -> None:
        """Best effort: count answered changes that the disk does not have."""
        self.counts.unkept += count
        if self.disk_failed is not None:
            self.warn_memory_only(self.disk_failed)

    def warn_memory_only(self, error: StoreError) -> None:
        """Log once that the disk has failed."""
        if not self._warned_of_disk:
            self._warned_of_disk = True
            self.log.warning(
                "the disk has failed: dms goes on in memory (best-effort), and what comes is gone at exit; "
                "put the disk right, then restart",
                reason=str(error),
            )

    def drain(self) -> None:
        """The server is stopping."""
        self.draining = True
        self.long_work.add(self._flush_notes())
        self.note_age()

    def _flush_notes(self) -> Iterator[None]:
        # By name: the garbage collector would walk 50,000 queues in a new container, three times.
        for names in batched(tuple(self.queues)):
            for name in names:
                queue = self.queues.get(name)
                if queue is not None and queue.log is not None:
                    queue.log.flush_notes()
            yield

    def note_age(self) -> None:
        """Store the engine's age, for times that outlive a restart."""
        if self.persistent and self.disk_failed is None and self.times.used:
            try:
                self.table.put(ENGINE_KEY, json.dumps({"age_ms": self.times.now_ms()}).encode())
            except StoreError:
                pass  # records also have it, if less exactly


def _is_of_row(entry: tuple[Run, int]) -> bool:
    return entry[0].first < JOB_FIRST


def no_memory() -> Refusal:
    return Refusal(Status.QUEUE_FULL, "the server has no memory for more messages", limit="memory")


def deleted(queue: Queue) -> Refusal:
    return Refusal(Status.QUEUE_NOT_FOUND, f"{queue.text} was deleted")


def not_held() -> Refusal:
    return malformed(NOT_HELD)


def _end_in_slices(line: deque[Credit], refusal: Refusal) -> Iterator[None]:
    for some in taken_out(line.popleft, line):
        for credit in some:
            if credit.left:
                credit.consumer.end(credit, refusal)
        if line:
            yield


def _report_crash(error: Exception) -> None:
    logger.error(
        "long work crashed: some messages of a lost connection stay held until a restart; report this",
        exc_info=error,
    )


def _report_upkeep(error: Exception) -> None:
    logger.error(
        "a snapshot of a queue crashed: its log grows until the next one; report this", exc_info=error
    )


def _row(log: Log, asked: Mapping[str, Any], snapshot: int, paused: bool = False) -> bytes:
    row = {"log": log.id, "options": asked, "snapshot": snapshot}
    return json.dumps({**row, "paused": True} if paused else row).encode()


def _uncounted(
    counts: LossCounts, oldest: bytes, untried: Callable[[bytes], bool] | None
) -> Callable[[bytes], bool] | None:
    """Whether a lost delivery, by its id, does not count. None: all count."""
    if counts == "none":
        return lambda _: True
    if counts == "all":
        return untried
    return lambda each: each != oldest or (untried is not None and untried(each))


def _less_untried(ids: Sequence[bytes], run: Run, untried: Callable[[bytes], bool] | None) -> list[Run]:
    """The messages of a delivered run; those that do not count have one delivery less."""
    if untried is None:
        return [run]
    parts = []
    for is_untried, part in split_by(run, map(untried, ids)):
        part.tries -= is_untried
        parts.append(part)
    return parts


def _held_bytes(runs: Iterable[Run]) -> int:
    return sum([bodies_bytes(run.bodies) + len(run.bodies) * (MESSAGE_BYTES + HELD_BYTES) for run in runs])
