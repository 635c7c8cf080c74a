"""What a queue deals with: who takes from it, and the broker that it is in."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dmp.bodies import Bodies
from dmp.memory import Memory
from dmp.message import Head, Message
from dmp.metrics import Counts
from dmp.rows import Ready
from shared.errors import StoreError
from shared.queues.timers import Timers
from shared.storage.log import Lost

if TYPE_CHECKING:
    from dmp.queue_log import QueueLog
    from dmp.queues import Queue

_DEAL_MAX = 256
"""Messages given to consumers at once before their outboxes are looked at again."""


class Taker(Protocol):
    """Who takes messages from a queue: a consumer of a channel, or a feed.

    `deliver` and `deliver_run` must not call back into the queue. What any of these raises is a bug of the
    taker's connection, and ends that: the queue is dealing on somebody else's time.
    """

    no_ack: bool
    """What is delivered is gone; else it is unacknowledged until `Queue.settle` or `Queue.requeue`."""
    priority: int
    """Nobody with a lower one is given anything while this one has room."""

    def room(self) -> tuple[int, int]:
        """How many messages, and how many bytes, it would take now; one message always fits in the bytes."""

    def deliver(self, messages: list[Message]) -> None:
        """At most as many as there is room for."""

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        """The same for a run that was never queued; only where `no_ack`."""

    def cancelled(self) -> None:
        """The queue is gone."""

    def crashed(self, error: Exception) -> None:
        """One of these calls has raised it. Unless `no_ack`, what was to be delivered is unacknowledged."""


class Feed(Taker, Protocol):
    """The reading end of a DMP connection; `no_ack`."""

    def deliver_whole(self, data: bytes, exchange: bytes) -> None:
        """Messages that came by a sink, as they stand there; `exchange`: what the sink is."""


class Home(Protocol):
    """What a queue asks of its broker."""

    bodies: Bodies
    counts: Counts
    memory: Memory
    timers: Timers

    def dead_letter(self, queue: "Queue", messages: list[Message], reason: str) -> None:
        """They left the queue by `reason`: pass them on where the queue has a dead-letter exchange."""

    def log_changed(self, log: "QueueLog") -> None:
        """Something was taken from a durable queue: have it flushed at the end of the round."""

    def queue_unused(self, queue: "Queue") -> None:
        """Nobody has used it for as long as it asked for: delete it."""

    def crashed(self, error: Exception) -> None:
        """The queue's own code has failed where nobody waits for it: on the time of the store."""

    def queue_damaged(self, name: bytes, error: StoreError) -> None:
        """What it has on disk alone cannot be read."""

    def queue_lost(self, name: bytes, lost: Lost) -> None:
        """What it had on disk alone is damaged there, and passed over."""

    def queue_above_warning(self, queue: "Queue") -> None:
        """More is ready than the settings find normal."""


Share: TypeAlias = tuple[Taker, list[Message], int, int]
"""What a taker gets: messages, at most so many, and bytes until there are no more left."""


def room_of(taker: Taker) -> tuple[int, int]:
    """Its room; none where it crashes."""
    try:
        return taker.room()
    except Exception as error:
        taker.crashed(error)
        return 0, 0


def able(takers: Sequence[Taker], most: int) -> list[Share]:
    """The first `most` that have room, with nothing yet."""
    shares: list[Share] = []
    for taker in takers:
        try:
            count, room_bytes = taker.room()
        except Exception as error:
            taker.crashed(error)
            continue
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
        count = min(count, _DEAL_MAX, len(ready))
        while given < count and room_bytes >= 0:
            message = ready.popleft()
            messages.append(message)
            room_bytes -= message.head.body_bytes
            given += 1
        return given
    rooms = [room_bytes for _, _, _, room_bytes in shares]
    rounds = min(_DEAL_MAX // len(shares) + 1, min(count for _, _, count, _ in shares))
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
