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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import attrs

from dmp.bodies import Bodies
from dmp.declarations import Binding, QueueKind
from dmp.memory import Memory
from dmp.message import Head, Message
from dmp.metrics import Counts
from dmp.queue_log import Cold, QueueLog
from dmp.ready import Priorities, Ready, ReadyRow
from dmp.settings import DmpSettings
from dmp.takers import Consumers, FeedTaker, Taker, room_of, share_out, shares_of
from shared.access import ANONYMOUS
from shared.errors import StoreError
from shared.queues.base import HOT_LEAST_BYTES, QueueBase
from shared.storage.lost import Lost
from shared.turns import ITEMS, LongWork, Turn

if TYPE_CHECKING:
    from shared.queues.timers import Timers
    from shared.queues.waits import Waits
    from shared.storage.store import Ticket


class QueueContext(Protocol):
    """What a queue asks of its broker."""

    bodies: Bodies
    counts: Counts
    draining: bool
    memory: Memory
    settings: DmpSettings
    timers: Timers
    waits: Waits
    work: LongWork

    def dead_letter(self, queue: Queue, messages: list[Message], reason: str) -> None:
        """Pass on messages that left the queue by `reason`, where it has a dead-letter exchange."""

    def log_changed(self, log: QueueLog) -> None:
        """Something was taken from a durable queue: have it flushed at the end of the round."""

    def queue_unused(self, queue: Queue) -> None:
        """Nobody has used the queue for as long as its arguments allow: delete it."""

    def report_crash(self, error: Exception) -> None:
        """The queue's own code has failed where nobody waits for it: on the time of the store."""

    def queue_damaged(self, name: bytes, error: StoreError) -> None:
        """What the queue has on disk alone cannot be read."""

    def queue_lost(self, name: bytes, lost: Lost) -> None:
        """What the queue had on disk alone is damaged there, and passed over."""

    def queue_above_warning(self, queue: Queue) -> None:
        """More messages are ready than the settings find normal."""


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
class Queue(QueueBase):
    """One queue. `owner`: the application that it is exclusive to."""

    name: bytes
    kind: QueueKind
    _context: QueueContext
    owner: Application | None = None
    _limited: bool = True  # by the settings, as all queues that clients declare
    capped: bool = attrs.field(init=False)  # it may refuse what comes: ask `room_for`
    log: QueueLog | None = attrs.field(default=None, init=False)  # where it is durable
    cold: Cold | None = attrs.field(default=None, init=False)
    ready: Ready = attrs.field(init=False)
    adopted: bool = attrs.field(default=False, init=False)
    """The queue's definition was lost: the next declaration is its new one."""
    lost: bool = attrs.field(default=False, init=False)
    """Some of the queue's messages cannot be read, and nobody has purged it since: it is not called empty."""
    marked_from: int = attrs.field(default=0, init=False)
    """Messages below this number are older than the mark of what has died (`topology_table`)."""
    bound: set[Binding] = attrs.field(factory=set, init=False)
    memory_bytes: int = attrs.field(default=0, init=False)
    """What the budget is charged for it, without messages and bindings."""

    ready_bytes: int = attrs.field(default=0, init=False)  # of the bodies that are ready and in memory
    unacked: int = attrs.field(default=0, init=False)
    unsynced: int = attrs.field(default=0, init=False)
    unsynced_bytes: int = attrs.field(default=0, init=False)  # of the bodies that wait for the disk

    consumers: Consumers = attrs.field(init=False)
    exclusive_consumer: bool = attrs.field(default=False, init=False)
    feed: FeedTaker | None = attrs.field(default=None, init=False)
    feed_lease: object | None = attrs.field(default=None, init=False)
    """Whatever the leases keep here while the queue is leased as a feed; None: it is not."""
    had_consumer: bool = attrs.field(default=False, init=False)
    used: float = attrs.field(init=False)
    numbered: int = attrs.field(default=0, init=False)  # how many ever came: the number of the next message
    _started: float = attrs.field(default=0.0, init=False)
    _warn_messages: int = attrs.field(init=False)  # 0: no limit
    _drop_messages: int = attrs.field(init=False)
    _timed: bool = attrs.field(init=False)  # some message may expire
    _behind: bool = attrs.field(default=False, init=False)  # the next one out has expired, and waits its turn
    _has_large: bool = attrs.field(default=False, init=False)  # it has, or had, messages with large bodies
    _hot_bytes: int = attrs.field(default=0, init=False)  # what is ready in memory takes there
    _unsynced: deque[tuple[Ticket | None, list[Message]]] = attrs.field(factory=deque, init=False)
    _unlogged: int = attrs.field(default=0, init=False)  # of these, without a record
    _unsynced_gone: int = attrs.field(default=0, init=False)  # how many have left `_unsynced`
    _when_synced: deque[tuple[int, Callable[[], None]]] | None = attrs.field(default=None, init=False)
    _when_warm: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _warned: bool = attrs.field(default=False, init=False)
    _blocked: bool = attrs.field(default=False, init=False)  # nobody has room until the next `dispatch`
    _goes_on: bool = attrs.field(default=False, init=False)  # in the next turn, more is given out, or goes

    def __attrs_post_init__(self) -> None:
        arguments = self.kind.arguments
        self.ready = self._nothing_ready()
        self.consumers = Consumers(arguments.single_active)
        self.limits_changed()
        self.used = self._context.timers.now()
        self._timed = arguments.ttl_ms is not None

    def _nothing_ready(self) -> Ready:
        priority_max = self.kind.arguments.priority_max
        return Priorities(priority_max) if priority_max else ReadyRow()

    def limits_changed(self) -> None:
        """The limits for all queues are others, or its own."""
        settings = self._context.settings
        self._warn_messages = settings.queue_warn_messages * self._limited
        self._drop_messages = settings.queue_drop_messages * self._limited
        self.capped = self._drop_messages > 0 or self.kind.arguments.rejects

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} {self.depth} ready, {self.unacked} unacknowledged>"

    @property
    def durable(self) -> bool:
        """Whether it outlives the server: not where it is exclusive, whatever was declared."""
        return self.log is not None

    @property
    def depth(self) -> int:
        """How many are ready."""
        return len(self.ready) if self.cold is None else len(self.ready) + self.cold.count

    @property
    def depth_bytes(self) -> int:
        """The bytes of the bodies of all that is ready, in memory and on disk."""
        return self.ready_bytes if self.cold is None else self.ready_bytes + self.cold.body_bytes

    @property
    def empty(self) -> bool:
        """Whether nothing stands before a message that would come now."""
        return not (self.ready or self._unsynced or self.stops or self.paged)

    @property
    def paged(self) -> bool:
        """Whether some of the queue is cold: what comes now needs a record."""
        return self.cold is not None and self.cold.count > 0

    @property
    def in_use(self) -> bool:
        return self.consumers.count > 0 or self.feed is not None

    @property
    def takes_now(self) -> bool:
        """Whether a message that came now would be given to somebody at once."""
        return self.empty and self._somebody_has_room()

    @property
    def takes_whole(self) -> FeedTaker | None:
        """The feed, if what came now would be given to it at once."""
        feed = self.feed
        return feed if feed is not None and self.empty and room_of(feed)[0] else None

    def keep_in(self, log: QueueLog) -> None:
        """The queue is durable. (What has priorities is all in memory: its front is wherever the next one
        comes.)"""
        self.log = log
        log.log.rolled_back = lambda _: self._on_rolled_back(log)
        if isinstance(self.ready, ReadyRow):
            self.cold = Cold(log.log, log, self)

    def _on_rolled_back(self, log: QueueLog) -> None:
        if not self.deleted and log.rolled_back():
            self._context.log_changed(log)

    # -- in

    def publish(self, head: Head, bodies: Sequence[bytes]) -> None:
        """A run of messages that need no log.

        A run that finds the queue empty, and one consumer that acknowledges nothing, is passed on without a
        `Message` being made.
        """
        if self.deleted:
            return
        if head.large:
            self.publish_numbered(self.number(head, bodies))
            return
        if self.empty:
            taker: Taker | None = self.feed
            if taker is None and self.consumers.count == 1:
                (taker,) = self.consumers.active
            if taker is not None and taker.no_ack and head.ttl_ms != 0:
                try:
                    count, room_bytes = taker.room()
                    if count >= len(bodies) and room_bytes >= head.body_bytes * (len(bodies) - 1):
                        self.numbered += len(bodies)
                        taker.deliver_run(head, bodies)
                        self._context.counts.delivered += len(bodies)
                        return
                except Exception as error:
                    taker.fail(error)
        self._enqueue(self.number(head, bodies), None)

    def publish_whole(
        self, feed: FeedTaker, chunks: Sequence[bytes | memoryview], count: int, exchange: bytes
    ) -> None:
        """Messages as they stand in DMP's envelopes, for the feed that `takes_whole` has found: a fast path.

        100 bytes from one sink to one feed take 0.19 us of the server's processor, and 0.71 by
        `publish`.
        """
        self.numbered += count
        self._context.counts.delivered += count
        try:
            feed.deliver_whole(chunks, count, exchange)
        except Exception as error:
            feed.fail(error)

    def number(self, head: Head, bodies: Sequence[bytes], first: int | None = None) -> list[Message]:
        """Messages of this queue, not yet in it; `first`: where these had numbers before."""
        if first is None:
            first = self.numbered
            self.numbered += len(bodies)
        messages = [Message(head, body, number) for number, body in enumerate(bodies, first)]
        if self._timed or head.ttl_ms is not None:
            expires = self._expires(head, self._context.timers.now())
            for message in messages:
                message.expires = expires
        return messages

    def publish_logged(self, messages: list[Message], ticket: Ticket) -> None:
        """Messages from `number` whose records are appended: they are ready when the ticket is done."""
        self._enqueue(messages, ticket)
        ticket.when_done(self.synced)

    def publish_numbered(self, messages: list[Message]) -> None:
        """Messages from `number` that need no record. Those of large bodies wait until these are written."""
        if self.deleted:
            return
        last = messages[-1]
        written = self._context.bodies.unwritten(last.body) if last.head.large else None
        if written is None:
            self._enqueue(messages, None)
        else:
            self.publish_logged(messages, written)

    def room_for(self, head: Head, count: int, before: int = 0, before_bytes: int = 0) -> int:
        """How many of so many messages it will have, where it is `capped`; `before`: so many come before."""
        waiting, waiting_bytes = self.depth + before, self.depth_bytes + before_bytes
        if not self._somebody_has_room():  # else these do not stay
            waiting += self.unsynced
            waiting_bytes += self.unsynced_bytes
        room = count
        if self._drop_messages:
            room = min(room, self._drop_messages - waiting)
        arguments = self.kind.arguments
        if arguments.rejects:
            if arguments.messages_max is not None:
                room = min(room, arguments.messages_max - waiting)
            if arguments.bytes_max is not None:
                room = min(room, (arguments.bytes_max - waiting_bytes) // max(head.body_bytes, 1))
        return max(room, 0)

    def recovered(self, messages: list[Message], following: int, *, lost: bool) -> None:
        """What the log held, as `load` has found it; times to live begin anew. Nothing leaves before
        `restored`."""
        self._started = self._context.timers.now()
        for message in messages:
            message.expires = self._expires(message.head, self._started)
        self.numbered = following
        self.lost = lost
        count = len(messages)
        self._has_large = any(message.head.large for message in messages)
        if self.cold is not None:
            count += self.cold.count
            self._has_large = self._has_large or bool(self.cold.large)
        self._context.memory.take(_sizes(messages)[1])
        self._context.counts.recovered += count
        self._put_in_front(messages)

    def restored(self) -> None:
        """All that was durable is there, also what a message may leave to. What is too much of what was
        `recovered`, or too old, goes now."""
        self._dispatch_new()

    def _expires(self, head: Head, since: float) -> float:
        ttls_ms = [ms for ms in (head.ttl_ms, self.kind.arguments.ttl_ms) if ms is not None]
        if not ttls_ms:
            return math.inf
        self._timed = True
        return since + min(ttls_ms) / 1000

    def _enqueue(self, messages: list[Message], ticket: Ticket | None) -> None:
        """Put in messages, which are ready when the ticket is done and all before them are."""
        self._admit(messages)
        unsynced = self._unsynced
        if not unsynced and ticket is None:
            self._make_ready(messages)
            return
        self.unsynced += len(messages)
        self.unsynced_bytes += messages[0].head.body_bytes * len(messages)
        if messages[0].offset < 0:
            self._unlogged += len(messages)
        if unsynced and unsynced[-1][0] is ticket:
            unsynced[-1][1].extend(messages)
        else:
            unsynced.append((ticket, messages))

    def _admit(self, messages: list[Message]) -> None:
        """Count the messages of one run from now on."""
        if self.tick != self._context.waits.tick and isinstance(self.ready, ReadyRow):
            # Not with priorities: what has them goes in another order.
            self._context.waits.take_sample(self, messages[0].number)
        self._context.memory.take(messages[0].head.cost_bytes * len(messages))
        if messages[0].head.large:
            self._has_large = True
            for message in messages:
                self._context.bodies.hold(message.body)

    def synced(self, _: Ticket) -> None:
        """The disk has, or refuses, what stands first. Nobody waits for this call, so nothing is raised."""
        unsynced = self._unsynced
        try:
            while unsynced:
                ticket, messages = unsynced[0]
                if ticket is not None and not ticket.done:
                    break
                unsynced.popleft()
                self._unsynced_gone += 1
                if self.deleted:
                    continue
                self.unsynced -= len(messages)
                self.unsynced_bytes -= _sizes(messages)[0]
                if self._unlogged:
                    self._unlogged -= sum([message.offset < 0 for message in messages])
                if ticket is not None and ticket.error is not None:
                    self.forget(messages)
                else:
                    self._make_ready(messages)
        except Exception as error:
            self._context.report_crash(error)
        if self._when_synced:
            self._tell_synced()

    @property
    def behind_disk(self) -> bool:
        """Something that came waits for the disk, or behind what does."""
        return bool(self._unsynced)

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call it once, when all that is `behind_disk` now is ready, or could not be written."""
        if not self._unsynced:
            callback()
            return
        if self._when_synced is None:  # made late: most queues never need it
            self._when_synced = deque()
        self._when_synced.append((self._unsynced_gone + len(self._unsynced), callback))

    def _tell_synced(self) -> None:
        waiting = self._when_synced
        while waiting and (self.deleted or waiting[0][0] <= self._unsynced_gone):
            waiting.popleft()[1]()
        if not waiting:
            self._when_synced = None

    def _make_ready(self, messages: list[Message]) -> None:
        if self._timed and self.ready:
            self._expire_ready()
        cold = self.cold
        if cold is not None and (cold.count or self._turns_cold(messages)):
            cold.add(messages)
            self._context.memory.give(_sizes(messages)[1])
        else:
            if self.log is not None:
                self.log.keep(messages)
            self.ready.extend(messages)
            self._count_in(messages)
        self._dispatch_new()

    def _turns_cold(self, messages: list[Message]) -> bool:
        """Memory is scarce, nobody takes what is ready, and each of what is to follow has a record."""
        return (
            self._hot_bytes > HOT_LEAST_BYTES
            and self._context.memory.scarce
            and not self._unlogged
            and messages[0].offset >= 0
            and messages[-1].offset >= 0
        )

    def _dispatch_new(self) -> None:
        """Dispatch where more is ready, or cold."""
        if not self._goes_on:
            self._dispatch_ready(check=self._behind)
        if self._timed:  # one with no time to live at all is given to who waits for it, or to nobody
            self._expire_ready()
        if self.depth:
            self._trim()

    def trim(self) -> None:
        """Messages are back: the oldest go where there are too many now. You have dispatched."""
        if self.depth and not self.returning:
            self._trim()

    def _trim(self) -> None:
        """What is ready and too much goes, the oldest first, some at a time: the timers bring the next."""
        arguments = self.kind.arguments
        most, most_bytes = arguments.messages_max, arguments.bytes_max
        if (most is not None or most_bytes is not None) and not arguments.rejects:
            over: list[Message] = []
            turn = Turn()
            while (
                (most is not None and self.depth > most)
                or (most_bytes is not None and self.depth_bytes > most_bytes)
            ) and (self.ready or self._warm()):
                if turn.over():
                    self._go_on()
                    break
                over.append(self._pop())
            if over:
                self._context.counts.overflowed += len(over)
                self._context.dead_letter(self, over, "maxlen")
        warn = self._warn_messages
        if warn and self.depth > warn:
            if not self._warned:
                self._warned = True
                self._context.queue_above_warning(self)
        elif self._warned and self.depth * 2 < warn:
            self._warned = False

    def _put_in_front(self, messages: list[Message]) -> None:
        if messages:
            self.ready.put_back(messages)
            self._count_in(messages)

    def _count_in(self, messages: Sequence[Message]) -> None:
        """Count messages that were put into `ready`. The front may be another."""
        body_bytes, cost_bytes = _sizes(messages)
        self.ready_bytes += body_bytes
        self._hot_bytes += cost_bytes
        if self._timed:
            self._arm()

    def _count_out(self, messages: Sequence[Message]) -> None:
        """Count messages that were taken out of `ready`, whoever took them. The front may be another."""
        body_bytes, cost_bytes = _sizes(messages)
        self.ready_bytes -= body_bytes
        self._hot_bytes -= cost_bytes
        if self._timed and (self.ready or not self._warm()):  # what is warmed counts in, and arms
            self._arm()

    # -- what is cold

    def when_warm(self, callback: Callable[[], None]) -> None:
        """Call it once, when what is on its way from the log is there."""
        self._when_warm.append(callback)

    @property
    def warming(self) -> bool:
        """Something is ready that cannot be given out yet.

        It is on its way from the log, or stands behind expired messages that have not gone yet, or behind
        what comes back.
        """
        if self.ready or self.returning:
            return self._behind or self.returning
        return self.cold is not None and self.cold.reading

    @property
    def damaged(self) -> bool:
        """Whether nothing can be given out though something is left."""
        return not self.ready and (self.lost or (self.cold is not None and self.cold.damaged is not None))

    def _warm(self) -> bool:
        """Have more of what is cold in memory, where nothing else is; whether something is there now."""
        if self.cold is not None:
            self.cold.fetch()
        return bool(self.ready)

    def warmed(self, messages: list[Message]) -> None:
        """`Cold`'s: they are in memory now."""
        cold, context = self.cold, self._context
        assert cold is not None
        if cold.damaged is not None:
            context.queue_damaged(self.name, cold.damaged)
        if cold.lost is not None and not self.lost:
            self.lost = True
            context.queue_lost(self.name, cold.lost)
        for message in messages:
            if message.redelivered:
                message.expires = self._expires(message.head, self._started)
        context.memory.take(_sizes(messages)[1])
        self.ready.extend(messages)
        self._count_in(messages)

    def on_cold_read(self) -> None:
        """`Cold`'s: what was on its way is there, and nobody waits for this call."""
        try:
            self.dispatch()
            self._trim()
        except Exception as error:
            self._context.report_crash(error)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._when_warm = self._when_warm, []
        for callback in waiting:
            callback()

    # -- out

    def dispatch(self) -> None:
        """Give out what can be given: something has changed that allows more.

        Of very many some at once; the rest follows in the next turns, whoever calls meanwhile.
        """
        self._blocked = False
        if self._goes_on:
            return
        if self._timed:
            self._expire_ready()
        self._dispatch_ready(check=self._timed)

    def _dispatch_ready(self, *, check: bool = False) -> None:
        """`check`: nobody is given what has expired; one may have done so behind another that lives on."""
        if self.stops:
            return
        turn: Turn | None = None
        while (depth := self.depth) and not self._blocked and not (check and self._behind):
            feed = self.feed
            shares = self.consumers.shares(depth) if feed is None else shares_of((feed,), depth)
            if not shares:
                self._blocked = True
                break
            if turn is None:
                turn = Turn()
            elif turn.over(ITEMS):
                self._go_on()
                break
            given = share_out(self.ready, shares) if self.ready or self._warm() else 0
            if not given:
                break
            if feed is None:
                self.consumers.given(shares, given)
            late: list[Message] = []
            for taker, messages, _, _ in shares:
                if messages and messages[-1].number >= self.mark:
                    self._context.waits.count_sample(self)
                self._count_out(messages)
                if check:
                    now = self._context.timers.now()
                    late += [message for message in messages if message.expires <= now]
                    messages = [message for message in messages if message.expires > now]
                if messages:
                    self._hand_over(taker, messages)
            if late:
                self._expired(late)

    def _go_on(self) -> None:
        """The timers bring the rest."""
        self._goes_on = True
        self._arm()

    def _somebody_has_room(self) -> bool:
        if self.paused:
            return False
        return self.consumers.have_room() if self.feed is None else room_of(self.feed)[0] > 0

    def _hand_over(self, taker: Taker, messages: list[Message]) -> None:
        if self._has_large and taker is self.feed:
            messages = self._without_large(messages)
            if not messages:
                return
        self._context.counts.delivered += len(messages)
        if not taker.no_ack:
            self.unacked += len(messages)
        try:
            taker.deliver(messages)
        except Exception as error:
            taker.fail(error)
        if taker.no_ack:
            self.leave(messages)

    def _without_large(self, messages: list[Message]) -> list[Message]:
        """What a feed can carry; the others die."""
        large = [message for message in messages if message.head.large]
        if large:
            self._context.counts.too_large_for_feeds += len(large)
            self._context.dead_letter(self, large, "maxlen")
        return [message for message in messages if not message.head.large]

    def get(self, no_ack: bool) -> Message | None:
        """The next message, for one that asks for just that; None where nothing is ready."""
        self.used_now()
        if self._timed:
            self._expire_ready()
        if self.feed is not None or self.stops or not (self.ready or self._warm()) or self._behind:
            return None
        message = self._pop()
        if no_ack:
            self.leave((message,))
        else:
            self.unacked += 1
        return message

    def take_front(self, most: int) -> list[Message]:
        """Up to so many of the next ones, out of what is ready: each comes back by `return_front`, or leaves.
        None where the next ones are still on their way (`when_warm`), or there are none."""
        if not (self.ready or self._warm()):
            return []
        return [self._pop() for _ in range(min(most, len(self.ready)))]

    def return_front(self, messages: list[Message]) -> None:
        """The messages return to their places. The caller dispatches."""
        messages.sort(key=attrgetter("number"))
        self._put_in_front(messages)

    def _pop(self) -> Message:
        message = self.ready.popleft()
        self._count_out((message,))
        return message

    def leave(self, messages: Sequence[Message]) -> None:
        """The messages leave the queue, all that counts them, and the queue's log."""
        if messages:
            self.forget(messages)
            if self.log is not None:
                self.log.take(messages)
                self._context.log_changed(self.log)

    def forget(self, messages: Sequence[Message]) -> None:
        """The messages no longer take memory, and let go of large bodies. The caller sees to their
        records."""
        self._context.memory.give(_sizes(messages)[1])
        if self._has_large:
            self._let_bodies_go(messages)

    def _let_bodies_go(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.head.large:
                self._context.bodies.drop(message.body)

    # -- what became of unacknowledged ones

    def settle(self, messages: Sequence[Message]) -> None:
        """The messages are acknowledged."""
        self._context.counts.acknowledged += len(messages)
        if self.deleted:
            self.forget(messages)
            return
        self.unacked -= len(messages)
        self.leave(messages)

    def not_settled(self, messages: list[Message], *, seen: bool = True) -> None:
        """They were acknowledged or rejected, and the disk has refused that. They come back to their old
        places. You `dispatch`."""
        if self.log is not None:
            self.log.stay(messages)
        self.requeue(messages, seen=seen)

    def settle_written(self, messages: Sequence[Message]) -> None:
        """The messages are acknowledged, and the record of that, if they have one, is written."""
        if self.log is not None:
            self.log.left(messages)
        if not self.deleted:
            self.unacked -= len(messages)
            if self.log is not None:
                self._context.log_changed(self.log)
        self.forget(messages)

    def reject(self, messages: list[Message]) -> None:
        """The messages are rejected, and become dead letters."""
        self._context.counts.rejected += len(messages)
        if self.deleted:
            self.forget(messages)
            return
        self.unacked -= len(messages)
        self._context.dead_letter(self, messages, "rejected")

    def requeue(self, messages: list[Message], *, seen: bool = True) -> None:
        """The messages return to their old places, marked as redelivered where somebody may have seen them.
        The caller dispatches."""
        self._context.counts.requeued += len(messages)
        if self.deleted:
            self.forget(messages)
            return
        self.unacked -= len(messages)
        self._put_back(messages)
        for message in messages:
            message.redelivered = message.redelivered or seen

    def take_back(self, head: Head, bodies: Sequence[bytes]) -> None:
        """Put what the feed was given last, and did not write, before all that is ready. The caller
        dispatches."""
        following = self.ready.first_number() if self.ready else self.numbered
        messages = self.number(head, bodies, following - len(bodies))
        self._context.memory.take(_sizes(messages)[1])
        self._context.counts.delivered -= len(messages)
        self._put_back(messages)

    def _put_back(self, messages: list[Message]) -> None:
        """Put back all but the messages whose bodies cannot be read. These are lost, and their bodies are not
        deleted."""
        if self._has_large:
            bodies = self._context.bodies
            lost = [message for message in messages if message.head.large and bodies[message.body].damaged]
            if lost:
                self.lost = True
                self._context.memory.give(_sizes(lost)[1])
                messages = [message for message in messages if message not in lost]
        self.return_front(messages)

    def all_returned(self, count: int = 1) -> None:
        """One who called `await_returns` has had its messages requeued."""
        if self._context.draining:  # whoever got them now would soon lose them, too
            return
        super().all_returned(count)
        if not (self.returning or self.deleted):
            self.trim()
            self._tell_waiting()

    # -- who takes

    def dispatch_returned(self) -> None:
        """Messages are back: give out what can be given, and have the oldest go where there are too many."""
        if not (self.deleted or self._context.draining):  # whoever got them now would soon lose them, too
            self.dispatch()
            self.trim()

    def add_consumer(self, consumer: Taker) -> None:
        self.consumers.add(consumer)
        self._blocked = False
        self.had_consumer = True
        self.used_now()

    def remove_consumers(self, *consumers: Taker) -> None:
        self.consumers.remove(consumers)
        self.exclusive_consumer = False
        self.used_now()
        if self.consumers.single:
            self.dispatch()

    def attach_feed(self, feed: FeedTaker) -> None:
        """From now on all messages go to this feed."""
        assert self.feed is None, "a queue has one feed"
        self.feed = feed
        self.had_consumer = True
        self.used_now()
        self.dispatch()

    def detach_feed(self, feed: FeedTaker) -> None:
        assert self.feed is feed
        self.feed = None
        self.used_now()
        self.dispatch()

    def used_now(self) -> None:
        """The queue is used now. To be declared again counts as use, too."""
        self.used = self._context.timers.now()
        if self.kind.arguments.expires_ms is not None:
            self._arm()

    def define(self, kind: QueueKind) -> None:
        """What it is was lost, and is known again. (Priorities hold from the next start on.)"""
        self.kind = kind
        self.adopted = False
        self.limits_changed()
        self.consumers.single = kind.arguments.single_active
        self._timed = self._timed or kind.arguments.ttl_ms is not None
        self._arm()

    # -- time, and the end

    def expire(self, now: float) -> None:
        """The timers': something may be too old, or more is to be given out."""
        self._goes_on = False
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.in_use and self.used + expires_ms / 1000 <= now:
            self._context.queue_unused(self)
            return
        if self._timed:
            self._expire_ready()
        self._dispatch_ready(check=self._timed)
        self.trim()
        self._arm()
        if not self._behind:
            self._tell_waiting()

    def _expire_ready(self) -> None:
        """Messages at the front that are too old leave, some at a time: the timers bring the next.

        (One behind a longer-lived one waits for it to go.)
        """
        now = self._context.timers.now()
        expired: list[Message] = []
        turn = Turn()
        while (self.ready or self._warm()) and self.ready[0].expires <= now and not turn.over():
            expired.append(self.ready.popleft())
        if expired:
            self._count_out(expired)
        self._behind = bool(self.ready) and self.ready[0].expires <= now
        if expired:
            self._expired(expired)

    def _expired(self, messages: list[Message]) -> None:
        self._context.counts.expired += len(messages)
        self._context.dead_letter(self, messages, "expired")

    def _arm(self) -> None:
        deadline = self.ready[0].expires if self.ready else math.inf
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.in_use:
            deadline = min(deadline, self.used + expires_ms / 1000)
        if self._goes_on:
            deadline = self._context.timers.now()
        if deadline != self.deadline:
            self._context.timers.set(self, deadline)

    def purge(self, whole: Ticket | None = None) -> int:
        """Throw away what is ready; how many that were. What is lost is not missed any more. Raises
        StoreError.

        They are gone at once for whoever looks, and what comes from now on stays. Very many leave the log,
        and memory, in turns. `whole`: they are gone on disk, too, and who waits may be told. All leave the
        log at one flush, so that a crash takes back all of it or nothing.
        """
        count = self.depth
        log, cold = self.log, self.cold
        if self.lost and log is not None:
            log.lost_is_known()
            self.lost = False
        cold_numbers: tuple[int, int] | None = None
        large: list[bytes] = []
        if cold is not None and cold.count:
            assert log is not None
            cold_numbers = cold.first, cold.end
            log.cold_left()
            large += cold.large.values()
            cold.large = {}
            cold.clear()
            self._tell_waiting()
        self._behind = False
        ready = self._take_all_ready()
        if log is None:
            self._context.work.add(self._freed(ready))
            if whole is not None:
                whole.resolve(None)
        else:
            self._context.work.add(self._purged(log, ready, cold_numbers, large, whole))
        return count

    def _purged(
        self,
        log: QueueLog,
        ready: Ready,
        cold: tuple[int, int] | None,
        large: list[bytes],
        whole: Ticket | None,
    ) -> Iterator[None]:
        """The messages of a purge leave the log, and are freed."""
        log.leave_in_slices()
        try:
            numbers: list[int] = []
            for message in ready:
                if log.has(message):
                    numbers.append(message.number)
                yield
            log.taken_later(numbers, cold)
            self._context.log_changed(log)
            for reference in large:
                self._context.bodies.drop(reference)
            while ready:
                message = ready.popleft()
                log.left((message,))
                if message.head.large:
                    self._context.bodies.drop(message.body)
                yield
        finally:
            log.all_left()
            self._context.log_changed(log)
            if whole is not None:
                _resolve_when_written(whole, log)

    def _take_all_ready(self) -> Ready:
        """What is ready is so no more, and counts no more. It is still to be freed."""
        ready, self.ready = self.ready, self._nothing_ready()
        self._context.memory.give(self._hot_bytes)
        self.ready_bytes = self._hot_bytes = 0
        return ready

    def _freed(self, ready: Ready) -> Iterator[None]:
        """Very many are freed in turns, with their large bodies."""
        while ready:
            message = ready.popleft()
            if message.head.large:
                self._context.bodies.drop(message.body)
            yield

    def delete(self) -> None:
        """Ready messages go, and the takers are cancelled; what is unacknowledged stays with its channel."""
        self.deleted = True
        unsynced = [message for _, messages in self._unsynced for message in messages]
        self._context.memory.give(_sizes(unsynced)[1])
        if self._has_large:
            self._let_bodies_go(unsynced)
        self.unsynced = self.unsynced_bytes = self._unlogged = 0
        self._unsynced.clear()
        self._tell_synced()
        self._context.work.add(self._freed(self._take_all_ready()))
        if self.cold is not None:
            large, self.cold.large = self.cold.large, {}
            for reference in large.values():
                self._context.bodies.drop(reference)
            self.cold.clear()
        self._tell_waiting()
        self._context.timers.forget(self)
        takers = [*self.consumers] if self.feed is None else [*self.consumers, self.feed]
        self.consumers = Consumers(self.consumers.single)
        self.feed = None
        for taker in takers:
            try:
                taker.cancelled()
            except Exception as error:
                taker.fail(error)


def _resolve_when_written(whole: Ticket, log: QueueLog) -> None:
    """`whole` is done when the record that messages have left is on disk."""
    try:
        ticket = log.flush()
    except StoreError as error:
        whole.resolve(error)
        return
    if ticket is None:
        whole.resolve(None)
    else:
        ticket.when_done(lambda done: whole.resolve(done.error))


def _sizes(messages: Sequence[Message]) -> tuple[int, int]:
    """How long their bodies are, and what they take in memory."""
    body_bytes = cost_bytes = 0
    for message in messages:
        head = message.head
        body_bytes += head.body_bytes
        cost_bytes += head.cost_bytes
    return body_bytes, cost_bytes
