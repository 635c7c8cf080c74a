"""What was asked of DMP's durable queues, over AMQP 0-9-1, and what it confirmed and delivered.

A message is known by its first word, which is never the same twice, and by the digest of its body. One that
is published to several queues has a copy in each.

Nothing is answered to an acknowledgement. It counts as confirmed here with the next publish on its channel
that is: by then the server has read it, and what it has read before is on disk with that publish, or before.
"""

from collections.abc import Iterable
from hashlib import blake2b

import attrs

from tests.trials.queue_judge import Stored

QUEUES = ("orders", "mails", "audit", "marks")
FANOUT = ("orders", "audit")
"""The queues that one publish may go to together."""
EXCHANGE = "both"


def digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).digest()


def key_of(body: bytes) -> bytes:
    return body.partition(b" ")[0]


@attrs.define(eq=False)
class Copy(Stored):
    """A message in one queue. `answered`: when its confirm was read; 0: a verification has found it."""

    digest: bytes = b""
    others: list["Copy"] = attrs.field(factory=list, repr=False)
    """Those of the same publish in other queues."""


@attrs.define(eq=False)
class QueueBook:
    """`settled`: what the last verification found, in order; `gone`: what was there, and is not any more."""

    name: str
    made: float | None = None
    """When its declaration was answered; None: it is not there."""
    copies: dict[bytes, Copy] = attrs.field(factory=dict)
    settled: list[Copy] = attrs.field(factory=list)
    gone: set[bytes] = attrs.field(factory=set)


@attrs.define(eq=False)
class DmpBook:
    """All queues of one broker, which has one `mode` for all of them."""

    mode: str = "always"
    queues: dict[str, QueueBook] = attrs.field(factory=lambda: {name: QueueBook(name) for name in QUEUES})
    places: int = 0

    def send(self, body: bytes, queues: Iterable[str], writer: str, now: float) -> list[Copy]:
        """A publish to these queues."""
        self.places += 1
        copies = [
            Copy(now, key=key_of(body), digest=digest(body), writer=writer, place=self.places) for _ in queues
        ]
        for name, copy in zip(queues, copies, strict=True):
            copy.others = [other for other in copies if other is not copy]
            self.queues[name].copies[copy.key] = copy
        return copies

    def promised(self, until: float) -> int:
        """Confirmed by then, since the last verification, and not acknowledged."""
        return sum(
            bool(copy.answered) and copy.must_stand(until) and copy.ack is None
            for queue in self.queues.values()
            for copy in queue.copies.values()
        )
