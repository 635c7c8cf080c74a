"""What becomes of deliveries: acknowledgements, gathered over a stretch of input, then given to queues."""

import struct
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from dmp.message import Message
from dmp.queues import Queue
from dmp.refusals import Code, Refusal
from dmp.takers import LOOKED_AT_ONCE

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel
    from dmp.amqp.session import AmqpSession
    from dmp.metrics import Counts

ACK_FRAME_BYTES = 21
_ACK_BEGINNING = 11
_END = 0xCE
_ack_fields = struct.Struct(">QBB").unpack_from


class Settling:
    """One session's."""

    __slots__ = ("_counts", "_roomy", "_settled")

    def __init__(self, counts: "Counts") -> None:
        self._counts = counts
        self._settled: dict[Queue, list[Message]] = {}
        self._roomy: dict[Channel, None] = {}  # where something was settled that had kept others waiting

    def take_run(self, session: "AmqpSession", channel: "Channel", data: bytes, at: int) -> int:
        """Acknowledgements that stand at `at`, one behind the other; where they end. Raises Refusal.

        `session.at` is behind the one that is refused. The first is known to begin as one does.
        """
        beginning = data[at : at + _ACK_BEGINNING]
        unacked, settled, end = channel.unacked, self._settled, len(data)
        while at + ACK_FRAME_BYTES <= end and data.startswith(beginning, at):
            tag, multiple, frame_end = _ack_fields(data, at + _ACK_BEGINNING)
            if frame_end != _END:
                break
            at = session.at = at + ACK_FRAME_BYTES
            if multiple & 1:
                self.settle(channel, self.take(channel, tag, True))
                continue
            found = unacked.pop(tag, None)
            if found is None:
                raise _unknown(tag)
            consumer, queue, message = found
            if consumer is not None:
                consumer.unacked -= 1
            messages = settled.get(queue)
            if messages is None:
                settled[queue] = [message]
            else:
                messages.append(message)
        self.settle(channel, ())
        return at

    def take(self, channel: "Channel", tag: int, multiple: bool) -> list[tuple[Queue, Message]]:
        """Unacknowledged deliveries, taken out of the channel's books. Raises Refusal for an unknown tag.

        All in one stretch, about a microsecond each, `unacked_max` at most: the next tag may be one of them.
        """
        unacked = channel.unacked
        taken = []
        for number in tags_of(unacked, tag, multiple):
            consumer, queue, message = unacked.pop(number)
            if consumer is not None:
                consumer.unacked -= 1
            taken.append((queue, message))
        return taken

    def settle(self, channel: "Channel", deliveries: Sequence[tuple[Queue, Message]]) -> None:
        """They are acknowledged: the queues hear of it at the end of the stretch."""
        settled = self._settled
        for queue, message in deliveries:
            messages = settled.get(queue)
            if messages is None:
                settled[queue] = [message]
            else:
                messages.append(message)
        if channel.crowded or channel.prefetch_all:  # room for one is room for all its consumers
            channel.crowded = False
            self._roomy[channel] = None

    def settle_now(self) -> int:
        """Tell the queues, and have them deal; how much work that was beside the messages."""
        for channel in self._roomy:
            for consumer in channel.consumers.values():
                self._settled.setdefault(consumer.queue, [])
        self._roomy.clear()
        if not self._settled:
            return 0
        settled, self._settled = self._settled, {}
        for queue, messages in settled.items():
            if messages:
                self._counts.acknowledged += len(messages)
                queue.settle(messages)
        work = 0
        for queue in settled:
            if not queue.deleted:
                work += 1 + min(len(queue.consumers), LOOKED_AT_ONCE) // 2
                queue.deal()
        return work


def tags_of(unacked: Collection[int], tag: int, multiple: bool) -> list[int]:
    """Which of those that are unacknowledged are meant. They are in their order; 0 stands for the last.

    Raises Refusal for an unknown tag.
    """
    if tag not in unacked and (tag or not multiple):
        raise _unknown(tag)
    if not multiple:
        return [tag]
    return list(unacked) if not tag else list(takewhile(tag.__ge__, unacked))


def _unknown(tag: int) -> Refusal:
    return Refusal(Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
