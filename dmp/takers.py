"""Who takes messages from a queue: the interface of a consumer, and whose turn it is.

Consumers with the highest priority come first, the others while these have no room. Those of one priority
take turns, message by message. Where a queue wants a single active consumer, the first gets everything until
it goes; then the one with the highest priority that has been there longest.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol, TypeAlias

import attrs

from dmp.message import Head
from dmp.row import Row
from shared.queues.runs import Run

_DISPATCHED_MAX = 256  # messages given to consumers at once before their outboxes are looked at again
_DISPATCHED_BYTES_MAX = 1 << 20  # and bytes of them, to many consumers together


class Taker(Protocol):
    """A consumer of a channel, or a feed.

    `deliver` and `deliver_run` must not call back into the queue. An error that any of these raises is a bug
    of the taker's connection and ends that: the queue dispatches on somebody else's time.
    """

    no_ack: bool
    """What is delivered is gone; else it is unacknowledged until the queue is told what became of it."""
    priority: int  # nobody with a lower one is given anything while this one has room

    @property
    def pool(self) -> object | None:
        """Takers with the same pool share the count of their room; None: it is this one's alone."""

    def room(self) -> tuple[int, int]:
        """How many messages, and how many bytes, it would take now; one message always fits in the bytes."""

    def deliver(self, runs: list[Run]) -> None:
        """Get messages, at most as many as there is room for."""

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        """Get a run of messages that was never queued; only where `no_ack`."""

    def cancelled(self) -> None:
        """The queue is gone."""

    def fail(self, error: Exception) -> None:
        """One of these calls has raised `error`. Unless `no_ack`, what was to be delivered is
        unacknowledged."""


class FeedTaker(Taker, Protocol):
    """The reading end of a DMP connection; `no_ack`."""

    def deliver_whole(self, chunk: bytes | memoryview, count: int) -> None:
        """Get `count` messages that came by a sink, in the bytes that came."""


Share: TypeAlias = tuple[Taker, list[Run], int, int]
"""What a taker gets: messages, at most so many, and bytes until there are no more left."""


class _Row(OrderedDict[Taker, None]):
    """The consumers of one priority, the one first that has waited longest. One may go from anywhere at no
    cost."""

    __slots__ = ("priority",)

    def __init__(self, priority: int) -> None:
        super().__init__()
        self.priority = priority


