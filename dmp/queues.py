"""A queue: messages in order, and who takes them.

A message is in one of three places: *unsynced* (its record waits for the disk, nobody may see it yet),
*ready*, or *unacknowledged* (a consumer has it and has not said what became of it). Non-persistent messages
that come behind unsynced ones wait with them, so that a producer's order holds.

Who takes: while a feed (the reading end of a DMP connection) is attached everything goes to it; else
consumers take turns, message by message, as far as each one's credit and outbox allow. `deal` gives out what
can be given and is called whenever something has changed that allows more: a message, credit, room in an
outbox. A run that finds the queue empty and one consumer that acknowledges nothing is passed on without a
`Message` being made.

Everything is synchronous. What has to be told to others (a dead letter, the queue's end) goes through `Home`.
"""

import math
from collections import deque
from collections.abc import Sequence
from heapq import merge

from dmp.arguments import QueueKind, QueueLimits
from dmp.exchanges import Binding
from dmp.message import Head, Message
from dmp.owners import Owner
from dmp.queue_log import QueueLog
from dmp.takers import Feed, Home, Taker, able, room_of, share_out
from shared.storage.store import Ticket


class Queue:
    """One queue. `owner`: the application that it is exclusive to. `log`: where it is durable."""

    __slots__ = (
        "_blocked",
        "_home",
        "_limits",
        "_next",
        "_start",
        "_timed",
        "_unsynced",
        "_warned",
        "bound",
        "consumers",
        "deadline",
        "deleted",
        "exclusive_consumer",
        "feed",
        "feed_lease",
        "had_consumer",
        "heaped",
        "kind",
        "log",
        "name",
        "owner",
        "ready",
        "ready_bytes",
        "unacked",
        "used",
    )

    def __init__(
        self,
        name: bytes,
        kind: QueueKind,
        home: Home,
        owner: Owner | None = None,
        limits: QueueLimits | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.owner = owner
        self.log: QueueLog | None = None
        self.bound: set[Binding] = set()
        self.ready: deque[Message] = deque()
        self.ready_bytes = 0
        self.unacked = 0
        self.consumers: list[Taker] = []
        self.exclusive_consumer = False
        self.feed: Feed | None = None
        self.feed_lease: object | None = None
        """Whatever the leases keep here while the queue is leased as a feed; None: it is not."""
        self.had_consumer = False
        self.deleted = False
        self.deadline = self.heaped = math.inf  # the timers'
        self.used = home.timers.now()
        self._home = home
        self._limits = limits or QueueLimits()
        self._blocked = False  # nobody has room: until `deal` is called it is no use to ask again
        self._next = 0  # the number of the next message
        self._start = 0  # whose turn it is, of the consumers
        self._timed = kind.arguments.ttl_ms is not None  # some message may expire
        self._unsynced: deque[tuple[Ticket | None, list[Message]]] = deque()
        self._warned = False

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} {len(self.ready)} ready, {self.unacked} unacknowledged>"

    @property
    def empty(self) -> bool:
        """Nothing stands before a message that would come now."""
        return not self.ready and not self._unsynced

    @property
    def takes_now(self) -> bool:
        """Whether a message that came now would be given to somebody at once."""
        return self.empty and any(room_of(taker)[0] > 0 for taker in self._in_turn())

    @property
    def in_use(self) -> bool:
        return bool(self.consumers) or self.feed is not None

    # -- in

    def publish(self, head: Head, bodies: Sequence[bytes]) -> None:
        """A run of messages that need no log."""
        if self.deleted:
            return
        if not self.ready and not self._unsynced:
            taker: Taker | None = self.feed
            if taker is None and len(self.consumers) == 1:
                taker = self.consumers[0]
            if taker is not None and taker.no_ack and head.ttl_ms != 0:
                try:
                    count, room_bytes = taker.room()
                    if count >= len(bodies) and room_bytes >= head.body_bytes * (len(bodies) - 1):
                        self._next += len(bodies)
                        taker.deliver_run(head, bodies)
                        self._home.counts.delivered += len(bodies)
                        return
                except Exception as error:
                    taker.crashed(error)
        self._hold(self.number(head, bodies), None)

    def publish_whole(self, feed: Feed, data: bytes, count: int, exchange: bytes) -> None:
        """Messages as they stand in DMP's envelopes, for the feed that `takes_whole` has found."""
        self._next += count
        self._home.counts.delivered += count
        try:
            feed.deliver_whole(data, exchange)
        except Exception as error:
            feed.crashed(error)

    @property
    def takes_whole(self) -> Feed | None:
        """The feed, if what came now would be given to it at once."""
        feed = self.feed
        return feed if feed is not None and self.empty and room_of(feed)[0] else None

    def publish_logged(self, messages: list[Message], ticket: Ticket) -> None:
        """Messages from `number` whose records are appended: they are ready when the ticket is done."""
        self._hold(messages, ticket)
        ticket.when_done(self._synced)

    def number(self, head: Head, bodies: Sequence[bytes], first: int | None = None) -> list[Message]:
        """Messages of this queue, not yet in it; `first`: where these had numbers before."""
        if first is None:
            first = self._next
            self._next += len(bodies)
        messages = [Message(head, body, number) for number, body in enumerate(bodies, first)]
        if self._timed or head.ttl_ms is not None:
            expires = self._expires(head)
            for message in messages:
                message.expires = expires
        return messages

    def _expires(self, head: Head) -> float:
        ttls_ms = [ms for ms in (head.ttl_ms, self.kind.arguments.ttl_ms) if ms is not None]
        if not ttls_ms:
            return math.inf
        self._timed = True
        return self._home.timers.now() + min(ttls_ms) / 1000

    def recovered(self, messages: list[Message]) -> None:
        """What the log held; times to live begin anew."""
        for message in messages:
            message.expires = self._expires(message.head)
        if messages:
            self._next = messages[-1].number + 1
        self._home.memory.take(sum(_cost(message) for message in messages))
        self._home.counts.recovered += len(messages)
        self._make_ready(messages)

    def _hold(self, messages: list[Message], ticket: Ticket | None) -> None:
        self._home.memory.take(messages[0].head.cost_bytes * len(messages))
        unsynced = self._unsynced
        if unsynced or ticket is not None:
            if unsynced and unsynced[-1][0] is ticket:
                unsynced[-1][1].extend(messages)
            else:
                unsynced.append((ticket, messages))
            return
        self._make_ready(messages)

    def _synced(self, _: Ticket) -> None:
        unsynced = self._unsynced
        while unsynced:
            ticket, messages = unsynced[0]
            if ticket is not None and not ticket.done:
                break
            unsynced.popleft()
            if self.deleted:
                continue
            if ticket is not None and ticket.error is not None:
                self._home.memory.give(sum(_cost(message) for message in messages))
                if self.log is not None:
                    for message in messages:
                        self.log.forget(message)
            else:
                self._make_ready(messages)

    def _make_ready(self, messages: list[Message]) -> None:
        if self._timed and self.ready:
            self._expire_ready()
        self.ready.extend(messages)
        self.ready_bytes += sum([message.head.body_bytes for message in messages])
        self._give_out()
        if self._timed:  # one with no time to live at all is given to who waits for it, or to nobody
            self._expire_ready()
            self._arm()
        if self.ready:
            self._trim()

    def _trim(self) -> None:
        """What is ready and too much goes, the oldest first."""
        arguments, ready = self.kind.arguments, self.ready
        most, most_bytes = arguments.messages_max, arguments.bytes_max
        if most is not None or most_bytes is not None:
            over: list[Message] = []
            while ready and (
                (most is not None and len(ready) > most)
                or (most_bytes is not None and self.ready_bytes > most_bytes)
            ):
                over.append(self._pop())
            if over:
                self._home.counts.overflowed += len(over)
                self._home.dead_letter(self, over, "maxlen")
        drop, warn = self._limits.drop_messages, self._limits.warn_messages
        if drop and len(ready) > drop:
            surplus = [ready.pop() for _ in range(len(ready) - drop)]
            self.ready_bytes -= sum([message.head.body_bytes for message in surplus])
            self._home.counts.dropped_full += len(surplus)
            self._gone(surplus)
        if warn and len(ready) > warn:
            if not self._warned:
                self._warned = True
                self._home.queue_above_warning(self)
        elif self._warned and len(ready) * 2 < warn:
            self._warned = False

    # -- out

    def deal(self) -> None:
        """Give out what can be given: something has changed that allows more."""
        self._blocked = False
        if self._timed:
            self._expire_ready()
        if self.ready:
            self._give_out()
        if self._timed:
            self._arm()

    def _give_out(self) -> None:
        ready = self.ready
        while ready and not self._blocked:
            shares = able(self._in_turn(), len(ready))
            if not shares:
                self._blocked = True
                break
            self._start += share_out(ready, shares)
            for taker, messages, _, _ in shares:
                if messages:
                    self._hand_over(taker, messages)

    def _in_turn(self) -> Sequence[Taker]:
        if self.feed is not None:
            return (self.feed,)
        takers = self.consumers
        if len(takers) <= 1:
            return takers
        start = self._start % len(takers)
        return takers[start:] + takers[:start]

    def _hand_over(self, taker: Taker, messages: list[Message]) -> None:
        self._home.counts.delivered += len(messages)
        self.ready_bytes -= sum([message.head.body_bytes for message in messages])
        if not taker.no_ack:
            self.unacked += len(messages)
        try:
            taker.deliver(messages)
        except Exception as error:
            taker.crashed(error)
        if taker.no_ack:
            self._gone(messages)

    def get(self, no_ack: bool) -> Message | None:
        """The next message, for one that asks for just that; None where nothing is ready."""
        self.used = self._home.timers.now()
        if self.kind.arguments.expires_ms is not None:
            self._arm()
        if self._timed:
            self._expire_ready()
        if not self.ready or self.feed is not None:
            return None
        message = self._pop()
        if no_ack:
            self._gone((message,))
        else:
            self.unacked += 1
        return message

    def _pop(self) -> Message:
        message = self.ready.popleft()
        self.ready_bytes -= message.head.body_bytes
        return message

    def _gone(self, messages: Sequence[Message]) -> None:
        """They have left the queue and all books."""
        if not messages:
            return
        self._home.memory.give(sum([_cost(message) for message in messages]))
        log = self.log
        if log is not None:
            for message in messages:
                if message.offset >= 0:
                    log.take(message)
            self._home.log_changed(log)

    # -- what became of unacknowledged ones

    def settle(self, messages: Sequence[Message]) -> None:
        """They are acknowledged."""
        if self.deleted:
            self._home.memory.give(sum([_cost(message) for message in messages]))
            return
        self.unacked -= len(messages)
        self._gone(messages)

    def reject(self, messages: list[Message]) -> None:
        """They are not wanted back: dead letters."""
        if self.deleted:
            self._home.memory.give(sum([_cost(message) for message in messages]))
            return
        self.unacked -= len(messages)
        self._home.dead_letter(self, messages, "rejected")

    def requeue(self, messages: list[Message], *, given: bool = True) -> None:
        """They come back to their old places; `given`: somebody may have seen them."""
        if self.deleted:
            self._home.memory.give(sum([_cost(message) for message in messages]))
            return
        self.unacked -= len(messages)
        self.put_back(messages, given=given)

    def put_back(self, messages: list[Message], *, given: bool) -> None:
        """The same for what was never unacknowledged: a feed's, that it has not written. `deal` is yours."""
        if given:
            for message in messages:
                message.redelivered = True
        messages.sort(key=_number)
        self.ready_bytes += sum([message.head.body_bytes for message in messages])
        ready = self.ready
        if not ready or messages[-1].number < ready[0].number:
            ready.extendleft(reversed(messages))
        else:
            self.ready = deque(merge(messages, ready, key=_number))

    def take_back(self, head: Head, bodies: Sequence[bytes]) -> None:
        """The last that the feed was given comes back, unwritten, before all that is ready. You `deal`."""
        following = self.ready[0].number if self.ready else self._next
        messages = self.number(head, bodies, following - len(bodies))
        self._home.memory.take(sum([_cost(message) for message in messages]))
        self._home.counts.delivered -= len(messages)
        self.put_back(messages, given=False)

    def purge(self) -> int:
        """Throw away what is ready; how many that were."""
        messages, self.ready = list(self.ready), deque()
        self.ready_bytes = 0
        self._gone(messages)
        return len(messages)

    # -- who takes

    def add_consumer(self, consumer: Taker) -> None:
        self.consumers.append(consumer)
        self._blocked = False
        self.had_consumer = True
        self._used_now()

    def remove_consumer(self, consumer: Taker) -> None:
        self.consumers.remove(consumer)
        self.exclusive_consumer = False
        self._used_now()

    def attach_feed(self, feed: Feed) -> None:
        """From now on everything goes to it."""
        assert self.feed is None, "a queue has one feed"
        self.feed = feed
        self.had_consumer = True
        self._used_now()
        self.deal()

    def detach_feed(self, feed: Feed) -> None:
        assert self.feed is feed
        self.feed = None
        self._used_now()
        self.deal()

    def _used_now(self) -> None:
        self.used = self._home.timers.now()
        if self.kind.arguments.expires_ms is not None:
            self._arm()

    def redeclared(self) -> None:
        """Somebody has declared it again, which counts as use."""
        self._used_now()

    # -- time, and the end

    def expire(self, now: float) -> None:
        """The timers': something may be too old."""
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.in_use and self.used + expires_ms / 1000 <= now:
            self._home.queue_unused(self)
            return
        self._expire_ready()
        self._arm()

    def _expire_ready(self) -> None:
        """Those at the front that are too old go. (One behind a longer-lived one waits for it to go.)"""
        ready = self.ready
        if not ready or ready[0].expires > (now := self._home.timers.now()):
            return
        expired: list[Message] = []
        while ready and ready[0].expires <= now:
            expired.append(self._pop())
        self._home.counts.expired += len(expired)
        self._home.dead_letter(self, expired, "expired")

    def _arm(self) -> None:
        deadline = self.ready[0].expires if self.ready else math.inf
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.in_use:
            deadline = min(deadline, self.used + expires_ms / 1000)
        if deadline != self.deadline:
            self._home.timers.set(self, deadline)

    def leave(self, messages: Sequence[Message]) -> None:
        """Dead letters have been passed on, or dropped: they are gone from here."""
        self._gone(messages)

    def lose(self, messages: Sequence[Message]) -> None:
        """They leave the queue's books, and their records are another's care."""
        self._home.memory.give(sum([_cost(message) for message in messages]))

    def delete(self) -> None:
        """Ready messages go, takers are told; what is unacknowledged stays with its channel. The broker's."""
        self.deleted = True
        self._home.timers.forget(self)
        held = [message for _, messages in self._unsynced for message in messages]
        self._home.memory.give(sum(_cost(message) for message in (*self.ready, *held)))
        self.ready.clear()
        self.ready_bytes = 0
        self._unsynced.clear()
        takers, self.consumers = [*self.consumers], []
        feed, self.feed = self.feed, None
        for taker in takers if feed is None else (*takers, feed):
            try:
                taker.cancelled()
            except Exception as error:
                taker.crashed(error)


def _cost(message: Message) -> int:
    return message.head.cost_bytes


def _number(message: Message) -> int:
    return message.number
