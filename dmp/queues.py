"""A queue: messages that come, wait in order, and leave; who takes them; when they, or it, must go.

A message is in one of three places. *Unsynced*: its record waits for the disk, and nobody may see it yet.
*Ready*. *Unacknowledged*: a consumer has it, and has neither acknowledged nor rejected it. Non-persistent
messages that come behind unsynced ones wait with them, so that a producer's order holds.

Of a durable queue only the front need be in memory. When all queues together hold `hot_bytes`, what comes to
one whose front waits already is *cold*. It stays in the log alone, and is read back when the front has gone.
What is not persistent then goes to the log too, to keep its place.

While a feed (the reading end of a DMP connection) is attached it gets everything; else the consumers do
(`takers`), as far as each one's credit and outbox allow. `dispatch` gives out what can be given. It is called
whenever something has changed that allows more: a message, credit, room in an outbox.

The queue knows no connection: it calls a `Taker`, and its broker through `QueueContext`. All is synchronous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import attrs

from dmp.arrivals import Arrivals
from dmp.bodies import Bodies
from dmp.capacity import Capacity
from dmp.cold_records import ColdRecords
from dmp.declarations import Binding, QueueKind
from dmp.later import Later
from dmp.lives import Lives
from dmp.memory import Memory
from dmp.message import KEY, Head
from dmp.metrics import Counts
from dmp.once import Once
from dmp.queue_log import Cold, QueueLog
from dmp.row import Row
from dmp.settings import DmpSettings
from dmp.takers import FeedTaker, Taker, Takers, share_out
from dmp.tries import Tries
from shared.access import ANONYMOUS
from shared.errors import StoreError
from shared.queues.cold import is_cold
from shared.queues.core import SLACK_BYTES, RunQueue
from shared.queues.keys import Keys
from shared.queues.priorities import Priorities
from shared.queues.runs import Run, join
from shared.queues.waiting import Waiting
from shared.rates import TokenBucket
from shared.storage.lost import Lost
from shared.turns import ITEMS, LongWork, Turn, batched, taken_out

if TYPE_CHECKING:
    import structlog

    from shared.queues.timers import Timers
    from shared.queues.waits import Waits
    from shared.storage.store import Ticket


class QueueContext(Protocol):
    """What a queue asks of its broker."""

    bodies: Bodies
    counts: Counts
    draining: bool
    log: structlog.stdlib.BoundLogger
    memory: Memory
    settings: DmpSettings
    timers: Timers
    waits: Waits
    work: LongWork

    def dead_letter(self, queue: Queue, runs: list[Run], reason: str) -> None:
        """Pass on messages that left the queue by `reason`, where it has a dead-letter exchange."""

    def log_changed(self, log: QueueLog) -> None:
        """Something was taken from a durable queue: have it flushed at the end of the round."""

    def queue_unused(self, queue: Queue) -> None:
        """Nobody has used the queue for as long as its arguments allow: delete it."""

    def report_crash(self, error: Exception) -> None:
        """The queue's own code has failed where nobody waits for it: on the time of the store."""

    def queue_lost(self, name: bytes, lost: Lost) -> None:
        """What the queue had on disk alone is damaged there, and passed over."""

    def wall_seconds(self) -> float:
        """The wall clock: Unix seconds."""

    def queue_above_warning(self, queue: Queue) -> None:
        """More messages are ready than the settings find normal."""


SORTED_MOST = 4096
"""Numbers of messages that are put in order in one stretch: a millisecond. 200,000 at once took 42."""


