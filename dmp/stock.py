"""What a queue holds: messages that come, wait in order, and leave, in memory and in the queue's log.

A message is in one of three places: *unsynced* (its record waits for the disk, nobody may see it yet),
*ready*, or *unacknowledged* (a consumer has it and has not said what became of it). Non-persistent messages
that come behind unsynced ones wait with them, so that a producer's order holds.

Of a durable queue only the front need be in memory. When all queues together hold `hot_bytes`, what comes to
one whose front waits already is *cold*: it stays in the log alone, and is read back when the front has gone.
What is not persistent then goes to the log too, to keep its place.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from dmp.cold import Cold
from dmp.declarations import QueueKind
from dmp.message import Head, Message
from dmp.queue_loading import Loaded
from dmp.queue_log import QueueLog
from dmp.rows import Priorities, Ready, Row
from dmp.takers import Home
from shared.storage.store import Ticket

HOT_LEAST_BYTES = 16 << 10
"""Every queue may keep so much in memory, whatever the others do."""


class Stock:
    """A queue without those who take from it. `log`: where it is durable."""

    __slots__ = (
        "_behind",
        "_has_large",
        "_home",
        "_hot_bytes",
        "_next",
        "_started",
        "_timed",
        "_unlogged",
        "_unsynced",
        "_warming",
        "_when_warm",
        "cold",
        "deleted",
        "kind",
        "log",
        "lost",
        "name",
        "ready",
        "ready_bytes",
        "returning",
        "unacked",
        "unsynced",
        "unsynced_bytes",
    )

    def __init__(self, name: bytes, kind: QueueKind, home: Home) -> None:
        self.name = name
        self.kind = kind
        self.log: QueueLog | None = None
        self.cold: Cold | None = None
        self.ready: Ready = Priorities(kind.arguments.priority_max) if kind.arguments.priority_max else Row()
        self.ready_bytes = 0
        """Of the bodies that are ready and in memory."""
        self.returning = 0
        """So many connections give back what they had, in turns; until all is back nothing is given out."""
        self.unacked = 0
        self.unsynced = 0
        self.unsynced_bytes = 0
        """Of the bodies that wait for the disk."""
        self.deleted = False
        self.lost = False
        """Of its messages some cannot be read, and nobody has purged it since: it is not called empty."""
        self._has_large = False  # it has, or had, messages with large bodies
        self._home = home
        self._hot_bytes = 0  # what is ready in memory takes there
        self._started = 0.0
        self._next = 0  # the number of the next message
        self._timed = kind.arguments.ttl_ms is not None  # some message may expire
        self._behind = False  # the next one out has expired: they are so many that their end takes turns
        self._unsynced: deque[tuple[Ticket | None, list[Message]]] = deque()
        self._unlogged = 0  # of these, without a record
        self._warming = False
        self._when_warm: list[Callable[[], None]] = []

    def keep_in(self, log: QueueLog) -> None:
        """It is durable. (What has priorities is all in memory: its front is wherever the next one comes.)"""
        self.log = log
        if isinstance(self.ready, Row):
            self.cold = Cold(log)

    @property
    def depth(self) -> int:
        """How many are ready."""
        return len(self.ready) if self.cold is None else len(self.ready) + self.cold.count

    @property
    def depth_bytes(self) -> int:
        """Their bodies."""
        return self.ready_bytes if self.cold is None else self.ready_bytes + self.cold.body_bytes

    @property
    def empty(self) -> bool:
        """Nothing stands before a message that would come now."""
        return not (self.ready or self._unsynced or self.returning or self.paged)

    @property
    def paged(self) -> bool:
        """Some of it is cold: what comes now needs a record."""
        return self.cold is not None and self.cold.count > 0

    # -- in

    def number(self, head: Head, bodies: Sequence[bytes], first: int | None = None) -> list[Message]:
        """Messages of this queue, not yet in it; `first`: where these had numbers before."""
        if first is None:
            first = self._next
            self._next += len(bodies)
        messages = [Message(head, body, number) for number, body in enumerate(bodies, first)]
        if self._timed or head.ttl_ms is not None:
            expires = self._expires(head, self._home.timers.now())
            for message in messages:
                message.expires = expires
        return messages

    def publish_logged(self, messages: list[Message], ticket: Ticket) -> None:
        """Messages from `number` whose records are appended: they are ready when the ticket is done."""
        self._hold(messages, ticket)
        ticket.when_done(self._synced)

    def publish_numbered(self, messages: list[Message]) -> None:
        """Messages from `number` that need no record. Those of large bodies wait until these are written."""
        if self.deleted:
            return
        last = messages[-1]
        written = self._home.bodies[last.body].written if last.head.large else None
        if written is None or written.done:
            self._hold(messages, None)
        else:
            self.publish_logged(messages, written)

    def recovered(self, found: Loaded) -> None:
        """What the log held; times to live begin anew."""
        messages = found.messages
        self._started = self._home.timers.now()
        for message in messages:
            message.expires = self._expires(message.head, self._started)
        self._next = found.following
        self.lost = bool(found.lost)
        count = len(messages)
        if found.cold is not None:
            assert self.cold is not None
            self.cold.restore(found.cold, found.following)
            count += found.cold.count
            self._has_large = bool(found.cold.large)
        self._has_large = self._has_large or any(message.head.large for message in messages)
        self._home.memory.take(_cost(messages))
        self._home.counts.recovered += count
        self._put_in_front(messages)
        self._came()

    def _expires(self, head: Head, since: float) -> float:
        ttls_ms = [ms for ms in (head.ttl_ms, self.kind.arguments.ttl_ms) if ms is not None]
        if not ttls_ms:
            return math.inf
        self._timed = True
        return since + min(ttls_ms) / 1000

    def _hold(self, messages: list[Message], ticket: Ticket | None) -> None:
        self._home.memory.take(messages[0].head.cost_bytes * len(messages))
        if messages[0].head.large:
            self._has_large = True
            for message in messages:
                self._home.bodies.hold(message.body)
        unsynced = self._unsynced
        if unsynced or ticket is not None:
            self.unsynced += len(messages)
            self.unsynced_bytes += messages[0].head.body_bytes * len(messages)
            if messages[0].offset < 0:
                self._unlogged += len(messages)
            if unsynced and unsynced[-1][0] is ticket:
                unsynced[-1][1].extend(messages)
            else:
                unsynced.append((ticket, messages))
            return
        self._make_ready(messages)

    def _synced(self, _: Ticket) -> None:
        try:
            self._take_synced()
        except Exception as error:
            self._home.crashed(error)

    def _take_synced(self) -> None:
        unsynced = self._unsynced
        while unsynced:
            ticket, messages = unsynced[0]
            if ticket is not None and not ticket.done:
                break
            unsynced.popleft()
            if self.deleted:
                continue
            self.unsynced -= len(messages)
            self.unsynced_bytes -= sum([message.head.body_bytes for message in messages])
            if self._unlogged:
                self._unlogged -= sum([message.offset < 0 for message in messages])
            if ticket is not None and ticket.error is not None:
                self._home.memory.give(_cost(messages))
                self._let_go(messages)
            else:
                self._make_ready(messages)

    def _make_ready(self, messages: list[Message]) -> None:
        if self._timed and self.ready:
            self._expire_ready()
        cold = self.cold
        if cold is not None and (cold.count or self._turns_cold(messages)):
            cold.add(messages)
            self._home.memory.give(_cost(messages))
        else:
            if self.log is not None:
                self.log.keep(messages)
            self.ready.extend(messages)
            self._count_in(messages)
        self._came()

    def _turns_cold(self, messages: list[Message]) -> bool:
        """Memory is scarce, nobody takes what is ready, and each of what is to follow has a record."""
        return (
            self._home.memory.scarce
            and self._hot_bytes > HOT_LEAST_BYTES
            and not self._unlogged
            and messages[0].offset >= 0
            and messages[-1].offset >= 0
        )

    def _put_in_front(self, messages: list[Message]) -> None:
        if messages:
            self.ready.put_back(messages)
            self._count_in(messages)

    def _count_in(self, messages: Sequence[Message]) -> None:
        self.ready_bytes += sum([message.head.body_bytes for message in messages])
        self._hot_bytes += _cost(messages)

    def _count_out(self, messages: Sequence[Message]) -> None:
        """They were taken out of `ready`."""
        self.ready_bytes -= sum([message.head.body_bytes for message in messages])
        self._hot_bytes -= _cost(messages)

    # -- what is cold

    def when_warm(self, callback: Callable[[], None]) -> None:
        """Call it once, when what is on its way from the log is there."""
        self._when_warm.append(callback)

    @property
    def warming(self) -> bool:
        """Something is ready, and on its way from the log, or behind what has expired and is not gone yet, or
        what comes back."""
        if self.ready or self.returning:
            return self._behind or self.returning > 0
        return self.cold is not None and self.cold.reading

    @property
    def damaged(self) -> bool:
        """Nothing can be given out, and that is not because nothing is left."""
        return not self.ready and (self.lost or (self.cold is not None and self.cold.damaged is not None))

    def _warm(self) -> bool:
        """Have more of what is cold in memory, where nothing else is; whether something is there now."""
        cold = self.cold
        if cold is not None and cold.count:
            self._warming = True
            try:
                cold.warm(self._warmed)
            finally:
                self._warming = False
        return bool(self.ready)

    def _warmed(self, messages: list[Message]) -> None:
        cold, home = self.cold, self._home
        assert cold is not None
        if cold.damaged is not None:
            home.queue_damaged(self.name, cold.damaged)
        if cold.lost is not None and not self.lost:
            self.lost = True
            home.queue_lost(self.name, cold.lost)
        for message in messages:
            if message.redelivered:
                message.expires = self._expires(message.head, self._started)
        home.memory.take(_cost(messages))
        self.ready.extend(messages)
        self._count_in(messages)
        if not self._warming:  # it came later: those who wait for it must hear of it
            try:
                self._warmed_up()
            except Exception as error:
                home.crashed(error)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._when_warm = self._when_warm, []
        for callback in waiting:
            callback()

    # -- out

    def _pop(self) -> Message:
        message = self.ready.popleft()
        self._count_out((message,))
        return message

    def leave(self, messages: Sequence[Message]) -> None:
        """They are gone: from the queue, from all books, and from its log."""
        if messages:
            self._home.memory.give(_cost(messages))
            self._taken(messages)
            self._let_go(messages)

    def _taken(self, messages: Sequence[Message]) -> None:
        """They go from the log."""
        log = self.log
        if log is not None and messages:
            for message in messages:
                if message.offset >= 0:
                    log.take(message)
            self._home.log_changed(log)

    def lose(self, messages: Sequence[Message]) -> None:
        """They leave the queue's books, and their records are another's care."""
        self._home.memory.give(_cost(messages))
        self._let_go(messages)

    def _let_go(self, messages: Iterable[Message]) -> None:
        """Of their large bodies."""
        if self._has_large:
            for message in messages:
                if message.head.large:
                    self._home.bodies.drop(message.body)

    def _let_cold_go(self, cold: Cold) -> None:
        large, cold.large = cold.large, {}
        for reference in large.values():
            self._home.bodies.drop(reference)
        cold.clear()

    def _without_damaged(self, messages: list[Message]) -> list[Message]:
        """What comes back, but for those whose bodies cannot be read: they are lost, and not deleted."""
        bodies = self._home.bodies
        lost = [message for message in messages if message.head.large and bodies[message.body].damaged]
        if not lost:
            return messages
        self.lost = True
        self._home.memory.give(_cost(lost))
        return [message for message in messages if message not in lost]

    def put_back(self, messages: list[Message], *, given: bool) -> None:
        """They come back to their old places, somebody may have seen them where `given`. `deal` is yours."""
        if self._has_large:
            messages = self._without_damaged(messages)
        if given:
            for message in messages:
                message.redelivered = True
        messages.sort(key=attrgetter("number"))
        self._put_in_front(messages)

    def take_back(self, head: Head, bodies: Sequence[bytes]) -> None:
        """The last that the feed was given comes back, unwritten, before all that is ready. You `deal`."""
        following = self.ready.first_number() if self.ready else self._next
        messages = self.number(head, bodies, following - len(bodies))
        self._home.memory.take(_cost(messages))
        self._home.counts.delivered -= len(messages)
        self.put_back(messages, given=False)

    def purge(self) -> int:
        """Throw away what is ready; how many that were. What is lost is not missed any more. Raises
        StoreError.

        In one stretch, a microsecond for each durable message in memory (`hot_bytes` bounds those): they
        leave the log in one record, so that a crash takes back all of it or nothing.
        """
        messages = list(self.ready) if self.log is not None or self._has_large else []
        count = self.depth
        if self.lost and self.log is not None:
            self.log.lost_is_known()
            self.lost = False
        if self.cold is not None and self.cold.count:
            assert self.log is not None
            self.log.take_cold(self.cold.first, self.cold.end)
            self._let_cold_go(self.cold)
            self._tell_waiting()
        self.ready.clear()
        self._home.memory.give(self._hot_bytes)
        self.ready_bytes = self._hot_bytes = 0
        self._behind = False
        self._taken(messages)
        self._let_go(messages)
        return count

    def _forget_all(self) -> None:
        """The queue is deleted, with its log."""
        self.deleted = True
        held = [message for _, messages in self._unsynced for message in messages]
        self._home.memory.give(self._hot_bytes + _cost(held))
        self._let_go((*self.ready, *held) if self._has_large else ())
        self.ready.clear()
        self.ready_bytes = self._hot_bytes = self.unsynced = self.unsynced_bytes = self._unlogged = 0
        self._unsynced.clear()
        if self.cold is not None:
            self._let_cold_go(self.cold)
        self._tell_waiting()

    # -- what a queue does then

    def _came(self) -> None:
        """More is ready, or cold."""
        raise NotImplementedError

    def _warmed_up(self) -> None:
        """More is in memory than a moment ago."""
        raise NotImplementedError

    def _expire_ready(self) -> None:
        raise NotImplementedError


def _cost(messages: Sequence[Message]) -> int:
    return sum([message.head.cost_bytes for message in messages])
