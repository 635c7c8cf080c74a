"""Who takes messages from a queue: the interface of a consumer, and whose turn it is.

Consumers with the highest priority come first, the others while these have no room. Those of one priority
take turns, message by message. Where a queue wants a single active consumer, the first gets everything until
it goes; then the one with the highest priority that has been there longest.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import attrs

from dmp.message import Head, Message
from dmp.ready import Ready

LOOKED_AT_ONCE = 1024  # consumers asked for their room before others have their turn: about a millisecond
_DISPATCHED_MAX = 256  # messages given to consumers at once before their outboxes are looked at again


class Taker(Protocol):
    """A consumer of a channel, or a feed.

    `deliver` and `deliver_run` must not call back into the queue. An error that any of these raises is a bug
    of the taker's connection and ends that: the queue dispatches on somebody else's time.
    """

    no_ack: bool
    """What is delivered is gone; else it is unacknowledged until the queue is told what became of it."""
    priority: int  # nobody with a lower one is given anything while this one has room

    def room(self) -> tuple[int, int]:
        """How many messages, and how many bytes, it would take now; one message always fits in the bytes."""

    def deliver(self, messages: list[Message]) -> None:
        """At most as many as there is room for."""

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        """The same for a run that was never queued; only where `no_ack`."""

    def cancelled(self) -> None:
        """The queue is gone."""

    def fail(self, error: Exception) -> None:
        """One of these calls has raised it. Unless `no_ack`, what was to be delivered is unacknowledged."""


class FeedTaker(Taker, Protocol):
    """The reading end of a DMP connection; `no_ack`."""

    def deliver_whole(self, chunks: Sequence[bytes | memoryview], count: int, exchange: bytes) -> None:
        """So many messages that came by a sink, as they stand there; `exchange`: what the sink is."""


Share: TypeAlias = tuple[Taker, list[Message], int, int]
"""What a taker gets: messages, at most so many, and bytes until there are no more left."""


@attrs.define(eq=False)
class Consumers:
    """The consumers of one queue, the highest priority first. `single`: only one is active."""

    single: bool
    members: list[Taker] = attrs.Factory(list)
    _level: int = 0  # where the priority begins whose turn it is: nobody before that has room
    _start: int = 0  # whose turn it is among these
    _refused: int = 0  # so many of these in a row had no room

    def __len__(self) -> int:
        return len(self.members)

    def add(self, consumer: Taker) -> None:
        first = 1 if self.single and self.members else 0  # the active one stays active
        insort(self.members, consumer, first, key=_rank)
        self._level = 0

    def remove(self, consumers: Iterable[Taker]) -> None:
        gone = set(consumers)
        self.members = [consumer for consumer in self.members if consumer not in gone]
        self._level = 0

    def start_over(self) -> None:
        """Those that had no room may have some now."""
        self._level = self._refused = 0

    def in_turn(self) -> Sequence[Taker]:
        """Whose turn it is, in order; some of them, where they are very many."""
        members = self.members
        if len(members) <= 1:
            return members
        if self.single:
            return members[:1]
        first, last = self._level, self._level_end()
        start = first + self._start % (last - first)
        end = start + LOOKED_AT_ONCE
        if end <= last:
            return members[start:end]
        return members[start:last] + members[first : min(first + end - last, start)]

    def given(self, count: int) -> None:
        """Those whose turn it was took so many messages."""
        self._start += count
        self._refused = 0

    def pass_on(self, count: int) -> bool:
        """So many whose turn it was have no room. Returns whether it is somebody else's turn now."""
        self._refused += count
        end = self._level_end()
        if not self.single and self._refused < end - self._level:
            self._start += count
            return True
        self._refused = 0
        if not self.single and end < len(self.members):
            self._level = end
            return True
        return False

    def have_room(self) -> bool:
        """Whether somebody does, among those that are asked first."""
        takers = self.in_turn()
        if not self.single and self._level_end() - self._level < len(self.members):
            takers = self.members[:LOOKED_AT_ONCE]
        return any(room_of(taker)[0] > 0 for taker in takers)

    def _level_end(self) -> int:
        """Where the consumers end that have the priority whose turn it is."""
        members, first = self.members, self._level
        if not members or members[first].priority == members[-1].priority:
            return len(members)
        return bisect_right(members, _rank(members[first]), first, key=_rank)


def _rank(consumer: Taker) -> int:
    """The highest priority stands first."""
    return -consumer.priority


def room_of(taker: Taker) -> tuple[int, int]:
    """Its room; none where it crashes."""
    try:
        return taker.room()
    except Exception as error:
        taker.fail(error)
        return 0, 0


def able(takers: Sequence[Taker], most: int) -> list[Share]:
    """The first `most` that have room, with nothing yet."""
    shares: list[Share] = []
    for taker in takers:
        count, room_bytes = room_of(taker)
        if count > 0:
            shares.append((taker, [], count, room_bytes))
            if len(shares) == most:
                break
    return shares


def share_out(ready: Ready, shares: Sequence[Share]) -> int:
    """One message to each in turn, until one has no more room or enough is given; how many were given."""
    given = 0
    if len(shares) == 1:
        _, messages, count, room_bytes = shares[0]
        count = min(count, _DISPATCHED_MAX, len(ready))
        while given < count and room_bytes >= 0:
            message = ready.popleft()
            messages.append(message)
            room_bytes -= message.head.body_bytes
            given += 1
        return given
    rooms = [room_bytes for _, _, _, room_bytes in shares]
    rounds = min(_DISPATCHED_MAX // len(shares) + 1, min(count for _, _, count, _ in shares))
    for _ in range(rounds):
        for at, (_, messages, _, _) in enumerate(shares):
            if not ready:
                break
            message = ready.popleft()
            messages.append(message)
            rooms[at] -= message.head.body_bytes
            given += 1
        if not ready or min(rooms) < 0:
            break
    return given