@attrs.define(eq=False)
class Application:
    """An application: its principal, which holds it at first, and the DMP connections that it leased.

    The queues that are exclusive to it live as long as one of these. `ended` is called when the last has
    let go. `user`: the name it logged in by; `account`: the user whose rules count; `revoked`: he is gone, or
    has another password, and what was leased to him is worth nothing.
    """

    user: str
    _ended: Callable[[Application], None]
    account: str = ANONYMOUS
    revoked: bool = False
    queues: dict[Queue, None] = attrs.Factory(dict)
    _holds: int = 1

    @property
    def alive(self) -> bool:
        return self._holds > 0

    def hold(self) -> None:
        """One more connection is the application's. It must be alive."""
        assert self._holds, "an application was held after its end"
        self._holds += 1

    def release(self) -> None:
        assert self._holds, "an application was released too often"
        self._holds -= 1
        if not self._holds:
            self._ended(self)


@attrs.define(eq=False, repr=False)
class Queue(RunQueue):
    """One queue. `owner`: the application that it is exclusive to."""

    memory: Memory = attrs.field(init=False)
    name: bytes
    kind: QueueKind
    _context: QueueContext
    owner: Application | None = None
    _limited: bool = True  # by the settings, as all queues that clients declare
    capacity: Capacity = attrs.field(init=False)
    log: QueueLog | None = attrs.field(default=None, init=False)  # where it is durable
    row: Row = attrs.field(init=False)
    arrivals: Arrivals = attrs.field(factory=Arrivals, init=False)
    later: Later = attrs.field(init=False)
    lives: Lives = attrs.field(init=False)
    throttle: TokenBucket | None = attrs.field(init=False)
    """How many messages the queue may give out now (`x-rate`)."""
    once: Once | None = attrs.field(default=None, init=False)
    takers: Takers = attrs.field(init=False)
    adopted: bool = attrs.field(default=False, init=False)
    """The queue's definition was lost: the next declaration is its new one."""
    lost: bool = attrs.field(default=False, init=False)
    """Some of the queue's messages cannot be read, and nobody has purged it since: it is not called empty."""
    bound: set[Binding] = attrs.field(factory=set, init=False)
    memory_bytes: int = attrs.field(default=0, init=False)
    """What the budget is charged for it, without messages and bindings."""
    feed_lease: object | None = attrs.field(default=None, init=False)
    """Whatever the leases keep here while the queue is leased as a feed; None: it is not."""
    used: float = attrs.field(init=False)
    numbered: int = attrs.field(default=0, init=False)  # how many ever came: the number of the next message
    tries: Tries | None = attrs.field(init=False)
    """How failed tries are counted; None: they are not."""
    _unblocked: bool = attrs.field(default=False, init=False)  # messages of some key may be given out again
    _goes_on: bool = attrs.field(default=False, init=False)  # in the next turn, more is given out, or goes

    def __attrs_post_init__(self) -> None:
        arguments = self.kind.arguments
        self.memory = self._context.memory
        if arguments.keyed:
            fair, priority_max = arguments.fair, arguments.priority_max
            self.ready = Keys(arguments.per_key or 0, fair=fair, priority_max=priority_max)
        elif arguments.priority_max:
            self.ready = Priorities(arguments.priority_max)
        self.later = Later(self, self._context)
        self.row = Row(self.memory, self.later.read_back, self.ready, arguments.key_header or KEY)
        self.takers = Takers(arguments.single_active)
        self.capacity = Capacity(self, self._limited)
        self.lives = Lives(self.row, self._context.timers.now, self.arm, self._expired)
        self.lives.define(arguments.ttl_ms)
        if arguments.once:
            window_ms = arguments.once_ms or 0
            self.once = Once(self.name, window_ms, lambda: self.later.now_ms, self.charge)
        self.throttle = None if arguments.rate is None else TokenBucket(arguments.rate)
        self.tries = Tries.asked_for(arguments)
        self.capacity.changed(self._context.settings)
        self.used = self._context.timers.now()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} {self.depth} ready, {self.held} unacknowledged>"

    @property
    def durable(self) -> bool:
        """Whether it outlives the server: not where it is exclusive, whatever was declared."""
        return self.log is not None

    @property
    def depth(self) -> int:
        """How many are ready."""
        depth = len(self.row)
        return depth if not self.aside else depth + sum([len(run) for runs in self.aside for run in runs])

    @property
    def empty(self) -> bool:
        """Whether nothing stands before a message that would come now."""
        row = self.row
        return not (self.ready.count or self.arrivals.waiting or self.stops or row.has_cold)

    def keep_in(self, log: QueueLog) -> None:
        """The queue is durable. (What has priorities or keys is all in memory: its front is wherever the next
        one comes. So is what is taken once: each of its keys is to be known.)"""

        def rolled_back(_: object) -> None:
            if not self.deleted and log.rolled_back():
                self._context.log_changed(log)

        self.log = self.row.log = log
        log.waiting.ahead_ms = self.later.ahead
        log.arriving_from = self.arrivals.first_offset
        log.log.rolled_back = rolled_back
        if self.row.ready.in_order and self.once is None:
            self.row.cold = Cold(log.log, self.later, log, self)

    # -- in

    def publish(self, head: Head, bodies: Sequence[bytes]) -> None:
        """A run of messages that need no log. Those of large bodies wait until these are written.

        A run that finds the queue empty, and one consumer that acknowledges nothing, is passed on without
        being counted here.
        """
        if self.deleted:
            return
        if head.noted.headers is not None:
            head = self.later.in_time(head)
        if head.large:
            self.admit(self.number(head, bodies), self._context.bodies.unwritten(bodies[-1]))
            return
        if self.empty:
            # Past the row, and without a `Run`: `brokers bench dmp --modes basic --clients 10` takes 4.4 us
            # of the server's processor a message, and 6.2 by way of the row; a `Run` alone costs 8 %.
            taker: Taker | None = self.takers.feed
            if taker is None and self.takers.count == 1:
                (taker,) = self.takers.active
            at_once = head.ttl_ms != 0 and not head.due_ms and self.throttle is None and self.once is None
            if taker is not None and taker.no_ack and at_once:
                try:
                    count, room_bytes = taker.room()
                    if count >= len(bodies) and room_bytes >= head.body_bytes * (len(bodies) - 1):
                        self.numbered += len(bodies)
                        taker.deliver_run(head, bodies)
                        self._context.counts.delivered += len(bodies)
                        return
                except Exception as error:
                    taker.fail(error)
        self.admit(self.number(head, bodies), None)

    def number(self, head: Head, bodies: Sequence[bytes], first: int | None = None) -> Run:
        """Messages of this queue, not yet in it; `first`: where these had numbers before."""
        if first is None:
            first = self.numbered
            self.numbered += len(bodies)
        if head.noted.headers is not None:
            head = self.later.in_time(head)
        run = Run(head, [*bodies], first)
        if self.once is not None:
            self.once.came(run)
            self.arm()
        if self.lives.some or head.ttl_ms is not None:
            run.expires = self.lives.end(head, self._context.timers.now())
            if self.log is not None and head.persistent and not head.came_ms and run.expires < math.inf:
                run.head = head.dated(self.later.now_ms)
        return run

    def admit(self, run: Run, ticket: Ticket | None) -> None:
        """Put in a run: it is ready when the ticket is done, and all before it is ready."""
        context, head = self._context, run.head
        if self.tick != context.waits.tick and self.row.ready.in_order:
            # Not with priorities: what has them goes in another order.
            context.waits.take_sample(self, run.first)
        size = head.cost_bytes * len(run.bodies)
        memory = self.memory
        self.charge(size)
        if head.payer is not None:
            head.payer.add(size)
        if memory.loaded_bytes - memory.loaded_charged >= SLACK_BYTES:
            memory.sync()
        if head.large:
            for body in run.bodies:
                context.bodies.hold(body)
        if ticket is None and not self.arrivals.waiting:
            self._make_ready((run,))
        elif self.arrivals.add(run, ticket) and ticket is not None:
            ticket.when_done(self._synced)

    def recovered(self, runs: Sequence[Run], following: int, *, lost: bool) -> None:
        """What the log held, as `load` has found it. Nothing leaves before `dispatch_new` is called."""
        self.lives.start(self.later.now_ms)
        self.numbered = following
        self.lost = lost
        for run in runs:
            run.expires = self.lives.end_of_found(run.head)
            if self.once is not None:
                self.once.found(run)
        self.charge_runs(runs)
        self.memory.changed()
        self.row.load(self.later.keep_those(runs))
        if self.log is not None:
            self.later.recovered(self.log)
        self.arm()
        self._context.counts.recovered += len(self.row)

    def _synced(self, _: Ticket) -> None:
        """The disk has, or refuses, what stands first. Nobody waits for this call, so nothing is raised."""
        try:
            for ticket, runs in self.arrivals.synced():
                if ticket is not None and ticket.error is not None:
                    if self.once is not None:
                        self.once.refused(runs)
                    self.forget(runs, taken=False)
                else:
                    self._make_ready(runs)
        except Exception as error:
            self._context.report_crash(error)
        self.arrivals.tell_synced()

    def _make_ready(self, runs: Iterable[Run]) -> None:
        if self.lives.some and self.row.ready:
            self.lives.expire()
        may_cool = not self.arrivals.unlogged
        for run in runs:
            if run.head.due_ms and self.later.stands_apart(run):
                if self.log is not None:
                    self.log.keep(run)
                self.later.put(run)
                self.arm()
            elif not self.row.add(run, may_cool=may_cool):
                _leave_memory(self, (run,))
        self.dispatch_new()

    def dispatch_new(self) -> None:
        """More is ready, or cold: give out what can be given."""
        if not self._goes_on:
            self._dispatch_ready(check=self.lives.behind)
        if self.lives.some:  # one with no time to live at all is given to who waits for it, or to nobody
            self.lives.expire()
        self.trim()

    def trim(self) -> None:
        """What is ready and too much goes, the oldest first; very much in turns. You have dispatched."""
        row = self.row
        if self.stops and self.returning:
            return
        arguments = self.kind.arguments
        if (arguments.messages_max is not None or arguments.bytes_max is not None) and not arguments.rejects:
            over: list[Run] = []
            turn = Turn()
            while (surplus := self.capacity.surplus()) > 0:
                run = row.take_surplus(min(surplus, ITEMS))
                if run is None:
                    break
                join(over, run)
                if turn.over_now():
                    self._goes_on = True
                    self.arm()
                    break
            if over:
                self._context.counts.overflowed += _messages_in(over)
                self._context.dead_letter(self, over, "maxlen")
                if self.lives.some:
                    self.arm()
        if self.capacity.passes_warning():
            self._context.queue_above_warning(self)

    # -- what is cold

    @property
    def cannot_give_yet(self) -> bool:
        """Something is ready that cannot be given out yet.

        It is on its way from the log, or stands behind expired messages that have not gone yet, or behind
        what comes back.
        """
        row = self.row
        return self.returning or row.is_loading or (self.lives.behind and row.ready.count > 0)

    @property
    def damaged(self) -> bool:
        """Whether nothing can be given out though something is left."""
        row = self.row
        return (not row.ready.count or row.next_is_cold) and (self.lost or self.later.error is not None)

    def loaded(self, runs: list[Run]) -> None:
        """`Cold`'s: they are in memory now."""
        for run in runs:
            if run.tries:
                run.expires = self.lives.end_of_found(run.head)
        self.charge_runs(runs)
        self.memory.changed()
        self.row.load(self.later.keep_those(runs))
        if self.lives.some or self.later.count:
            self.arm()

    def on_cold_read(self) -> None:
        """`Cold`'s: what was on its way is there, and nobody waits for this call."""
        try:
            self.dispatch()
            self.trim()
        except Exception as error:
            self._context.report_crash(error)
        self.row.tell_loaded()

    # -- out

    def dispatch(self) -> None:
        """Give out what can be given: something has changed that allows more.

        Of very many some at once; the rest follows in the next turns, whoever calls meanwhile.
        """
        self.takers.blocked = self._unblocked = False
        if self._goes_on:
            return
        if self.lives.some:
            self.lives.expire()
        self._dispatch_ready(check=self.lives.some)

    def _dispatch_ready(self, *, check: bool = False) -> None:
        """`check`: nobody is given what has expired; one may have done so behind another that lives on."""
        if self.stops:
            return
        takers, row, throttle = self.takers, self.row, self.throttle
        turn: Turn | None = None
        while (depth := len(row)) and not (check and self.lives.behind):
            if throttle is not None:
                depth = min(depth, throttle.allowance(self._context.timers.now()))
            shares = takers.shares(depth) if depth else []
            if not shares:
                break
            if turn is None:
                turn = Turn()
            elif turn.over(ITEMS):
                self._goes_on = True
                break
            now = self._context.timers.now() if check else -math.inf
            given = share_out(row, shares, depth, now) if row.load_front() else 0
            if not given:
                front = row.front()
                if front is None or front.expires > now:
                    break
                self.lives.expire()
                continue
            if throttle is not None:
                throttle.take(given)
            takers.given(shares, given)
            for taker, runs, _, _ in shares:
                if runs and runs[-1].end > self.mark:
                    self._context.waits.count_sample(self)
                if runs:
                    self._hand_over(taker, runs)
        if (turn is not None and (self.lives.some or self._goes_on)) or throttle is not None:
            self.arm()

    def _expired(self, runs: list[Run]) -> None:
        self._context.counts.expired += _messages_in(runs)
        self._context.dead_letter(self, runs, "expired")

    def _hand_over(self, taker: Taker, runs: list[Run]) -> None:
        if taker is self.takers.feed:  # which cannot carry large bodies: such messages die
            large = [run for run in runs if run.head.large]
            if large:
                self._context.counts.too_large_for_feeds += _messages_in(large)
                self._context.dead_letter(self, large, "maxlen")
                runs = [run for run in runs if not run.head.large]
        if not runs:
            return
        self._context.counts.delivered += _messages_in(runs)
        if not taker.no_ack:
            for run in runs:
                self.hold(run)
        try:
            taker.deliver(runs)
        except Exception as error:
            taker.fail(error)
        if taker.no_ack:
            self.leave(runs)

    def get(self, no_ack: bool) -> Run | None:
        """The next message, as a run, for one that asks for just that; None where nothing is ready."""
        self.used_now()
        if self.lives.some:
            self.lives.expire()
        if self.takers.feed is not None or self.stops or not self.row.load_front() or self.lives.behind:
            return None
        if self.throttle is not None:
            if self.throttle.allowance(self._context.timers.now()) < 1:
                return None
            self.throttle.take(1)
        run = self.row.take_run(1)
        if self.lives.some:
            self.arm()
        if no_ack:
            self.leave((run,))
        else:
            self.hold(run)
        return run

    def take_front(self, most: int) -> list[Run]:
        """Up to so many of the next ones, out of what is ready: each comes back by `return_front`, or leaves.
        None where the next ones are still on their way (`Row.when_loaded`), or there are none."""
        if not self.row.load_front():
            return []
        runs = self.row.take(most)
        if self.lives.some:
            self.arm()
        return runs

    def return_front(self, runs: Sequence[Run], *, taken: bool = True) -> None:
        """The messages return to their places, but those whose bodies cannot be read: these are lost, and
        their bodies are not deleted. The caller dispatches. `taken`: they were taken from here."""
        if self.deleted:
            self.forget(runs)
            return
        if taken:
            self.row.release(runs)
        for run in runs:
            for damaged, part in self._context.bodies.damaged_in(run) if run.head.large else ((False, run),):
                if damaged:
                    self.lost = True
                    _leave_memory(self, (part,))
                else:
                    self.row.put_back((part,))
        if self.lives.some:
            self.arm()

    def put_off(self, run: Run) -> None:
        """A message that was taken out waits for the time that its head has, or is ready."""
        if self.log is not None:
            self.log.note_tried((run,))
            self._context.log_changed(self.log)
        if is_cold(run) or self.later.waits(run):
            self.later.put(run)
            self.row.waits((run,))
        else:
            self._become_ready((run,), self._context.timers.now())
        self.arm()

    def leave(self, runs: Sequence[Run], *, taken: bool = True) -> None:
        """The messages leave the queue, all that counts them, and its log. `taken`: as of `forget`."""
        if runs:
            self.forget(runs, taken=taken)
            if self.log is not None:
                self.log.take(runs)
                self._context.log_changed(self.log)

    def forget(self, runs: Sequence[Run], *, taken: bool = True) -> None:
        """The messages, which nobody holds, no longer take memory, and let go of large bodies. The caller
        sees to their records. `taken`: they were taken out of what is ready."""
        self._context.bodies.drop_all(runs)
        _leave_memory(self, runs)
        if self.once is not None:
            self.once.left(runs)
        if taken and self.row.keys is not None:
            self.free_keys(runs)

    def free_keys(self, runs: Sequence[Run]) -> None:
        """Others of the messages' keys may be next: soon, since not everybody who calls may dispatch."""
        self.row.release(runs)
        if not (self._unblocked or self.deleted):
            self._unblocked = True
            self.arm()

    # -- what became of held ones

    def settle(self, runs: Sequence[Run]) -> None:
        """The messages are acknowledged."""
        self._context.counts.acknowledged += _messages_in(runs)
        if self.log is not None and not self.deleted:
            self.log.take(runs)
            self._context.log_changed(self.log)
        self._gone(runs)

    def settle_written(self, runs: Sequence[Run]) -> None:
        """The messages are acknowledged, and the record of that, if they have one, is written."""
        if self.log is not None:
            self.log.left(runs)
            if not self.deleted:
                self._context.log_changed(self.log)
        self._gone(runs)

    def _gone(self, runs: Sequence[Run]) -> None:
        """Held messages have left."""
        self._context.bodies.drop_all(runs)
        self.release(runs)
        self.memory.left(runs)
        if self.once is not None:
            self.once.left(runs)
        if self.row.keys is not None:
            self.free_keys(runs)

    def reject(self, runs: list[Run]) -> None:
        """The messages are rejected, and become dead letters."""
        self._context.counts.rejected += _messages_in(runs)
        if self.deleted:
            self._gone(runs)
            return
        self.release(runs)
        self.charge_runs(runs)
        self._context.dead_letter(self, runs, "rejected")

    def requeue(
        self,
        runs: Sequence[Run],
        *,
        seen: bool = True,
        failed: bool = True,
        oldest: Container[Run] | None = None,
    ) -> None:
        """The messages return to their old places, marked as redelivered where somebody may have seen them.
        That they were to leave may be in a record that the disk has refused. The caller dispatches.

        `failed`: that counts as a failed try, where the queue counts these. `oldest`: of those that channels
        had at their end, which they held longest; None: a consumer gives them back.
        """
        self._context.counts.requeued += _messages_in(runs)
        if self.log is not None:
            self.log.stay(runs)
        if self.deleted:
            self._gone(runs)
            return
        self.release(runs)
        self.charge_runs(runs)
        if self.tries is not None and seen and failed and not self._context.draining:
            now, later, dead = self.tries.give_back(
                runs, oldest, self.later.keep, self.later.now_ms, self.log
            )
            self.row.release(later)
            self.row.waits(later)
            if self.log is not None:
                self._context.log_changed(self.log)
            if dead:
                self._context.counts.gave_up += _messages_in(dead)
                self._context.dead_letter(self, dead, "delivery_limit")
            self.arm()
            runs = now
        for run in runs:
            run.tries += seen
        self.return_front(runs)

    def all_returned(self, count: int = 1) -> None:
        """One who called `await_returns` has had its messages requeued."""
        if self._context.draining:  # whoever got them now would soon lose them, too
            return
        super().all_returned(count)
        if not (self.returning or self.deleted):
            self.trim()
            self.row.tell_loaded()

    # -- who takes

    def add_consumer(self, consumer: Taker) -> None:
        self.takers.add(consumer)
        self.used_now()

    def remove_consumers(self, *consumers: Taker) -> None:
        self.takers.remove(consumers)
        self.used_now()
        if self.takers.single:
            self.dispatch()

    def set_feed(self, feed: FeedTaker | None) -> None:
        """From now on all messages go to this feed; None: to the consumers again."""
        if feed is None:
            self.takers.feed = None
        else:
            self.takers.attach(feed)
        self.used_now()
        self.dispatch()

    def used_now(self) -> None:
        """The queue is used now. To be declared again counts as use, too."""
        self.used = self._context.timers.now()
        if self.kind.arguments.expires_ms is not None:
            self.arm()

    def define(self, kind: QueueKind) -> None:
        """What it is was lost, and is known again, or it has other arguments. (Priorities, keys, and what is
        taken once hold from the next start on. Messages that are there keep their time to live.)"""
        self.kind = kind
        self.adopted = False
        self.capacity.changed(self._context.settings)
        self.takers.single = kind.arguments.single_active
        self.tries = Tries.asked_for(kind.arguments)
        self.throttle = None if kind.arguments.rate is None else TokenBucket(kind.arguments.rate)
        self.lives.define(kind.arguments.ttl_ms)
        self.arm()

    # -- time, and the end

    def expire(self, now: float) -> None:
        """The timers': something may be too old, or more is to be given out."""
        self._unblocked = False
        if self.once is not None:
            self.once.forget()
        due, self._goes_on = self.later.take_due()
        if due:
            self.row.waits_no_more(due)
            self._become_ready(due, now)
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.takers.in_use and self.used + expires_ms / 1000 <= now:
            self._context.queue_unused(self)
            return
        if self.lives.some:
            self.lives.expire()
        self._dispatch_ready(check=self.lives.some)
        self.trim()
        self.arm()
        if not self.lives.behind:
            self.row.tell_loaded()

    def _become_ready(self, due: Sequence[Run], now: float) -> None:
        """The time of messages has come: they are ready at their numbers' places, and live from now on. One
        with no time to live at all is given to who waits for it, or to nobody. Those that are cold stay so,
        but for the next one out, of which is to be known how long it lives."""
        if self.lives.some:
            self.lives.expire()
        warm: list[Run] = []
        for run in due:
            if is_cold(run):
                self.row.put_due(run)
            else:
                run.expires = self.lives.end(run.head, now)
                warm.append(run)
        self.return_front(warm, taken=False)
        self.row.load_front()
        if not self._goes_on:
            self._dispatch_ready(check=self.lives.behind)

    def arm(self) -> None:
        """Something may be due at another time: the front's end of life, or the queue's."""
        if self.lives.some:
            self.row.load_front()
        front = self.row.front()
        deadline = front.expires if front is not None else math.inf
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.takers.in_use:
            deadline = min(deadline, self.used + expires_ms / 1000)
        if self.later.count:
            deadline = min(deadline, self._context.timers.now() + self.later.next_seconds)
        if self.throttle is not None and len(self.row) and self.takers.in_use and self.throttle.wait_seconds:
            deadline = min(deadline, self._context.timers.now() + self.throttle.wait_seconds)
        if self.once is not None:
            deadline = min(deadline, self._context.timers.now() + self.once.next_seconds)
        if self._goes_on or self._unblocked:
            deadline = self._context.timers.now()
        if deadline != self.deadline:
            self._context.timers.set(self, deadline)

    def purge(self, whole: Ticket | None = None) -> int:
        """Throw away what is ready; how many that were. What is lost is not missed any more. Raises
        StoreError.

        They are gone at once, and what comes from now on stays. Very many leave the log, and are freed, in
        turns. `whole`: they are gone on disk, too, and who waits may be told. A crash takes back all of it
        or nothing.
        """
        count = len(self.row) + self.later.count
        if self.lost and self.log is not None:
            self.log.lost_is_known()
            self.lost = False
        self.lives.behind = False
        self._context.work.add(
            _purged(self, self.row.drop_cold(), self.row.clear(), self.later.clear(), whole)
        )
        return count

    def delete(self) -> None:
        """Ready messages go, and the takers are cancelled; what is unacknowledged stays with its channel."""
        self.deleted = True
        context = self._context
        self.forget(self.arrivals.clear(), taken=False)
        _, large = self.row.drop_cold()
        context.work.add(_freed(self, self.row.clear(), *self.later.clear()))
        for reference in large:
            context.bodies.drop(reference)
        self.row.tell_loaded()
        context.timers.forget(self)
        if self.once is not None:
            self.once.clear()
        for taker in self.takers.clear():
            try:
                taker.cancelled()
            except Exception as error:
                taker.fail(error)


