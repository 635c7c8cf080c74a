"""What was asked of AMQP's durable queues, and what was confirmed and delivered.

A message that is published to several queues is one in each. Nothing is answered to an acknowledgement. It
counts as confirmed here with the next publish on its channel that is: by then the server has read it, and
what it has read before is on disk with that publish, or before.

Some queues have keys: what may not be of those is judged when a message is read. A queue takes messages once:
one whose name is known already is not among those that were sent, so that it is a fault wherever it is seen.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from tests.trials.peers import Asked
from tests.trials.queue_ledger import Message, QueueBook

LATER = "later"
"""The queue whose messages have a delay."""
KEYED: Mapping[str, Mapping[str, Any]] = {
    "keyed": {"x-per-key": 1},
    "fair": {"x-per-key": 2, "x-fair": True},
}
"""The queues whose messages have keys, and their arguments."""
ONCE = "once"
"""The queue that takes a name once; no trial takes as long as it knows it."""
ARGUMENTS = {**KEYED, ONCE: {"x-message-deduplication": True, "x-cache-ttl": 86_400_000}}
QUEUES = ("orders", "mails", "audit", "marks", LATER, *ARGUMENTS)
FANOUT = ("orders", "audit")
"""The queues that one publish may go to together."""
EXCHANGE = "both"


@attrs.define(eq=False)
class DmpBook:
    """All queues of one broker, which has one `mode` for all of them."""

    mode: str = "always"
    queues: dict[str, QueueBook] = attrs.field(
        factory=lambda: {name: QueueBook(name, "always") for name in QUEUES}
    )
    places: int = 0
    earliest: dict[bytes, float] = attrs.field(factory=dict)
    """When messages with a delay may come, by body."""
    keys: dict[bytes, str] = attrs.field(factory=dict)
    """By body, of what was sent to a queue with keys; empty: it has none."""
    unacked: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """By queue and key: how many are held."""
    to_ack: dict[tuple[str, str], dict[bytes, Message]] = attrs.field(factory=dict)
    """By queue and key: those no acknowledgement was sent for, in the order in which they were sent."""
    named: list[tuple[str, Message]] = attrs.field(factory=list)
    """Names that a queue takes once, and the first message of each."""

    def send(self, body: bytes, queues: Iterable[str], writer: str, now: float) -> list[Message]:
        """A publish to these queues."""
        self.places += 1
        messages = [self.queues[name].send(body, writer, now) for name in queues]
        for message in messages:
            message.place = self.places
            message.others = [other for other in messages if other is not message]
        return messages

    def send_keyed(self, body: bytes, queue: str, key: str, writer: str, now: float) -> list[Message]:
        """A publish to a queue with keys."""
        (message,) = self.send(body, (queue,), writer, now)
        self.keys[body] = key
        self.to_ack.setdefault((queue, key), {})[body] = message
        return [message]

    def deliver_keyed(self, queue: str, message: Message) -> Iterator[str]:
        """A message of a queue with keys was read: what is wrong with that."""
        most, place = KEYED[queue]["x-per-key"], (queue, self.keys[message.key])
        shown = f"{queue}: {message.key[:48]!r}"
        self.unacked[place] += 1
        if not place[1]:
            return
        if self.unacked[place] > most:
            yield f"{shown}: a {self.unacked[place]}. of its key {place[1]!r} is held"
        if most > 1:
            return
        for earlier in self.to_ack.get(place, {}).values():
            if earlier.place >= message.place:
                break
            if not earlier.refused and _is_before(earlier, message):
                yield f"{shown}: an earlier one of its key was not acknowledged: {earlier.key[:48]!r}"
                break

    def settle_keyed(self, queue: str, message: Message, *, acked: bool) -> None:
        """A message of a queue with keys is held no more."""
        place = queue, self.keys[message.key]
        self.unacked[place] -= 1
        if acked:
            self.to_ack.get(place, {}).pop(message.key, None)

    def new_life(self, until: float) -> None:
        """The server has ended. What was confirmed by `until` was promised to outlive that."""
        self.unacked.clear()
        self.named = [(name, first) for name, first in self.named if first.promised(until)]

    def drained(self, now: float) -> None:
        """All that was found in queues with keys was taken, and acknowledged without an answer."""
        self.to_ack.clear()
        for name in KEYED:
            for message in self.queues[name].messages.values():
                message.ack = Asked(now)

    def promised(self, until: float) -> int:
        """Confirmed by then, since the last verification, and not acknowledged."""
        return sum(
            bool(message.answered) and message.must_stand(until) and message.ack is None
            for queue in self.queues.values()
            for message in queue.messages.values()
        )


def _is_before(one: Message, other: Message) -> bool:
    """Whether one that was sent earlier stands before the other."""
    return one.writer == other.writer or (one.answered is not None and one.answered <= other.queued)
