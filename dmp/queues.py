"""A queue: who takes its messages, what becomes of them, and when they, or it, must go. What it holds is its
`Stock`.

Who takes: while a feed (the reading end of a DMP connection) is attached everything goes to it; else
consumers take turns, message by message, as far as each one's credit and outbox allow. Those with the highest
priority come first, the others while these have no room. Where the queue wants a single active consumer, one
gets everything until it goes; then the one with the highest priority that has been there longest. `deal`
gives out what can be given and is called whenever something has changed that allows more: a message, credit,
room in an outbox. A run that finds the queue empty and one consumer that acknowledges nothing is passed on
without a `Message` being made.

Everything is synchronous. What concerns others (a dead letter, the queue's end) goes through `Home`.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

from dmp.declarations import QueueKind, QueueLimits
from dmp.exchanges import Binding
from dmp.message import Head, Message
from dmp.owners import Owner
from dmp.stock import Stock
from dmp.takers import Feed, Home, Taker, able, room_of, share_out

EXPIRED_AT_ONCE = 4096
"""So many leave before others have their turn: some milliseconds."""
LOOKED_AT_ONCE = 1024
"""Consumers asked for their room before others have their turn: about a millisecond."""


class Queue(Stock):
    """One queue. `owner`: the application that it is exclusive to."""

    __slots__ = (
        "_ask_on",
        "_blocked",
        "_drop_messages",
        "_level",
        "_looked_at",
        "_single",
        "_start",
        "_warn_messages",
        "_warned",
        "adopted",
        "bound",
        "capped",
        "consumers",
        "deadline",
        "exclusive_consumer",
        "feed",
        "feed_lease",
        "had_consumer",
        "heaped",
        "owner",
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
        super().__init__(name, kind, home)
        limits = limits or QueueLimits()
        self.owner = owner
        self.adopted = False
        """Its definition was lost: the next declaration is one."""
        self.bound: set[Binding] = set()
        self.consumers: list[Taker] = []
        self.exclusive_consumer = False
        self.feed: Feed | None = None
        self.feed_lease: object | None = None
        """Whatever the leases keep here while the queue is leased as a feed; None: it is not."""
        self.had_consumer = False
        self.deadline = self.heaped = math.inf  # the timers'
        self.used = home.timers.now()
        self.capped = bool(limits.drop_messages) or kind.arguments.rejects
        """It may refuse what comes: ask `room_for`."""
        self._ask_on = False  # in the next turn, those that were not asked for their room yet
        self._blocked = False  # nobody has room: until `deal` is called it is no use to ask again
        self._drop_messages = limits.drop_messages
        self._level = 0  # where those begin, of the consumers, whose turn it is: none before them has room
        self._looked_at = 0  # so many of these in a row had no room
        self._single = kind.arguments.single_active
        self._start = 0  # whose turn it is, of the consumers
        self._warn_messages = limits.warn_messages
        self._warned = False

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} {self.depth} ready, {self.unacked} unacknowledged>"

    @property
    def takes_now(self) -> bool:
        """Whether a message that came now would be given to somebody at once."""
        return self.empty and self._somebody_has_room()

    @property
    def in_use(self) -> bool:
        return bool(self.consumers) or self.feed is not None

    # -- in

    def publish(self, head: Head, bodies: Sequence[bytes]) -> None:
        """A run of messages that need no log."""
        if self.deleted:
            return
        if head.large:
            self.publish_numbered(self.number(head, bodies))
            return
        if self.empty:
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

    def _came(self) -> None:
        self._give_out(check=self._behind)
        if self._timed:  # one with no time to live at all is given to who waits for it, or to nobody
            self._expire_ready()
            self._arm()
        if self.depth:
            self._trim()

    def _warmed_up(self) -> None:
        self.deal()
        self._trim()

    def _trim(self) -> None:
        """What is ready and too much goes, the oldest first."""
        arguments = self.kind.arguments
        most, most_bytes = arguments.messages_max, arguments.bytes_max
        if (most is not None or most_bytes is not None) and not arguments.rejects:
            over: list[Message] = []
            while (
                (most is not None and self.depth > most)
                or (most_bytes is not None and self.depth_bytes > most_bytes)
            ) and (self.ready or self._warm()):
                over.append(self._pop())
            if over:
                self._home.counts.overflowed += len(over)
                self._home.dead_letter(self, over, "maxlen")
        warn = self._warn_messages
        if warn and self.depth > warn:
            if not self._warned:
                self._warned = True
                self._home.queue_above_warning(self)
        elif self._warned and self.depth * 2 < warn:
            self._warned = False

    # -- out

    def deal(self) -> None:
        """Give out what can be given: something has changed that allows more."""
        self._blocked = self._ask_on = False
        self._level = self._looked_at = 0
        if self._timed:
            self._expire_ready()
        self._give_out(check=self._timed)
        if self._timed:
            self._arm()

    def _give_out(self, *, check: bool = False) -> None:
        """`check`: nobody is given what has expired; one may have done so behind another that lives on."""
        if self.returning:
            return
        asked = 0
        while (depth := self.depth) and not self._blocked and not (check and self._behind):
            takers = self._in_turn()
            shares = able(takers, depth)
            if not shares:
                asked += len(takers)
                more = self._found_no_room(len(takers))
                if more and asked < LOOKED_AT_ONCE:
                    continue
                self._ask_on = more
                if more:
                    self._arm()
                break
            self._looked_at = 0
            self._ask_on = False
            ready = self.ready
            if not ready and not self._warm():
                break
            self._start += share_out(ready, shares)
            late: list[Message] = []
            for taker, messages, _, _ in shares:
                self._count_out(messages)
                if check:
                    now = self._home.timers.now()
                    late += [message for message in messages if message.expires <= now]
                    messages = [message for message in messages if message.expires > now]
                if messages:
                    self._hand_over(taker, messages)
            if late:
                self._expired(late)

    def _in_turn(self) -> Sequence[Taker]:
        if self.feed is not None:
            return (self.feed,)
        takers = self.consumers
        if len(takers) <= 1:
            return takers
        if self._single:
            return takers[:1]
        first, last = self._level, self._level_end()
        start = first + self._start % (last - first)
        end = start + LOOKED_AT_ONCE
        return (
            takers[start:last] + takers[first : min(first + end - last, start)]
            if end > last
            else takers[start:end]
        )

    def _level_end(self) -> int:
        """Where those end, of the consumers, that have one priority with the first whose turn it is."""
        consumers, first = self.consumers, self._level
        if not consumers or consumers[first].priority == consumers[-1].priority:
            return len(consumers)
        return bisect_right(consumers, _rank(consumers[first]), first, key=_rank)

    def _found_no_room(self, count: int) -> bool:
        """So many whose turn it was cannot take anything. True: others, whose turn is next, may."""
        self._looked_at += count
        end = self._level_end()
        if self.feed is None and not self._single and self._looked_at < end - self._level:
            self._start += count
        elif self.feed is None and not self._single and end < len(self.consumers):
            self._level = end
            self._looked_at = 0
        else:
            self._blocked = True
            self._looked_at = 0
        return not self._blocked

    def _somebody_has_room(self) -> bool:
        takers: Sequence[Taker] = self._in_turn()
        if self.feed is None and not self._single and self._level_end() - self._level < len(self.consumers):
            takers = self.consumers[:LOOKED_AT_ONCE]
        return any(room_of(taker)[0] > 0 for taker in takers)

    def _hand_over(self, taker: Taker, messages: list[Message]) -> None:
        if self._has_large and taker is self.feed:
            messages = self._without_large(messages)
            if not messages:
                return
        self._home.counts.delivered += len(messages)
        if not taker.no_ack:
            self.unacked += len(messages)
        try:
            taker.deliver(messages)
        except Exception as error:
            taker.crashed(error)
        if taker.no_ack:
            self.leave(messages)

    def _without_large(self, messages: list[Message]) -> list[Message]:
        """What a feed can carry; the others die."""
        large = [message for message in messages if message.head.large]
        if large:
            self._home.counts.too_large_for_feeds += len(large)
            self._home.dead_letter(self, large, "maxlen")
        return [message for message in messages if not message.head.large]

    def get(self, no_ack: bool) -> Message | None:
        """The next message, for one that asks for just that; None where nothing is ready."""
        self.used = self._home.timers.now()
        if self.kind.arguments.expires_ms is not None:
            self._arm()
        if self._timed:
            self._expire_ready()
        if self.feed is not None or self.returning or not (self.ready or self._warm()) or self._behind:
            return None
        message = self._pop()
        if no_ack:
            self.leave((message,))
        else:
            self.unacked += 1
        return message

    # -- what became of unacknowledged ones

    def settle(self, messages: Sequence[Message]) -> None:
        """They are acknowledged."""
        if self.deleted:
            self.lose(messages)
            return
        self.unacked -= len(messages)
        self.leave(messages)

    def reject(self, messages: list[Message]) -> None:
        """They are not wanted back: dead letters."""
        if self.deleted:
            self.lose(messages)
            return
        self.unacked -= len(messages)
        self._home.dead_letter(self, messages, "rejected")

    def requeue(self, messages: list[Message], *, given: bool = True) -> None:
        """They come back to their old places; `given`: somebody may have seen them."""
        if self.deleted:
            self.lose(messages)
            return
        self.unacked -= len(messages)
        self.put_back(messages, given=given)

    def await_returns(self) -> None:
        """Nothing is given out until `all_returned`: some of what comes back stands before all there is."""
        self.returning += 1

    def all_returned(self) -> None:
        """One who called `await_returns` has had its messages requeued."""
        self.returning -= 1
        if not (self.returning or self.deleted):
            self.deal()
            self._tell_waiting()

    # -- who takes

    def add_consumer(self, consumer: Taker) -> None:
        first = 1 if self._single and self.consumers else 0  # nobody takes the turn of the single active one
        insort(self.consumers, consumer, first, key=_rank)
        self._blocked = False
        self._level = 0
        self.had_consumer = True
        self._used_now()

    def remove_consumer(self, consumer: Taker) -> None:
        self.consumers.remove(consumer)
        self._level = 0
        self.exclusive_consumer = False
        self._used_now()
        if self._single:
            self.deal()

    def remove_consumers(self, consumers: Iterable[Taker]) -> None:
        """The same for all of a connection's."""
        gone = set(consumers)
        self.consumers = [consumer for consumer in self.consumers if consumer not in gone]
        self._level = 0
        self.exclusive_consumer = False
        self._used_now()
        if self._single:
            self.deal()

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

    def define(self, kind: QueueKind) -> None:
        """What it is was lost, and is known again. (Priorities hold from the next start on.)"""
        self.kind = kind
        self.adopted = False
        self.capped = self.capped or kind.arguments.rejects
        self._single = kind.arguments.single_active
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
        if self._timed:
            self._expire_ready()
        self._give_out(check=self._timed)
        self._arm()
        if not self._behind:
            self._tell_waiting()

    def _expire_ready(self) -> None:
        """Those at the front that are too old go, some at a time: the timers bring the next.

        (One behind a longer-lived one waits for it to go.)
        """
        now = self._home.timers.now()
        expired: list[Message] = []
        while (
            len(expired) < EXPIRED_AT_ONCE and (self.ready or self._warm()) and self.ready[0].expires <= now
        ):
            expired.append(self.ready.popleft())
        self._behind = bool(self.ready) and self.ready[0].expires <= now
        if expired:
            self._count_out(expired)
            self._expired(expired)

    def _expired(self, messages: list[Message]) -> None:
        self._home.counts.expired += len(messages)
        self._home.dead_letter(self, messages, "expired")

    def _arm(self) -> None:
        deadline = self.ready[0].expires if self.ready else math.inf
        expires_ms = self.kind.arguments.expires_ms
        if expires_ms is not None and not self.in_use:
            deadline = min(deadline, self.used + expires_ms / 1000)
        if self._ask_on:
            deadline = self._home.timers.now()
        if deadline != self.deadline:
            self._home.timers.set(self, deadline)

    def delete(self) -> None:
        """Ready messages go, takers are cancelled; what is unacknowledged stays with its channel."""
        self._forget_all()
        self._home.timers.forget(self)
        takers, self.consumers = [*self.consumers], []
        feed, self.feed = self.feed, None
        for taker in takers if feed is None else (*takers, feed):
            try:
                taker.cancelled()
            except Exception as error:
                taker.crashed(error)


def _rank(consumer: Taker) -> int:
    """The highest priority stands first."""
    return -consumer.priority