def _leave_memory(queue: Queue, runs: Sequence[Run]) -> None:
    """Messages that nobody holds are not in memory any more."""
    queue.uncharge_runs(runs)
    queue.memory.left(runs)


def _messages_in(runs: Sequence[Run]) -> int:
    return len(runs[0].bodies) if len(runs) == 1 else sum([len(run.bodies) for run in runs])


def _purged(
    queue: Queue,
    cold: tuple[tuple[int, int] | None, list[bytes]],
    warm: Iterator[list[Run]],
    later: tuple[Waiting[Run], ColdRecords],
    whole: Ticket | None,
) -> Iterator[None]:
    """What a purge has taken out of a queue: cold messages and their large bodies, ready ones, and those that
    waited, in memory and not."""
    context, log, row, once = queue._context, queue.log, queue.row, queue.once
    (numbers, large), (delayed, waiting) = cold, later
    parts: dict[int, list[Run]] = {}
    for runs in chain(warm, taken_out(delayed.pop_any, delayed)):
        row.waits_no_more(runs)
        for run in runs:
            parts.setdefault(run.first // SORTED_MOST, []).append(run)
        yield
    ready: list[Run] = []
    for part in sorted(parts):
        ready += sorted(parts.pop(part), key=attrgetter("first"))
        yield
    for runs in chain(batched(ready) if once is not None else (), waiting.known()):
        row.waits_no_more(runs)
        if once is not None:  # whoever sends it again now is not told that it is there
            once.left(runs)
        yield
    if row.keys is not None:
        queue.free_keys(())
    if log is not None:
        yield from log.take_all(ready, waiting, numbers)
        context.log_changed(log)
    for reference in large:  # these go at the next flush, behind the record
        context.bodies.drop(reference)
    if whole is not None:
        resolve_when_written(whole, log)
    yield from _freed(queue, taken_out(ready.pop, ready), delayed, waiting)


def _freed(
    queue: Queue, warm: Iterator[list[Run]], delayed: Waiting[Run], cold: ColdRecords
) -> Iterator[None]:
    """Very many messages are freed in turns, with their large bodies."""
    for some in chain(warm, taken_out(delayed.pop_any, delayed)):
        queue.forget(some, taken=False)
        yield
    yield from cold.freed()


def resolve_when_written(whole: Ticket, log: QueueLog | None) -> None:
    """`whole` is done when the record that messages have left is on disk."""
    try:
        ticket = None if log is None else log.flush()
    except StoreError as error:
        whole.resolve(error)
        return
    if ticket is None:
        whole.resolve(None)
    else:
        ticket.when_done(lambda done: whole.resolve(done.error))