@attrs.define(eq=False)
class Takers:
    """The takers of one queue: its consumers, and the `feed`, which gets everything while it is there.

    `single`: only one consumer is active. `count`: of consumers; to come and to go costs the same, however
    many there are. `active`: the first to come, and after it the first of those with the highest priority.
    `exclusive`: a consumer wants to be the only one. `were_some`: somebody has taken from the queue before.
    `blocked`: nobody has room, until something changes.
    """

    single: bool
    count: int = 0
    feed: FeedTaker | None = None
    exclusive: bool = False
    were_some: bool = False
    blocked: bool = False
    active: tuple[Taker, ...] = ()  # none, or one
    _rows: list[_Row] = attrs.Factory(list)  # the highest priority first, none of them empty

    @property
    def in_use(self) -> bool:
        return self.count > 0 or self.feed is not None

    @property
    def number(self) -> int:
        """How many there are, the feed among them."""
        return self.count + (self.feed is not None)

    def attach(self, feed: FeedTaker) -> None:
        assert self.feed is None, "a queue has one feed"
        self.feed = feed
        self.were_some = True

    def add(self, consumer: Taker) -> None:
        rank = _rank(consumer)
        at = bisect_left(self._rows, rank, key=_rank)
        if at == len(self._rows) or _rank(self._rows[at]) != rank:
            self._rows.insert(at, _Row(consumer.priority))
        self._rows[at][consumer] = None
        self.count += 1
        self.active = self.active or (consumer,)
        self.were_some = True
        self.blocked = False

    def remove(self, consumers: Iterable[Taker]) -> None:
        """Remove those, which must be there."""
        self.exclusive = False
        for consumer in consumers:
            at = bisect_left(self._rows, _rank(consumer), key=_rank)
            row = self._rows[at]
            del row[consumer]
            self.count -= 1
            if not row:
                del self._rows[at]
            if consumer in self.active:
                self.active = tuple(islice(chain.from_iterable(self._rows), 1))

    def __iter__(self) -> Iterator[Taker]:
        """The consumers, those with the highest priority first, and then the feed."""
        feed = () if self.feed is None else (self.feed,)
        return chain(chain.from_iterable(self._rows), feed)

    def clear(self) -> list[Taker]:
        """Remove all, and return them."""
        takers = [*self]
        self._rows.clear()
        self.active, self.count, self.feed = (), 0, None
        return takers

    def shares(self, most: int) -> list[Share]:
        """Who is next: up to `most` takers that have room, with nothing yet. It is the feed, or the consumers
        with the highest priority of which some has room, in order."""
        if self.blocked:
            return []
        shares: list[Share] = []
        if self.feed is not None:
            shares = shares_of((self.feed,), most)
        elif self.single or self.count < 2:
            shares = shares_of(self.active, most)
        else:
            for row in self._rows:
                shares = shares_of(row, most)
                if shares:
                    break
        self.blocked = not shares
        return shares

    def given(self, shares: Sequence[Share], count: int) -> None:
        """The takers of `shares` were given `count` messages in turn. Who had none has waited longest, also
        for room in a pool."""
        if self.feed is None and not self.single and self.count > 1:
            last = count % len(shares)
            row = self._rows[bisect_left(self._rows, _rank(shares[0][0]), key=_rank)]
            for taker, runs, _, _ in (*shares[last:], *shares[:last]):
                if runs:
                    row.move_to_end(taker)

    def have_room(self) -> bool:
        """Whether somebody would be given something now."""
        return bool(self.shares(1))


def _rank(of: Taker | _Row) -> int:
    """The highest priority stands first."""
    return -of.priority


def room_of(taker: Taker) -> tuple[int, int]:
    """A taker's room; none where it crashes."""
    try:
        return taker.room()
    except Exception as error:
        taker.fail(error)
        return 0, 0


def shares_of(takers: Collection[Taker], most: int) -> list[Share]:
    """The first `most` that have room, with nothing yet. Those of a pool are given what is left there
    together."""
    shares: list[Share] = []
    pools: dict[object, int] = {}
    several = len(takers) > 1
    for taker in takers:
        count, room_bytes = room_of(taker)
        pool = taker.pool if several else None
        there = 0 if pool is None else pools.get(pool, 0)
        if count > there:
            if pool is not None:
                pools[pool] = there + 1
            shares.append((taker, [], count, room_bytes))
            if len(shares) == most:
                break
    if pools and len(shares) > 1:
        shares = [
            (taker, [], max(1, count // pools.get(taker.pool, 1)), room_bytes)
            for taker, _, count, room_bytes in shares
        ]
    return shares


def share_out(row: Row, shares: Sequence[Share], allowed: int, now: float) -> int:
    """One message to each in turn, until one has no more room or enough is given, `allowed` at most, or the
    next one has expired by `now`; how many were given."""
    if len(shares) == 1:
        _, runs, count, room_bytes = shares[0]
        runs += row.take(min(count, _DISPATCHED_MAX, allowed), room_bytes, now)
        return len(runs[0].bodies) if len(runs) == 1 else sum([len(run.bodies) for run in runs])
    among = len(shares)
    count = min([count for _, _, count, _ in shares])
    least_bytes = min([room_bytes for _, _, _, room_bytes in shares])
    bytes_most = min(least_bytes, _DISPATCHED_BYTES_MAX)
    runs = row.take(min(_DISPATCHED_MAX, among * count, allowed), bytes_most, now)
    given = [message for run in runs for message in run.singles()]
    for at, (_, messages, _, _) in enumerate(shares):
        messages += given[at::among]
    return len(given)
