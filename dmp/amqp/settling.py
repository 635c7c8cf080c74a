"""What becomes of deliveries: acknowledgements, gathered over a stretch of input, then told to queues."""

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING

from dmp.message import Message
from dmp.queues import Queue
from dmp.refusals import Code, Refusal

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel
    from dmp.counts import Counts


class Settling:
    """One session's."""

    __slots__ = ("_counts", "_settled")

    def __init__(self, counts: "Counts") -> None:
        self._counts = counts
        self._settled: dict[Queue, list[Message]] = {}

    def take(self, channel: "Channel", tag: int, multiple: bool) -> list[tuple[Queue, Message]]:
        """Unacknowledged deliveries, taken out of the channel's books. Raises Refusal for an unknown tag."""
        unacked = channel.unacked
        if not multiple:
            found = unacked.pop(tag, None)
            if found is None:
                raise Refusal(Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
            consumer, queue, message = found
            if consumer is not None:
                consumer.unacked -= 1
            return [(queue, message)]
        if tag and tag not in unacked:
            raise Refusal(Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        taken = []
        for number in _up_to(unacked, tag):
            consumer, queue, message = unacked.pop(number)
            if consumer is not None:
                consumer.unacked -= 1
            taken.append((queue, message))
        return taken

    def settle(self, channel: "Channel", deliveries: list[tuple[Queue, Message]]) -> None:
        """They are acknowledged: the queues hear of it at the end of the stretch."""
        settled = self._settled
        for queue, message in deliveries:
            messages = settled.get(queue)
            if messages is None:
                settled[queue] = [message]
            else:
                messages.append(message)
        if channel.prefetch_all:  # room for one is room for all consumers of the channel
            for consumer in channel.consumers.values():
                settled.setdefault(consumer.queue, [])

    def settle_now(self) -> None:
        if not self._settled:
            return
        settled, self._settled = self._settled, {}
        for queue, messages in settled.items():
            if messages:
                self._counts.acknowledged += len(messages)
                queue.settle(messages)
        for queue in settled:
            if not queue.deleted:
                queue.deal()


def _up_to(unacked: Iterable[int], tag: int) -> list[int]:
    """The tags are in their order; 0 stands for the last."""
    return list(unacked) if not tag else list(takewhile(tag.__ge__, unacked))
