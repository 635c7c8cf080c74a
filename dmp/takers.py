"""What a queue deals with: who takes from it, and the broker that it is in."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dmp.counts import Counts
from dmp.memory import Memory
from dmp.message import Head, Message
from dmp.timers import Timers

if TYPE_CHECKING:
    from dmp.queue_log import QueueLog
    from dmp.queues import Queue


class Taker(Protocol):
    """Who takes messages from a queue: a consumer of a channel, or a feed.

    `deliver` and `deliver_run` must not call back into the queue.
    """

    no_ack: bool
    """What is delivered is gone; else it is unacknowledged until `Queue.settle` or `Queue.requeue`."""

    def room(self) -> tuple[int, int]:
        """How many messages, and how many bytes, it would take now; one message always fits in the bytes."""

    def deliver(self, messages: list[Message]) -> None:
        """At most as many as there is room for."""

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        """The same for a run that was never queued; only where `no_ack`."""

    def cancelled(self) -> None:
        """The queue is gone."""


class Feed(Taker, Protocol):
    """The reading end of a DMP connection; `no_ack`."""

    def deliver_whole(self, data: bytes, exchange: bytes) -> None:
        """Messages that came by a sink, as they stand there; `exchange`: what the sink is."""


class Home(Protocol):
    """What a queue asks of its broker."""

    counts: Counts
    memory: Memory
    timers: Timers

    def dead_letter(self, queue: "Queue", messages: list[Message], reason: str) -> None:
        """They left the queue by `reason`: pass them on where the queue has a dead-letter exchange."""

    def log_changed(self, log: "QueueLog") -> None:
        """Something was taken from a durable queue: have it flushed at the end of the round."""

    def queue_unused(self, queue: "Queue") -> None:
        """Nobody has used it for as long as it asked for: delete it."""

    def queue_above_warning(self, queue: "Queue") -> None:
        """More is ready than the settings find normal."""
