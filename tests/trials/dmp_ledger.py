"""What was asked of AMQP's durable queues, and what was confirmed and delivered.

A message that is published to several queues is one in each. Nothing is answered to an acknowledgement. It
counts as confirmed here with the next publish on its channel that is: by then the server has read it, and
what it has read before is on disk with that publish, or before.
"""

from collections.abc import Iterable

import attrs

from tests.trials.queue_ledger import Message, QueueBook

LATER = "later"
"""The queue whose messages have a delay."""
QUEUES = ("orders", "mails", "audit", "marks", LATER)
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

    def send(self, body: bytes, queues: Iterable[str], writer: str, now: float) -> list[Message]:
        """A publish to these queues."""
        self.places += 1
        messages = [self.queues[name].send(body, writer, now) for name in queues]
        for message in messages:
            message.place = self.places
            message.others = [other for other in messages if other is not message]
        return messages

    def promised(self, until: float) -> int:
        """Confirmed by then, since the last verification, and not acknowledged."""
        return sum(
            bool(message.answered) and message.must_stand(until) and message.ack is None
            for queue in self.queues.values()
            for message in queue.messages.values()
        )
